"""The custom operators torch.ops.bsparse.*: their schemas, what they accept, and their fakes.

They take tensors and numbers only. `pattern_key`, `row_offsets` and `col_indices` are those of one BlockPattern: the
key finds the pattern in this process, the tensors let another process rebuild it (plans.py). launch.py implements
the operators, autograd.py says which is whose gradient.
"""

import torch
from torch import Tensor

from bsparse_core import InvalidArgument
from bsparse_torch.plans import DTYPE_NAMES

_PATTERN = "Tensor row_offsets, Tensor col_indices, SymInt pattern_key, int out_features, int in_features"

# y = act(x W^T + bias); aux is the value before the activation where keep_aux says so, and empty otherwise.
torch.library.define(
    "bsparse::linear",
    f"(Tensor x, Tensor values, Tensor? bias, {_PATTERN}, str activation, bool keep_aux) -> (Tensor y, Tensor aux)",
)
# dx = dy W
torch.library.define("bsparse::grad_input", f"(Tensor dy, Tensor values, {_PATTERN}) -> Tensor")
# dW = dy^T x at the stored blocks
torch.library.define(
    "bsparse::grad_values", f"(Tensor dy, Tensor x, {_PATTERN}, int block_rows, int block_cols) -> Tensor"
)

linear = torch.ops.bsparse.linear.default
grad_input = torch.ops.bsparse.grad_input.default
grad_values = torch.ops.bsparse.grad_values.default


def check_values(values: Tensor, blocks: int) -> None:
    """Raises InvalidArgument unless values is [blocks, block_rows, block_cols] of a served dtype."""
    if values.dtype not in DTYPE_NAMES:
        raise InvalidArgument(
            f"values has dtype {values.dtype}; it must be one of torch.float32, float16, bfloat16 and float64"
        )
    if values.dim() != 3 or values.shape[0] != blocks:
        raise InvalidArgument(
            f"values has shape {list(values.shape)}; the pattern stores {blocks} blocks: "
            f"values must be [{blocks}, block_rows, block_cols], those of this pattern and no other"
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


def check_linear(x: Tensor, values: Tensor, bias: Tensor | None, blocks: int, shape: tuple[int, int]) -> None:
    """Raises InvalidArgument unless the operands of linear fit; shape is (out_features, in_features)."""
    check_values(values, blocks)
    check_dense("x", x, "in_features", shape[1], "values", values)
    if bias is not None:
        check_bias(bias, values, shape[0])


def check_grad_input(dy: Tensor, values: Tensor, blocks: int, out_features: int) -> None:
    """Raises InvalidArgument unless the operands of grad_input fit."""
    check_values(values, blocks)
    check_dense("dy", dy, "out_features", out_features, "values", values)


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
) -> tuple[Tensor, Tensor]:
    check_linear(x, values, bias, col_indices.shape[0], (out_features, in_features))
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
) -> Tensor:
    check_grad_input(dy, values, col_indices.shape[0], out_features)
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
) -> Tensor:
    check_grad_values(dy, x, (out_features, in_features))
    return dy.new_empty(col_indices.shape[0], block_rows, block_cols)


torch.library.register_fake("bsparse::linear", _linear_fake)
torch.library.register_fake("bsparse::grad_input", _grad_input_fake)
torch.library.register_fake("bsparse::grad_values", _grad_values_fake)
