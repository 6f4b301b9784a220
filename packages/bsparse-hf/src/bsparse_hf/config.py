"""What config.json says about a block-sparse model: data only, and refused unless every word of it is known."""

from typing import Any

from torch import nn

from bsparse_hf import _transformers as hf
from bsparse_torch import BlockSparseLinear, BsparseError
from bsparse_torch.pattern import check_format

METHOD = "bsparse"
FORMATS = ("bsr",)  # that files may hold
FORMAT_VERSION = 1
LARGEST = 2**31 - 1  # the library's sizes and indices are int32
MODULE_KEYS = ("format", "block", "in_features", "out_features", "blocks", "bias")


class CheckpointError(ValueError):
    """A checkpoint that is damaged, of an unknown format, or not of this model. The message names file or field."""


@hf.register_quantization_config(METHOD)
class BlockSparseConfig(hf.QuantizationConfigMixin):
    """The `quantization_config` of config.json.

    modules: name -> {format, block [rows, columns], in_features, out_features, blocks, bias}.
    fuse_activations: whether loading ends with `bsparse_hf.fuse_activations`; in config.json only where it does not.
    Raises CheckpointError for an unknown version, format or key, and for values that cannot be.
    """

    def __init__(
        self,
        modules: dict[str, dict[str, Any]] | None = None,
        format_version: int = FORMAT_VERSION,
        quant_method: str = METHOD,
        fuse_activations: bool = True,
        **unknown: object,
    ) -> None:
        if quant_method != METHOD:
            raise CheckpointError(f"quantization_config.quant_method is {quant_method!r}; it must be {METHOD!r}")
        if type(format_version) is not int or format_version != FORMAT_VERSION:
            raise CheckpointError(
                f"quantization_config.format_version is {format_version!r}; this bsparse-hf reads {FORMAT_VERSION}: "
                "install the bsparse-hf that wrote the checkpoint, or a newer one"
            )
        if unknown:
            raise CheckpointError(
                f"quantization_config has the unknown key {sorted(unknown)[0]!r}; the keys of format version "
                f"{FORMAT_VERSION} are quant_method, format_version, modules and fuse_activations"
            )
        if not isinstance(fuse_activations, bool):
            raise CheckpointError(
                f"quantization_config.fuse_activations is {fuse_activations!r}; it must be true or false"
            )
        if not isinstance(modules, dict):
            raise CheckpointError(f"quantization_config.modules is {modules!r}; it must map module names to entries")
        for name, entry in modules.items():
            _check_entry(f"quantization_config.modules[{name!r}]", entry)
        self.quant_method = METHOD  # type: ignore[assignment]  # a plain string is all that transformers needs
        self.format_version = format_version
        self.modules = modules
        self.fuse_activations = fuse_activations

    def to_dict(self) -> dict[str, Any]:
        """Exactly what config.json holds."""
        return {
            "quant_method": self.quant_method,
            "format_version": self.format_version,
            "modules": {name: dict(entry) for name, entry in self.modules.items()},
            **({} if self.fuse_activations else {"fuse_activations": False}),
        }


def describe(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The `modules` of a model's config, as its block-sparse layers are now. Raises Unsupported for other formats."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BlockSparseLinear)}
    for layer in layers.values():
        check_format(layer.format, FORMATS)
    return {
        name: {
            "format": layer.format,
            "block": list(layer.block),
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "blocks": layer.values.shape[0],
            "bias": layer.bias is not None,
        }
        for name, layer in layers.items()
    }


def _check_entry(where: str, entry: object) -> None:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where} is {entry!r}; it must be an object with the keys {', '.join(MODULE_KEYS)}")
    for key in sorted(set(entry) ^ set(MODULE_KEYS), key=str):
        wrong = "lacks the key" if key in MODULE_KEYS else "has the unknown key"
        raise CheckpointError(f"{where} {wrong} {key!r}; the keys are {', '.join(MODULE_KEYS)}")
    try:
        check_format(entry["format"], FORMATS)
    except BsparseError as error:
        raise CheckpointError(f"{where}: {error}") from error
    for key in ("in_features", "out_features"):
        if not _is_size(entry[key]):
            raise CheckpointError(f"{where}.{key} is {entry[key]!r}; it must be a positive int, {LARGEST} at most")
    block = entry["block"]
    if not isinstance(block, list) or len(block) != 2 or not all(map(_is_size, block)):
        raise CheckpointError(
            f"{where}.block is {block!r}; it must be [rows, columns], two positive ints, {LARGEST} at most"
        )
    grid = -(-entry["out_features"] // block[0]) * -(-entry["in_features"] // block[1])
    if not _is_size(entry["blocks"]) or entry["blocks"] > grid:
        raise CheckpointError(f"{where}.blocks is {entry['blocks']!r}; a {block[0]}x{block[1]} grid has 1 to {grid}")
    if entry["blocks"] * block[0] * block[1] * 8 >= 2**63:  # bytes of float64
        raise CheckpointError(f"{where}.blocks is {entry['blocks']}; so many of {block[0]}x{block[1]} fit in no memory")
    if not isinstance(entry["bias"], bool):
        raise CheckpointError(f"{where}.bias is {entry['bias']!r}; it must be true or false")


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST
