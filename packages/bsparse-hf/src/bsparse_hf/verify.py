"""The checks of a checkpoint: nothing of a file reaches a kernel before it has passed them."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from bsparse_hf import _transformers as hf
from bsparse_hf.config import CheckpointError
from bsparse_hf.survey import features, kind_of
from bsparse_torch import BlockSparseLinear

INDICES, VALUES = (".row_offsets", ".col_indices"), ".values"
VALUE_DTYPES = ("F32", "F16", "BF16", "F64")
AGAIN = "save or download the checkpoint again"


def check_files(files: list[str], layers: int) -> None:
    """Headers only: each file is whole safetensors, dtypes are right, and config.json names as many layers.

    Names are not compared: those in files may differ from the model's, and transformers knows how.
    """
    dtypes = {name: (dtype, file) for file in files for name, dtype in _header(file).items()}
    stems = sorted({name.rpartition(".")[0] for name in dtypes if name.endswith(INDICES)})
    for name, (dtype, file) in dtypes.items():
        index, values = name.endswith(INDICES), name.endswith(VALUES) and name.removesuffix(VALUES) in stems
        wanted = ("I32",) if index else VALUE_DTYPES
        if (index or values) and dtype not in wanted:
            must = f"it must be {' or '.join(wanted)}"
            raise CheckpointError(f"{file}: tensor {name} has dtype {dtype}; {must}: {AGAIN}")
    if len(stems) > layers and files:
        counts = f"holds {len(stems)} block-sparse layers, quantization_config.modules of config.json names {layers}"
        raise CheckpointError(f"{_folder(files)} {counts}; the first in the file is {stems[0]}: {AGAIN}")


def _header(file: str) -> dict[str, str]:
    """Name of each tensor in a file -> dtype."""
    if not file.endswith(".safetensors"):
        raise CheckpointError(f"{file} is not a safetensors file; bsparse checkpoints are nothing else")
    try:
        with safe_open(file, framework="pt") as tensors:
            names = tensors.keys()
            return {name: tensors.get_slice(name).get_dtype() for name in names}
    except SafetensorError as error:
        raise CheckpointError(f"{file} is truncated or not a safetensors file ({error}): {AGAIN}") from error
    except OSError as error:
        raise CheckpointError(f"{file} is missing or cannot be read ({error}): {AGAIN}") from error


def check_skeleton(model: PreTrainedModel, modules: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The config's entries under this model's names, each held against the dense module that stands there.

    A checkpoint may be loaded into the bare model or into one with a head: then names lose or gain its prefix, as the
    names of tensors do; entries of a head that the bare model has not are left out.
    """
    present = {name for name, _ in model.named_modules(remove_duplicate=False)}
    bare = model.base_model is model and any(name.startswith(f"{model.base_model_prefix}.") for name in modules)
    found = {}
    for name, entry in modules.items():
        own_name = _own_name(model, name, present, bare)
        if own_name is None:
            continue
        where = f"quantization_config.modules[{name!r}]"
        dense = model.get_submodule(own_name)
        if kind_of(dense) is None:
            raise CheckpointError(f"{where} is a {type(dense).__name__} in {type(model).__name__}; it must be a Linear")
        in_features, out_features = features(dense)
        own = {"in_features": in_features, "out_features": out_features, "bias": dense.bias is not None}
        for key, value in own.items():
            if entry[key] != value:
                raise CheckpointError(f"{where}.{key} is {entry[key]!r}; in {type(model).__name__} it is {value!r}")
        if hf.is_tied(model, f"{own_name}.weight"):
            raise CheckpointError(f"{where} is tied in {type(model).__name__}: set tie_word_embeddings to false")
        found[own_name] = entry
    return found


def check_shapes(model: PreTrainedModel, expected: dict[str, torch.Size], files: list[str]) -> None:
    """Every tensor of the model has the shape it had before loading; transformers leaves this to its quantizers."""
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.shape != expected[name]:
            shapes = f"has shape {list(tensor.shape)}; the config makes it {list(expected[name])}"
            raise CheckpointError(f"{_holder(files, name)}: tensor {name} {shapes}: {AGAIN}")


def check_layers(model: PreTrainedModel, found: set[str], files: list[str]) -> None:
    """Every block-sparse layer got all of its tensors, and its indices make a pattern."""
    for name, layer in model.named_modules():
        if not isinstance(layer, BlockSparseLinear):
            continue
        for tensor in [*dict(layer.named_parameters()), *dict(layer.named_buffers())]:
            if f"{name}.{tensor}" not in found:
                raise CheckpointError(f"{_folder(files)}: tensor {name}.{tensor} is missing: {AGAIN}")
        try:
            layer.refresh_pattern()
        except ValueError as error:
            raise CheckpointError(f"{_holder(files, name + '.col_indices')}: {name}: {error}; {AGAIN}") from error


def _own_name(model: PreTrainedModel, name: str, present: Container[str], bare: bool) -> str | None:
    """What this model calls a module of the config; None for one of a head, where the model is bare."""
    prefix = f"{model.base_model_prefix}."
    for own in (name, name.removeprefix(prefix), prefix + name):
        if own in present:
            return own
    if bare and not name.startswith(prefix):
        return None
    raise CheckpointError(
        f"quantization_config.modules names {name!r}, which {type(model).__name__} does not have: "
        "load the checkpoint as the class that config.json names, or repair config.json"
    )


def _holder(files: list[str], tensor: str) -> str:
    """The file that holds a tensor, as far as its name tells; else their folder."""
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            names = tensors.keys()
        if any(name.endswith(tensor) or tensor.endswith(name) for name in names):
            return file
    return _folder(files)


def _folder(files: list[str]) -> str:
    return str(Path(files[0]).parent) if files else "the state dict"
