"""How transformers saves, loads, trains and makes dense a block-sparse model: its hooks for "bsparse" checkpoints.

transformers calls everything that is not dense at load a quantization; nothing is quantized here. Importing this
module registers the hooks. transformers does not look for them by itself: without `import bsparse_hf`, its
`from_pretrained` logs one line, ignores the sparse tensors and returns randomly initialised layers.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from bsparse_hf import _transformers as hf
from bsparse_hf.config import METHOD, BlockSparseConfig, describe
from bsparse_hf.fusion import check_activations, fuse_activations, is_fused, unfuse_activations
from bsparse_hf.survey import names_of_modules, put
from bsparse_hf.verify import check_files, check_layers, check_shapes, check_skeleton
from bsparse_torch import BlockSparseLinear
from bsparse_torch.state import EXTRA


@hf.register_quantizer(METHOD)
class BlockSparseQuantizer(hf.HfQuantizer):
    """The hooks. `conv1d` holds the names of layers that were Conv1D, so that `dequantize` gives them back as such."""

    requires_calibration = False
    quantization_config: BlockSparseConfig

    def __init__(self, quantization_config: BlockSparseConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.conv1d: set[str] = set()
        self._files: list[str] = []
        self._shapes: dict[str, torch.Size] = {}
        self._found: set[str] = set()

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Refuses to make a dense checkpoint sparse while loading it."""
        if not self.pre_quantized and not self._shapes:  # with shapes, a checkpoint of ours is being loaded
            raise ValueError("a dense checkpoint is not patched while it loads: use BlockSparseModelPatcher after")

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        """Puts layers without content where the config names them; the model is on the meta device."""
        self._files = checkpoint_files or []
        named = self.quantization_config.modules
        self.quantization_config.modules = check_skeleton(model, named)
        check_files(self._files, layers=len(named))
        names = names_of_modules(model)
        for name, entry in self.quantization_config.modules.items():
            dense = model.get_submodule(name)
            assert isinstance(dense.weight, torch.Tensor)
            if isinstance(dense, hf.Conv1D):
                self.conv1d.add(name)
            layer = BlockSparseLinear.empty(
                entry["in_features"],
                entry["out_features"],
                entry["blocks"],
                block=tuple(entry["block"]),
                bias=entry["bias"],
                device="meta",
                dtype=dense.weight.dtype,
            )
            _tensors_only(layer)
            put(model, names[id(dense)], layer)
        if self.quantization_config.fuse_activations:
            # As patching does; and now, for the hooks of layers that get offloaded would prevent it.
            fuse_activations(model, only_transformers=True)
        self._shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        # From here on this is an ordinary load: of "pre-quantized" files transformers would keep the dtype, whatever
        # the caller asked for. It also asks `param_needs_quantization` now, of each tensor.
        self.pre_quantized = False

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **kwargs: Any) -> bool:
        """Never; but it is asked for each tensor found in the files, which is how a missing one is noticed."""
        self._found.add(param_name)
        return False

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        """Checks all that was loaded, before any of it can run."""
        self.pre_quantized = True
        check_shapes(model, self._shapes, self._files)
        check_layers(model, self._found, self._files)
        self._found, self._shapes = set(), {}
        attach(model)
        return model

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[None, dict[str, str]]:
        """`save_pretrained` calls this first: brings the config up to date, for training may have changed patterns."""
        check_activations(model)
        if any(isinstance(module, BlockSparseLinear) for module in model.modules()):
            attach(model)
        else:
            hf.detach_quantizer(model, self)
        return None, {}

    def dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """Makes every layer dense again, zeros in place, in its own dtype or the one given."""
        check_activations(model)
        unfuse_activations(model)
        names = names_of_modules(model)
        for name, layer in list(model.named_modules()):
            if isinstance(layer, BlockSparseLinear):
                put(model, names[id(layer)], _dense(layer, as_conv1d=name in self.conv1d).to(dtype))
        hf.detach_quantizer(model, self)
        return model

    def is_serializable(self) -> bool:
        """`save_pretrained` works."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Trainer may train the model."""
        return True

    @property
    def is_qat_trainable(self) -> bool:
        """Trainer may train it in full, without adapters."""
        return True

    @property
    def is_compileable(self) -> bool:
        """`torch.compile` and the static cache of `generate` may be used."""
        return True


def attach(model: PreTrainedModel, conv1d: Iterable[str] = ()) -> None:
    """Gives a model with block-sparse layers its hooks and its config, or brings them up to date."""
    quantizer = getattr(model, "hf_quantizer", None)
    if not isinstance(quantizer, BlockSparseQuantizer):
        quantizer = BlockSparseQuantizer(BlockSparseConfig(modules={}))
    quantizer.conv1d.update(conv1d)
    quantizer.quantization_config.modules = describe(model)
    fused = is_fused(model)
    if fused is not None:
        quantizer.quantization_config.fuse_activations = fused
    hf.attach_quantizer(model, quantizer)
    for layer in model.modules():
        if isinstance(layer, BlockSparseLinear):
            _tensors_only(layer)


def _tensors_only(layer: BlockSparseLinear) -> None:
    """Takes extra state out of a layer's state_dict: safetensors holds tensors only, and config.json says the same."""
    if EXTRA in layer.state_dict():
        layer.register_state_dict_post_hook(_drop_extra_state)  # type: ignore[no-untyped-call]


def _drop_extra_state(layer: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    del state_dict[prefix + EXTRA]


def _dense(layer: BlockSparseLinear, as_conv1d: bool) -> nn.Module:
    linear = layer.to_linear()
    if not as_conv1d:
        return linear
    weight = linear.weight.detach().t().contiguous().requires_grad_(linear.weight.requires_grad)  # [in, out]
    return hf.conv1d(weight, linear.bias).train(layer.training)
