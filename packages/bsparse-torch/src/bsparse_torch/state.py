"""The state_dict of a BlockSparseLinear: what it holds, and the checks before any of it is loaded.

Keys: values, row_offsets, col_indices, bias, in 2:4 formats metadata, and extra state, a dict of plain data {version,
format, block, in_features, out_features}, which a checkpoint may lack. Loading takes its pattern and its positions.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bsparse_core import BsparseError, InvalidArgument, Unsupported
from bsparse_torch import positions
from bsparse_torch.pattern import BlockPattern, check_format
from bsparse_torch.plans import DTYPE_NAMES

VERSION = 1
PATTERN_KEYS = ("values", "row_offsets", "col_indices")
METADATA = "metadata"
EXTRA = "_extra_state"  # torch's name for it


def extra_state(format: str, block: tuple[int, int], in_features: int, out_features: int) -> dict[str, Any]:
    """Extra state of this version."""
    return {
        "version": VERSION,
        "format": format,
        "block": list(block),
        "in_features": in_features,
        "out_features": out_features,
    }


def check_extra_state(found: Any, expected: dict[str, Any]) -> None:
    """Raises InvalidArgument or Unsupported unless a checkpoint's extra state is that of the layer."""
    if not isinstance(found, Mapping) or set(found) != set(expected):
        raise InvalidArgument(f"extra state is {found!r}; it must hold {', '.join(expected)}")
    if found["version"] != VERSION:
        raise Unsupported(f"version is {found['version']!r}; this bsparse_torch reads version {VERSION}: update it")
    check_format(found["format"])
    for name in ("format", "in_features", "out_features", "block"):
        value = list(found[name]) if isinstance(found[name], tuple) else found[name]
        if value != expected[name]:
            raise InvalidArgument(f"{name} is {value!r} in the checkpoint and {expected[name]!r} in the layer")


def read_pattern(
    state_dict: Mapping[str, Any], prefix: str, expected: dict[str, Any], bias: Tensor | None
) -> BlockPattern | None:
    """The pattern of a checkpoint after all checks; None where it holds neither values nor indices.

    Raises:
        BsparseError: anything missing, truncated, out of range, or of another kind of layer. Nothing was loaded.
    """
    if prefix + EXTRA in state_dict:
        check_extra_state(state_dict[prefix + EXTRA], expected)
    keys = PATTERN_KEYS if expected["format"] == "bsr" else (*PATTERN_KEYS, METADATA)
    found = {name: state_dict[prefix + name] for name in (*PATTERN_KEYS, METADATA) if prefix + name in state_dict}
    if not found:
        if prefix + "weight" in state_dict:
            raise InvalidArgument(
                "the checkpoint holds a dense weight: load it into nn.Linear, then BlockSparseLinear.from_linear"
            )
        return None
    missing = [name for name in keys if name not in found]
    if missing:
        raise InvalidArgument(f"{', '.join(missing)} missing beside {', '.join(found)}: they load together or not")
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor):
            raise InvalidArgument(f"{name} is a {type(tensor).__name__}; it must be a tensor")
    shape, block = (expected["out_features"], expected["in_features"]), tuple(expected["block"])
    pattern = BlockPattern(found["row_offsets"], found["col_indices"], shape, block, expected["format"])
    check_values(found["values"], pattern)
    positions.check_contents(found.get(METADATA), pattern)
    if bias is not None and prefix + "bias" in state_dict:
        check_bias(state_dict[prefix + "bias"], bias.shape[0])
    return pattern


def check_bias(bias: Any, out_features: int) -> None:
    """Raises InvalidArgument unless bias is a float tensor [out_features]."""
    if not isinstance(bias, Tensor):
        raise InvalidArgument(f"bias is a {type(bias).__name__}; it must be a tensor [{out_features}]")
    _check_dtype("bias", bias)
    if tuple(bias.shape) != (out_features,):
        raise InvalidArgument(f"bias has shape {list(bias.shape)}; the layer's is [{out_features}]")


def check_values(values: Tensor, pattern: BlockPattern) -> None:
    """Raises InvalidArgument unless values are floats of the pattern's shape."""
    _check_dtype("values", values)
    if tuple(values.shape) != pattern.values_shape:
        raise InvalidArgument(
            f"values has shape {list(values.shape)}; row_offsets and col_indices need {list(pattern.values_shape)}"
        )


def _check_dtype(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPE_NAMES:
        served = "torch.float32, float16, bfloat16 or float64"
        raise InvalidArgument(f"{name} has dtype {tensor.dtype}; it must be {served}: cast it")


def sentence(prefix: str, error: BsparseError) -> str:
    """An error as a line of load_state_dict's report, with the layer's name."""
    return f"{prefix.rstrip('.') or 'this layer'}: {error}"
