"""Block-sparse products of NumPy arrays, on the CPU.

Arrays are float32, float64, float16 or ml_dtypes.bfloat16; uint16 arrays are taken for bf16 where dtype="bf16" says so.
Strided arrays are read in place where one leading dimension can express their strides, and copied otherwise.
Products run on one context for the process; plans are kept for the patterns used last.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from bsparse_core.context import Context
from bsparse_core.errors import InvalidArgument
from bsparse_core.numpy import _positions
from bsparse_core.numpy._arrays import (
    Array,
    address,
    bias_kind,
    kind_of,
    operand,
    out_kind,
    out_numpy,
    plain,
    positions,
    require_same_dtype,
    require_shape,
    require_values,
    transposed,
)
from bsparse_core.pattern import Pattern
from bsparse_core.plan import Plan
from bsparse_core.types import DType, Epilogue, Format, Op, Order
from bsparse_core.values import pack_values, pack_values_at, unpack_values

__all__ = ["pack", "sddmm", "spmm", "spmm_t", "unpack"]

_ALIGNMENT = 64  # of a workspace: bsparse_plan_run


def pack(pattern: Pattern, dense: Array, *, mask: Array | None = None, dtype: DType | str | None = None) -> Any:
    """What the pattern stores of dense [rows, cols]: values of its dtype, zero in the padding of edge blocks.

    Args:
        mask: 2:4 formats: bool [rows, cols], which elements to keep: at most two of each group of 4 columns. Where it
            has fewer, the lowest other columns are stored too, as zero. None: the two largest in magnitude, in float32
            the larger of each pair; of equals the first; NaN is largest.
        dtype: "bf16" where dense is a uint16 array that holds its bits.

    Returns:
        "bsr": values [blocks, block_rows, block_cols]. 2:4 formats: (values, metadata), of the pattern's values_shape
        and, in uint8, metadata_shape.

    Raises:
        InvalidArgument: dense has another shape than the pattern, or a dtype that bsparse has not; a mask that keeps
            more than two of a group.
    """
    shape = pattern.rows, pattern.cols
    require_shape("dense", dense, shape, "the pattern's rows and cols")
    kind = kind_of("dense", dense, dtype)
    dense, ld, order = operand(dense)
    if order is Order.COL_MAJOR:
        dense, ld = plain(dense), pattern.cols
    values = np.empty(pattern.values_shape, dense.dtype)
    whence = _context(), pattern, kind, address(dense), ld
    if mask is not None:
        metadata, absent = _positions.of_mask(pattern, _element_mask(pattern, mask))
        pack_values_at(*whence, address(metadata), address(values))
        values[absent] = 0
        return values, metadata
    if pattern.metadata_shape is None:
        pack_values(*whence, address(values))
        return values
    metadata = np.empty(pattern.metadata_shape, np.uint8)
    pack_values(*whence, address(values), metadata=address(metadata))
    return values, metadata


def _element_mask(pattern: Pattern, mask: Array) -> Array:
    if pattern.format is Format.BSR:
        raise InvalidArgument("mask is given, but a pattern of format bsr keeps whole blocks: leave it out")
    require_shape("mask", mask, (pattern.rows, pattern.cols), "one entry an element")
    if mask.dtype != np.bool_:
        raise InvalidArgument(f"mask has dtype {mask.dtype}; it must be bool, one entry an element: pass mask != 0")
    return mask


def unpack(
    pattern: Pattern, values: Array, metadata: Array | None = None, *, dtype: DType | str | None = None
) -> Array:
    """The inverse of pack: dense [rows, cols] of the values' dtype, zero where nothing is stored.

    Args:
        metadata: 2:4 formats: what pack gave beside the values.

    Raises:
        InvalidArgument: a shape or dtype that does not fit; metadata that is missing, or holds no ascending positions.
    """
    require_values(pattern, values)
    kind, values = kind_of("values", values, dtype), plain(values)
    metadata, where = positions(pattern, metadata)
    dense = np.empty((pattern.rows, pattern.cols), values.dtype)
    unpack_values(_context(), pattern, kind, address(values), address(dense), pattern.cols, metadata=where)
    return dense


def spmm(
    pattern: Pattern,
    values: Array,
    x: Array,
    bias: Array | None = None,
    activation: str | None = None,
    *,
    metadata: Array | None = None,
    out_dtype: DType | str | None = None,
    dtype: DType | str | None = None,
) -> Array:
    """Y = act(X S^T + bias): a linear layer's forward with weight S.

    Args:
        pattern, values: S [rows, cols], as pack gives it.
        x: [tokens, cols], of the values' dtype; tokens may be 0.
        bias: [rows], of the result's dtype or float32.
        activation: None, "relu", "gelu", "gelu_tanh" or "silu".
        metadata: 2:4 formats: uint8 of the pattern's metadata_shape, as pack gives it.
        out_dtype: of the result: that of the values, or "f32"; None: that of the values.
        dtype: "bf16" where values and x are uint16 arrays that hold its bits.

    Returns:
        Y [tokens, rows], C-contiguous.

    Raises:
        InvalidArgument: a shape or dtype that does not fit; the message names the array and both shapes or dtypes.
            Metadata that is missing, is given for "bsr", or holds no ascending positions.
    """
    return _dense_product(Op.SPMM, pattern, values, ("x", x), bias, activation, metadata, out_dtype, dtype)


def spmm_t(
    pattern: Pattern,
    values: Array,
    dy: Array,
    bias: Array | None = None,
    activation: str | None = None,
    *,
    metadata: Array | None = None,
    out_dtype: DType | str | None = None,
    dtype: DType | str | None = None,
) -> Array:
    """dX = act(dY S + bias): the gradient of a linear layer's input. dy [tokens, rows] to [tokens, cols]; bias [cols].

    The rest is as in spmm.
    """
    return _dense_product(Op.SPMM_T, pattern, values, ("dy", dy), bias, activation, metadata, out_dtype, dtype)


def sddmm(
    pattern: Pattern,
    dy: Array,
    x: Array,
    metadata: Array | None = None,
    *,
    out_dtype: DType | str | None = None,
    dtype: DType | str | None = None,
) -> Array:
    """dY^T X where the pattern stores something: the gradient of a linear layer's weight.

    Args:
        dy: [tokens, rows]. x: [tokens, cols], of dy's dtype. tokens may be 0: the result is zero.
        metadata: 2:4 formats: the positions of the weight's values, as pack gave them; the result is at the same.
        out_dtype: that of dy, or "f32"; None: that of dy.
        dtype: "bf16" where dy and x are uint16 arrays that hold its bits.

    Returns:
        Values of the pattern's values_shape, zero in the padding of edge blocks.
    """
    require_shape("dy", dy, (None, pattern.rows), "[tokens, rows]")
    require_shape("x", x, (len(dy), pattern.cols), "dy's tokens and the pattern's cols")
    kind = kind_of("dy", dy, dtype)
    require_same_dtype("x", x, "dy", dy)
    out = out_kind(kind, out_dtype)
    metadata, where = positions(pattern, metadata)
    a, lda, a_lies = operand(dy)
    b, ldb, b_lies = operand(x)
    plan = _plan(pattern, op=Op.SDDMM, dtype=kind, out_dtype=out, a_order=transposed(a_lies), b_order=b_lies)
    values = np.empty(pattern.values_shape, out_numpy(kind, out, dy.dtype))
    _run(plan, tokens=len(dy), a=address(a), lda=lda, b=address(b), ldb=ldb, values=address(values), metadata=where)
    return values


def _dense_product(
    op: Op,
    pattern: Pattern,
    values: Array,
    named: tuple[str, Array],
    bias: Array | None,
    activation: str | None,
    metadata: Array | None,
    out_dtype: DType | str | None,
    dtype: DType | str | None,
) -> Array:
    name, x = named
    inner, outer = (pattern.cols, pattern.rows) if op is Op.SPMM else (pattern.rows, pattern.cols)
    require_values(pattern, values)
    require_shape(name, x, (None, inner), f"[tokens, {'cols' if op is Op.SPMM else 'rows'}]")
    kind, values = kind_of("values", values, dtype), plain(values)
    metadata, where = positions(pattern, metadata)
    require_same_dtype(name, x, "values", values)
    out = out_kind(kind, out_dtype)
    epilogue = Epilogue.NONE if activation is None else Epilogue.of("activation", activation)
    b, ldb, lies = operand(x)  # [tokens, inner]; B is its transpose
    y = np.empty((len(x), outer), out_numpy(kind, out, values.dtype))  # [tokens, outer]; D is its transpose
    bias_dtype = None
    if bias is not None:
        require_shape("bias", bias, (outer,), "one entry for each column of the result")
        bias_dtype = bias_kind(bias, out, y)
        bias = plain(bias)
    plan = _plan(
        pattern, op=op, dtype=kind, out_dtype=out, bias_dtype=bias_dtype, epilogue=epilogue, b_order=transposed(lies)
    )
    _run(
        plan,
        tokens=len(x),
        b=address(b),
        ldb=ldb,
        values=address(values),
        metadata=where,
        d=address(y),
        ldd=outer,
        bias=0 if bias is None else address(bias),
    )
    return y


def _run(plan: Plan, tokens: int, **args: int) -> None:
    scratch = np.empty(plan.workspace_bytes(tokens) + _ALIGNMENT, np.uint8)
    plan.run(tokens=tokens, workspace=-(-address(scratch) // _ALIGNMENT) * _ALIGNMENT, **args)


@lru_cache(maxsize=1)
def _context() -> Context:
    return Context("cpu")


@lru_cache(maxsize=128)
def _plan(pattern: Pattern, **request: Any) -> Plan:
    return Plan(_context(), pattern, **request)
