"""Block-sparse functions of tensors."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from bsparse_core import InvalidArgument
from bsparse_torch import autograd, dispatch, gain, launch, ops, positions
from bsparse_torch.masks import tile
from bsparse_torch.pattern import BlockPattern

__all__ = ["block_sparse_linear", "choose_positions", "pack", "unpack"]

BACKENDS = ("bsparse", "auto", "dense")
# Where torch computes the activation, after the product, in training and under torch.compile. A CUDA product that also
# keeps what its activation is computed from takes longer than both together: on an H200 with 16384 tokens, from 768 to
# 3072 features in bf16, 257 us instead of 57 + 66. And torch.compile computes an activation along with what follows it.
_ACTIVATIONS_APART = ("cuda",)
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def block_sparse_linear(
    x: Tensor,
    values: Tensor,
    pattern: BlockPattern,
    bias: Tensor | None = None,
    activation: str | None = None,
    backend: str = "bsparse",
    metadata: Tensor | None = None,
) -> Tensor:
    """y = act(x W^T + bias), where W [out_features, in_features] is stored as the blocks of a pattern.

    Args:
        x: [..., in_features], any strides; float32, float16, bfloat16, or on the CPU float64.
        values: pattern.values_shape, of x's dtype and on its device: [blocks, block_rows, block_cols] in "bsr".
        bias: [out_features], of x's dtype or float32.
        activation: None, "relu", "gelu", "gelu_tanh" or "silu"; computed in the same pass as the product, except on
            CUDA in training and under torch.compile.
        backend: "bsparse" multiplies the stored blocks. "dense" unpacks them and calls torch.nn.functional.linear.
            "auto" does that where it is predicted to be faster (gain.py).
        metadata: 2:4 formats: uint8, pattern.metadata_shape, on x's device: what choose_positions gives, or a layer's.
            The gradient of values is that of the numbers kept.

    Returns:
        y [..., out_features], contiguous, of x's dtype. Under torch.autocast x and values are cast to its dtype.

    Raises:
        bsparse_torch.InvalidArgument: shapes, dtypes or devices that do not fit; the message names both sides.
        bsparse_torch.Unsupported: a device or dtype that no kernel serves.
    """
    if not isinstance(pattern, BlockPattern):
        raise InvalidArgument(f"pattern is a {type(pattern).__name__}; it must be a BlockPattern")
    _check_kind("values", values)
    if tuple(values.shape) != pattern.values_shape:
        raise InvalidArgument(
            f"values has shape {list(values.shape)}; this pattern needs {list(pattern.values_shape)}: "
            "pass the values that belong to it"
        )
    positions.check(metadata, pattern)
    return linear(x, values, bias, pattern, pattern.row_offsets, pattern.col_indices, activation, backend, metadata)


def linear(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: BlockPattern,
    row_offsets: Tensor,
    col_indices: Tensor,
    activation: str | None = None,
    backend: str = "bsparse",
    metadata: Tensor | None = None,
) -> Tensor:
    """block_sparse_linear with the index tensors given apart, as a layer's buffers are."""
    _check_kind("x", x)
    _check_kind("values", values)
    if bias is not None:
        _check_kind("bias", bias)
    check_activation(activation)
    check_backend(backend)
    device = x.device
    if device != values.device:
        raise InvalidArgument(
            f"x is on {device}, values is on {values.device}; both must be on one device: move one of them"
        )
    kind = device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        x, values, bias = _autocast(torch.get_autocast_dtype(kind), x, values, bias)
    if backend != "bsparse" and _is_dense(backend, x, values, pattern):
        return _dense(x, values, bias, pattern, activation, metadata)
    needs_grad = torch.is_grad_enabled() and _any_requires_grad(x, values, bias)
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if activation is not None and kind in _ACTIVATIONS_APART and (needs_grad or compiled):
        y = linear(x, values, bias, pattern, row_offsets, col_indices, metadata=metadata)
        return _ACTIVATIONS[activation](y)
    if not needs_grad and dispatch.is_direct(x, values, bias, metadata) and values.shape == pattern.values_shape:
        ops.check_linear(x, values, bias, values.shape[0], (pattern.rows, pattern.cols), metadata)
        return launch.forward(x, values, bias, pattern.host, activation or "none", False, metadata)[0]
    pattern_arguments = row_offsets, col_indices, pattern.key_in_graphs, pattern.rows, pattern.cols
    keep_aux = needs_grad and activation is not None
    given = (x, values, bias, *pattern_arguments, activation or "none", keep_aux)
    result: tuple[Tensor, Tensor] = ops.linear(*given) if metadata is None else ops.linear(*given, metadata)
    return result[0]


def check_activation(activation: str | None) -> None:
    """Raises InvalidArgument for the name of an activation that is not served."""
    if activation is not None and activation not in autograd.ACTIVATION_GRADS:
        raise InvalidArgument(f"activation is {activation!r}; it must be None, {_quoted(autograd.ACTIVATION_GRADS)}")


def check_backend(backend: str) -> None:
    """Raises InvalidArgument for the name of a backend that does not exist."""
    if backend not in BACKENDS:
        raise InvalidArgument(f"backend is {backend!r}; it must be {_quoted(BACKENDS)}")


