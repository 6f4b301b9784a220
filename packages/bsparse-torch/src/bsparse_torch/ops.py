"""The custom operators torch.ops.bsparse.*: their schemas, what they accept, and their fakes.

They take tensors and numbers only. `pattern_key`, `row_offsets` and `col_indices` are those of one BlockPattern: the
key finds the pattern in this process, the tensors let another process rebuild it (plans.py). launch.py implements
the operators, autograd.py says which is whose gradient. `metadata` says which numbers the values of a 2:4 format are,
those of sddmm's result too; its dimensions tell bsr24, 3, from semi24, 2. Without it the format is bsr.
"""

import torch
from torch import Tensor

from bsparse_core import InvalidArgument
from bsparse_torch.plans import DTYPE_NAMES
from bsparse_torch.positions import format_of

_METADATA = "Tensor? metadata=None"
_PATTERN = "Tensor row_offsets, Tensor col_indices, SymInt pattern_key, int out_features, int in_features"

# y = act(x W^T + bias); aux is the value before the activation where keep_aux says so, and empty otherwise.
torch.library.define(
    "bsparse::linear",
    f"(Tensor x, Tensor values, Tensor? bias, {_PATTERN}, str activation, bool keep_aux, {_METADATA}) "
    "-> (Tensor y, Tensor aux)",
)
# dx = dy W
torch.library.define("bsparse::grad_input", f"(Tensor dy, Tensor values, {_PATTERN}, {_METADATA}) -> Tensor")
# dW = dy^T x at the stored blocks, or at what is kept of them
torch.library.define(
    "bsparse::grad_values", f"(Tensor dy, Tensor x, {_PATTERN}, int block_rows, int block_cols, {_METADATA}) -> Tensor"
)

linear = torch.ops.bsparse.linear.default
grad_input = torch.ops.bsparse.grad_input.default
grad_values = torch.ops.bsparse.grad_values.default


def check_values(values: Tensor, blocks: int, metadata: Tensor | None) -> None:
    """Raises InvalidArgument unless values is [blocks, ...] of a served dtype, with metadata as large as they need."""
    if values.dtype not in DTYPE_NAMES:
        raise InvalidArgument(
            f"values has dtype {values.dtype}; it must be one of torch.float32, float16, bfloat16 and float64"
        )
    if metadata is not None:
        _check_metadata(metadata, values, blocks)
    elif values.dim() != 3 or values.shape[0] != blocks:
        raise InvalidArgument(
            f"values has shape {list(values.shape)}; the pattern stores {blocks} blocks: "
            f"values must be [{blocks}, block_rows, block_cols], those of this pattern and no other"
        )


def _check_metadata(metadata: Tensor, values: Tensor, blocks: int) -> None:
    if metadata.dtype is not torch.uint8:
        raise InvalidArgument(f"metadata has dtype {metadata.dtype}; it must be torch.uint8: two positions in 4 bits")
    if metadata.device != values.device:
        raise InvalidArgument(
            f"metadata is on {metadata.device}, values is on {values.device}; both must be on one device: move one"
        )
    format = format_of(metadata)
    if values.dim() != metadata.dim() or metadata.dim() not in (2, 3) or (format == "bsr24" and len(values) != blocks):
        raise InvalidArgument(
            f"values has shape {list(values.shape)} and metadata {list(metadata.shape)}; both must begin with "
            f"out_features (semi24), or with {blocks} blocks and block_rows (bsr24): pass those of one layer"
        )
    if metadata.shape[:-1] != values.shape[:-1] or 4 * metadata.shape[-1] != values.shape[-1]:
        raise InvalidArgument(
            f"metadata has shape {list(metadata.shape)}; values {list(values.shape)} need one byte for every 4 of a row"
        )


def check_dense(name: str, dense: Tensor, feature: str, features: int, other_name: str, other: Tensor) -> None:
    """Raises InvalidArgument unless dense is [..., features], on the device and of the dtype of the other operand."""
    if dense.dtype is not other.dtype:
        raise InvalidArgument(
            f"{name} has dtype {dense.dtype}, {other_name} has dtype {other.dtype}; they must be equal: "
            f"cast one of them ({name}.to({other.dtype})), or run under torch.autocast"
        )
    if dense.device != other.device:
        raise InvalidArgument(
            f"{name} is on {dense.device}, {other_name} is on {other.device}; both must be on one device: "
            f"move one of them ({name}.to({str(other.device)!r}))"
        )
    if dense.dim() < 1 or dense.shape[-1] != features:
        raise InvalidArgument(
            f"{name} has shape {list(dense.shape)}; its last dimension must be {feature} = {features}"
        )


