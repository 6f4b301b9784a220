"""The operators on real tensors: from tensors to addresses, leading dimensions, workspace and stream.

One implementation serves the CPU and CUDA: the plan belongs to the tensors' device, and memory comes from torch.
"""

import torch
from torch import Tensor

from bsparse_core import InvalidArgument
from bsparse_torch import ops, plans, positions


def matrix(dense: Tensor) -> tuple[Tensor, int, int]:
    """Dense [..., n] as memory of [tokens, n]: a tensor that begins there, tokens and leading dimension.

    Copies only where the strides allow no such view.
    """
    features = dense.shape[-1]
    if dense.is_contiguous():
        return dense, dense.numel() // features, features
    flat = dense.reshape(-1, features)  # [tokens, n]
    tokens = flat.shape[0]
    if (features > 1 and flat.stride(1) != 1) or (tokens > 1 and flat.stride(0) < features):
        flat = flat.contiguous()
    return flat, tokens, flat.stride(0) if tokens > 1 else features


def _memory(prepared: plans.Prepared, tokens: int, operand: Tensor) -> tuple[Tensor | None, int, int]:
    """What a run needs besides its operands: scratch memory, the address of the schedule, the current stream.

    The scratch memory is the stream's own: torch's allocator gives it away again only to what this stream runs later.
    """
    size = prepared.workspace_bytes(tokens)
    workspace = operand.new_empty(size, dtype=torch.uint8) if size else None  # torch aligns to 64 bytes
    if not operand.is_cuda:
        return workspace, 0, 0
    stream = torch._C._cuda_getCurrentRawStream(operand.get_device())
    return workspace, prepared.schedule_for(stream), stream


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _multiply(
    prepared: plans.Prepared,
    tokens: int,
    b: Tensor,
    ldb: int,
    values: Tensor,
    metadata: Tensor | None,
    d: Tensor,
    aux: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Runs spmm or spmm_t; d and aux are contiguous, [..., features]."""
    workspace, schedule, stream = _memory(prepared, tokens, b)
    features = d.shape[-1]
    prepared.plan.run(
        tokens=tokens,
        b=b.data_ptr(),
        ldb=ldb,
        values=values.data_ptr(),
        metadata=_address(metadata),
        d=d.data_ptr(),
        ldd=features,
        aux=_address(aux),
        ldaux=features,
        bias=_address(bias),
        schedule=schedule,
        workspace=_address(workspace),
        stream=stream,
    )


def forward(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    host: plans.HostPattern,
    activation: str,
    keep_aux: bool,
    metadata: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """y [..., out_features] = act(x W^T + bias), and aux, the value before the activation, of operands that fit."""
    out_features = host.pattern.rows
    y = x.new_empty(*x.shape[:-1], out_features)
    aux = torch.empty_like(y) if keep_aux else None
    flat, tokens, ld = matrix(x)
    if not tokens:
        return y, aux
    values = values.contiguous()
    metadata = None if metadata is None else metadata.contiguous()
    bias_dtype = None
    if bias is not None:
        bias, bias_dtype = bias.contiguous(), bias.dtype
    prepared = host.plan("spmm", x.dtype, x.device, activation, bias_dtype)
    _multiply(prepared, tokens, flat, ld, values, metadata, y, aux, bias)
    return y, aux


def linear(
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
    """The operator: y, and aux or an empty tensor."""
    shape = (out_features, in_features)
    ops.check_linear(x, values, bias, col_indices.shape[0], shape, metadata)
    format, block = positions.layout(values, metadata)
    host = plans.find(pattern_key, row_offsets, col_indices, shape, block, format)
    y, aux = forward(x, values, bias, host, activation, keep_aux, metadata)
    return y, x.new_empty(0) if aux is None else aux


def grad_input(
    dy: Tensor,
    values: Tensor,
    row_offsets: Tensor,
    col_indices: Tensor,
    pattern_key: int,
    out_features: int,
    in_features: int,
    metadata: Tensor | None = None,
) -> Tensor:
    """dx [..., in_features] = dy W."""
    ops.check_grad_input(dy, values, col_indices.shape[0], out_features, metadata)
    format, block = positions.layout(values, metadata)
    host = plans.find(pattern_key, row_offsets, col_indices, (out_features, in_features), block, format)
    dx = dy.new_empty(*dy.shape[:-1], in_features)
    flat, tokens, ld = matrix(dy)
    if not tokens:
        return dx
    values = values.contiguous()
    metadata = None if metadata is None else metadata.contiguous()
    prepared = host.plan("spmm_t", dy.dtype, dy.device, "none", None)
    _multiply(prepared, tokens, flat, ld, values, metadata, dx)
    return dx


def grad_values(
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
    """dW = dy^T x at the stored blocks or what metadata keeps of them, shaped as values, zero in the padding."""
    shape = (out_features, in_features)
    ops.check_grad_values(dy, x, shape)
    format, block = positions.format_of(metadata), (block_rows, block_cols)
    host = plans.find(pattern_key, row_offsets, col_indices, shape, block, format)
    if metadata is not None:
        _check_metadata(metadata, host, x)
        metadata = metadata.contiguous()
    size = ops.values_shape(col_indices.shape[0], block, metadata)
    flat_dy, tokens, ld_dy = matrix(dy)
    if not tokens or not col_indices.shape[0]:
        return x.new_zeros(size)
    dw = x.new_empty(size)
    flat_x, _, ld_x = matrix(x)
    prepared = host.plan("sddmm", x.dtype, x.device, "none", None)
    workspace, schedule, stream = _memory(prepared, tokens, x)
    prepared.plan.run(
        tokens=tokens,
        a=flat_dy.data_ptr(),
        lda=ld_dy,
        b=flat_x.data_ptr(),
        ldb=ld_x,
        values=dw.data_ptr(),
        metadata=_address(metadata),
        schedule=schedule,
        workspace=_address(workspace),
        stream=stream,
    )
    return dw


def _check_metadata(metadata: Tensor, host: plans.HostPattern, x: Tensor) -> None:
    """What check_values does where values are given."""
    shape = host.pattern.metadata_shape
    if metadata.dtype is not torch.uint8 or metadata.device != x.device or tuple(metadata.shape) != shape:
        raise InvalidArgument(
            f"metadata is {metadata.dtype} {list(metadata.shape)} on {metadata.device}; the pattern needs torch.uint8 "
            f"{list(shape or ())} on {x.device}: pass the metadata of the values"
        )


for _name, _function in (("linear", linear), ("grad_input", grad_input), ("grad_values", grad_values)):
    torch.library.impl(f"bsparse::{_name}", ("cpu", "cuda"), _function)