def pack(dense: Tensor, pattern: BlockPattern, metadata: Tensor | None = None) -> Tensor:
    """What is stored of dense [out_features, in_features]: pattern.values_shape, zero in the padding. Differentiable.

    metadata: 2:4 formats: which numbers to keep, as choose_positions gives it.
    """
    _check_shape("dense", dense, pattern)
    positions.check(metadata, pattern)
    pattern = pattern.to(dense.device)
    stored = tile(dense, pattern.block)[pattern.row_indices(), pattern.col_indices].contiguous()
    return stored if metadata is None else positions.compress(stored, pattern, metadata)


def choose_positions(dense: Tensor, pattern: BlockPattern, mask: Tensor | None = None) -> Tensor:
    """Metadata of a 2:4 format: which two of every four numbers to keep of dense [out_features, in_features].

    Args:
        mask: bool [out_features, in_features]: at most two of each group of 4 columns. Where it has fewer, the lowest
            other columns are added. None: the two largest in magnitude; where dense is float32 the larger of each pair.

    Returns:
        uint8, pattern.metadata_shape, on dense's device.

    Raises:
        bsparse_torch.InvalidArgument: a shape that does not fit, a pattern of format "bsr", a mask with more than two
            of a group.
    """
    if pattern.metadata_shape is None:
        raise InvalidArgument("pattern has format bsr, which keeps whole blocks: pass one of bsr24 or semi24")
    if mask is None:
        return positions.of_largest(_check_shape("dense", dense, pattern), pattern)
    if _check_shape("mask", mask, pattern).dtype is not torch.bool:
        raise InvalidArgument(f"mask has dtype {mask.dtype}; it must be torch.bool, one entry a number: pass mask != 0")
    return positions.of_mask(mask, pattern)


def unpack(values: Tensor, pattern: BlockPattern, metadata: Tensor | None = None) -> Tensor:
    """Values as dense [out_features, in_features], zero where nothing is stored. Differentiable.

    metadata: 2:4 formats: the positions of the values, uint8 of pattern.metadata_shape.
    """
    if tuple(values.shape) != pattern.values_shape:
        raise InvalidArgument(f"values has shape {list(values.shape)}; the pattern needs {list(pattern.values_shape)}")
    positions.check(metadata, pattern)
    pattern = pattern.to(values.device)
    if metadata is not None:
        values = positions.expand(values, pattern, metadata)
    grid, block = pattern.grid, pattern.block
    dense = values.new_zeros(grid[0] * block[0], grid[1] * block[1])  # padded [R * block_rows, C * block_cols]
    tile(dense, block)[pattern.row_indices(), pattern.col_indices] = values
    return dense[: pattern.rows, : pattern.cols].contiguous()


def _check_shape(name: str, dense: Tensor, pattern: BlockPattern) -> Tensor:
    if tuple(dense.shape) != pattern.shape:
        raise InvalidArgument(f"{name} has shape {list(dense.shape)}; the pattern's is {list(pattern.shape)}")
    return dense


def _check_kind(name: str, tensor: Tensor) -> None:
    """Raises InvalidArgument for what the dispatcher would send elsewhere: sparse, nested, or no tensor at all."""
    if not isinstance(tensor, Tensor):
        raise InvalidArgument(f"{name} is a {type(tensor).__name__}; it must be a tensor")
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"{name} has layout {tensor.layout}; it must be strided: pass {name}.to_dense()")


def _autocast(
    dtype: torch.dtype, x: Tensor, values: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What autocast does to a linear layer: float operands but float64 are cast; a float32 bias is served as it is."""
    casts = (torch.float32, torch.float16, torch.bfloat16)
    x = x.to(dtype) if x.dtype in casts else x
    values = values.to(dtype) if values.dtype in casts else values
    if bias is not None and bias.dtype in casts[1:]:
        bias = bias.to(dtype)
    return x, values, bias


def _is_dense(backend: str, x: Tensor, values: Tensor, pattern: BlockPattern) -> bool:
    """Whether the dense product runs.

    torch.compile makes a graph for each answer. An exported program has one for all tokens it may be given: the dense
    product, unless none of them are enough.
    """
    if backend == "dense":
        return True
    features = x.shape[-1] if x.dim() else 1
    tokens, least = x.numel() // max(features, 1), gain.dense_from(pattern, x.dtype, values.device)
    if torch.compiler.is_exporting():
        return least != gain.NEVER and not statically_known_true(tokens < least)
    return tokens >= least


def _dense(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: BlockPattern,
    activation: str | None,
    metadata: Tensor | None,
) -> Tensor:
    """The same with the weight unpacked, [out_features, in_features], for the time of the product."""
    ops.check_linear(x, values, bias, pattern.blocks, pattern.shape, metadata)
    bias = None if bias is None else bias.to(x.dtype)
    y = torch.nn.functional.linear(x, unpack(values, pattern, metadata), bias)
    return y if activation is None else _ACTIVATIONS[activation](y)


def _any_requires_grad(x: Tensor, values: Tensor, bias: Tensor | None) -> bool:
    return x.requires_grad or values.requires_grad or (bias is not None and bias.requires_grad)


def _quoted(names: Iterable[str]) -> str:
    *most, last = names
    return ", ".join(f'"{name}"' for name in most) + f' or "{last}"'
