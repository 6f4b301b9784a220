"""Every use of transformers that is not plainly public, in one place.

Read against transformers 5.17.0. What moves in a later version is mended here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, activations
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils import logging
from transformers.utils.quantization_config import QuantizationConfigMixin

from bsparse_torch.standin import DenseWeight

__all__ = [
    "Conv1D",
    "HfQuantizer",
    "QuantizationConfigMixin",
    "activation_name",
    "architecture",
    "attach_quantizer",
    "can_untie",
    "conv1d",
    "detach_quantizer",
    "is_own",
    "is_tied",
    "output_head",
    "progress",
    "register_quantization_config",
    "register_quantizer",
    "saved_config",
    "untie",
]

# Some models initialise `child.weight` of their children at every load; what bears this mark they pass over. The weight
# of a block-sparse layer is a stand-in without storage: there is nothing to fill.
DenseWeight._is_hf_initialized = True  # type: ignore[attr-defined]

Item = TypeVar("Item")
PATIENCE = 2.0  # seconds of work before a progress bar appears

# The modules that compute exactly what a block-sparse layer can, but for rounding.
ACTIVATIONS: Mapping[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    activations.SiLUActivation: "silu",
    activations.GELUActivation: "gelu",
    activations.GELUTanh: "gelu_tanh",
    activations.NewGELUActivation: "gelu_tanh",
    activations.FastGELUActivation: "gelu_tanh",
    activations.AccurateGELUActivation: "gelu_tanh",
}


def activation_name(module: nn.Module) -> str | None:
    """What `BlockSparseLinear.activation` calls this module's function; None for one that it does not compute."""
    if type(module) is nn.GELU:
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return ACTIVATIONS.get(type(module))


def progress(items: Sequence[Item], what: str) -> Iterable[Item]:
    """The items, with a bar and the time left once this takes long; transformers' settings can switch it off."""
    bar: Iterable[Item] = logging.tqdm(items, desc=what, unit="layer", delay=PATIENCE, leave=False)
    return bar


def conv1d(weight: torch.Tensor, bias: nn.Parameter) -> nn.Module:
    """A Conv1D with this weight, [in_features, out_features], and bias."""
    module = Conv1D(weight.shape[1], weight.shape[0])  # type: ignore[no-untyped-call]
    module.weight, module.bias = nn.Parameter(weight, weight.requires_grad), bias
    return module


def output_head(model: nn.Module) -> nn.Module | None:
    """The module that maps hidden states to the vocabulary, or None."""
    if not isinstance(model, PreTrainedModel):
        return None
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head if isinstance(head, nn.Module) else None


def is_tied(model: PreTrainedModel, parameter_name: str) -> bool:
    """Whether transformers will tie this parameter to another one when it loads the model."""
    tied: Mapping[str, str] = model.all_tied_weights_keys
    return parameter_name in tied or parameter_name in tied.values()


def is_own(module: nn.Module) -> bool:
    """Whether a module's class is transformers' own."""
    return type(module).__module__.startswith("transformers.")


def can_untie(model: PreTrainedModel, module_name: str) -> bool:
    """Whether `config.tie_word_embeddings` ties this module, and nothing else that `untie` would part."""
    targets = model.all_tied_weights_keys
    return bool(targets) and all(target.startswith(f"{module_name}.") for target in targets)


def untie(model: PreTrainedModel) -> None:
    """Makes the model, and every later load of it, keep its tied weights apart."""
    model.config.tie_word_embeddings = False
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def attach_quantizer(model: Any, quantizer: HfQuantizer) -> None:
    """model: a PreTrainedModel. Makes `save_pretrained` and Trainer ask this quantizer about the model.

    `is_quantized` stays False: the values are ordinary floats, so `.half()`, `.float()` and a compiled Trainer work.
    """
    model.hf_quantizer = quantizer
    model.config.quantization_config = quantizer.quantization_config
    model.quantization_method = quantizer.quantization_config.quant_method
    model.is_quantized = False


def detach_quantizer(model: PreTrainedModel, quantizer: HfQuantizer) -> None:
    """The model is an ordinary one again, also for `save_pretrained`."""
    quantizer.remove_quantization_config(model)  # type: ignore[no-untyped-call]


def saved_config(path: str, **kwargs: Any) -> dict[str, Any]:
    """The contents of the config.json at a folder or hub name, as plain data."""
    config, _ = PreTrainedConfig.get_config_dict(path, **kwargs)
    return dict(config)


def architecture(name: str) -> type[PreTrainedModel] | None:
    """The model class that transformers exports under this name, or None; PreTrainedModel itself is of no model."""
    found = getattr(transformers, name, None)
    if not isinstance(found, type) or not issubclass(found, PreTrainedModel) or found is PreTrainedModel:
        return None
    return found