def check_bias(bias: Tensor, values: Tensor, out_features: int) -> None:
    """Raises InvalidArgument unless bias is [out_features], of the values' dtype or float32, on their device."""
    if bias.dtype is not values.dtype and (bias.dtype is not torch.float32 or values.dtype is torch.float64):
        raise InvalidArgument(
            f"bias has dtype {bias.dtype}, values has dtype {values.dtype}; bias must have that dtype or torch.float32"
        )
    if bias.device != values.device:
        raise InvalidArgument(f"bias is on {bias.device}, values is on {values.device}; both must be on one device")
    if bias.dim() != 1 or bias.shape[0] != out_features:
        raise InvalidArgument(f"bias has shape {list(bias.shape)}; it must be [out_features] = [{out_features}]")


def check_linear(
    x: Tensor, values: Tensor, bias: Tensor | None, blocks: int, shape: tuple[int, int], metadata: Tensor | None
) -> None:
    """Raises InvalidArgument unless the operands of linear fit; shape is (out_features, in_features)."""
    check_values(values, blocks, metadata)
    check_dense("x", x, "in_features", shape[1], "values", values)
    if bias is not None:
        check_bias(bias, values, shape[0])


def check_grad_input(dy: Tensor, values: Tensor, blocks: int, out_features: int, metadata: Tensor | None) -> None:
    """Raises InvalidArgument unless the operands of grad_input fit."""
    check_values(values, blocks, metadata)
    check_dense("dy", dy, "out_features", out_features, "values", values)


def values_shape(blocks: int, block: tuple[int, int], metadata: Tensor | None) -> tuple[int, ...]:
    """That of grad_values' result."""
    return (blocks, *block) if metadata is None else (*metadata.shape[:-1], 4 * metadata.shape[-1])


def check_grad_values(dy: Tensor, x: Tensor, shape: tuple[int, int]) -> None:
    """Raises InvalidArgument unless the operands of grad_values fit; shape is (out_features, in_features)."""
    check_dense("dy", dy, "out_features", shape[0], "x", x)
    if x.dtype not in DTYPE_NAMES:
        raise InvalidArgument(f"x has dtype {x.dtype}; it must be one of torch.float32, float16, bfloat16 and float64")
    if x.shape[:-1] != dy.shape[:-1] or x.shape[-1] != shape[1]:
        raise InvalidArgument(
            f"x has shape {list(x.shape)}; with dy {list(dy.shape)} it must be {[*dy.shape[:-1], shape[1]]}"
        )


def _linear_fake(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    row_offsets: Tensor,
    col_indices: Tensor,
    pattern_key: int,
    out_features: int,
    in_features: int,
    activation: str,
    keep_aux: bool,
    metadata: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    check_linear(x, values, bias, col_indices.shape[0], (out_features, in_features), metadata)
    y = x.new_empty(*x.shape[:-1], out_features)
    return y, torch.empty_like(y) if keep_aux else x.new_empty(0)


def _grad_input_fake(
    dy: Tensor,
    values: Tensor,
    row_offsets: Tensor,
    col_indices: Tensor,
    pattern_key: int,
    out_features: int,
    in_features: int,
    metadata: Tensor | None = None,
) -> Tensor:
    check_grad_input(dy, values, col_indices.shape[0], out_features, metadata)
    return dy.new_empty(*dy.shape[:-1], in_features)


def _grad_values_fake(
    dy: Tensor,
    x: Tensor,
    row_offsets: Tensor,
    col_indices: Tensor,
    pattern_key: int,
    out_features: int,
    in_features: int,
    block_rows: int,
    block_cols: int,
    metadata: Tensor | None = None,
) -> Tensor:
    check_grad_values(dy, x, (out_features, in_features))
    return dy.new_empty(values_shape(col_indices.shape[0], (block_rows, block_cols), metadata))


torch.library.register_fake("bsparse::linear", _linear_fake)
torch.library.register_fake("bsparse::grad_input", _grad_input_fake)
torch.library.register_fake("bsparse::grad_values", _grad_values_fake)
