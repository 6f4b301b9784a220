"""Block-sparse products of NumPy arrays, on the CPU.

Arrays are float32, float64, float16 or ml_dtypes.bfloat16; uint16 arrays are taken for bf16 where dtype="bf16" says so.
Strided arrays are read in place where one leading dimension can express their strides, and copied otherwise.
Products run on one context for the process; plans are kept for the patterns used last.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bsparse_core.context import Context
from bsparse_core.errors import InvalidArgument
from bsparse_core.pattern import Pattern
from bsparse_core.plan import Plan
from bsparse_core.types import DType, Epilogue, Op, Order
from bsparse_core.values import pack_values, unpack_values

__all__ = ["pack", "sddmm", "spmm", "spmm_t", "unpack"]

Array = NDArray[Any]

_DTYPES = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16, "float64": DType.F64}
_ALIGNMENT = 64  # of a workspace: bsparse_plan_run


def pack(pattern: Pattern, dense: Array, *, dtype: DType | str | None = None) -> Array:
    """The stored blocks of dense [rows, cols]: [blocks, block_rows, block_cols] of its dtype, zero in the padding.

    Raises:
        InvalidArgument: dense has another shape than the pattern, or a dtype that bsparse has not.
    """
    _require_shape("dense", dense, (pattern.rows, pattern.cols), "the pattern's rows and cols")
    kind = _kind("dense", dense, dtype)
    dense, ld, order = _operand(dense)
    if order is Order.COL_MAJOR:
        dense, ld = _plain(dense), pattern.cols
    values = np.empty((pattern.blocks, *pattern.block), dense.dtype)
    pack_values(_context(), pattern, kind, _address(dense), ld, _address(values))
    return values


def unpack(pattern: Pattern, values: Array, *, dtype: DType | str | None = None) -> Array:
    """The inverse of pack: dense [rows, cols] of the values' dtype, zero where no block is stored."""
    _require_values(pattern, values)
    kind, values = _kind("values", values, dtype), _plain(values)
    dense = np.empty((pattern.rows, pattern.cols), values.dtype)
    unpack_values(_context(), pattern, kind, _address(values), _address(dense), pattern.cols)
    return dense


def spmm(
    pattern: Pattern,
    values: Array,
    x: Array,
    bias: Array | None = None,
    activation: str | None = None,
    *,
    out_dtype: DType | str | None = None,
    dtype: DType | str | None = None,
) -> Array:
    """Y = act(X S^T + bias): a linear layer's forward with weight S.

    Args:
        pattern, values: S [rows, cols], as pack gives it.
        x: [tokens, cols], of the values' dtype; tokens may be 0.
        bias: [rows], of the result's dtype or float32.
        activation: None, "relu", "gelu", "gelu_tanh" or "silu".
        out_dtype: of the result: that of the values, or "f32"; None: that of the values.
        dtype: "bf16" where values and x are uint16 arrays that hold its bits.

    Returns:
        Y [tokens, rows], C-contiguous.

    Raises:
        InvalidArgument: a shape or dtype that does not fit; the message names the array and both shapes or dtypes.
    """
    return _dense_product(Op.SPMM, pattern, values, ("x", x), bias, activation, out_dtype, dtype)


def spmm_t(
    pattern: Pattern,
    values: Array,
    dy: Array,
    bias: Array | None = None,
    activation: str | None = None,
    *,
    out_dtype: DType | str | None = None,
    dtype: DType | str | None = None,
) -> Array:
    """dX = act(dY S + bias): the gradient of a linear layer's input. dy [tokens, rows] to [tokens, cols]; bias [cols].

    The rest is as in spmm.
    """
    return _dense_product(Op.SPMM_T, pattern, values, ("dy", dy), bias, activation, out_dtype, dtype)


def sddmm(
    pattern: Pattern,
    dy: Array,
    x: Array,
    *,
    out_dtype: DType | str | None = None,
    dtype: DType | str | None = None,
) -> Array:
    """dY^T X at the stored blocks: the gradient of a linear layer's weight.

    Args:
        dy: [tokens, rows]. x: [tokens, cols], of dy's dtype. tokens may be 0: the result is zero.
        out_dtype: that of dy, or "f32"; None: that of dy.
        dtype: "bf16" where dy and x are uint16 arrays that hold its bits.

    Returns:
        [blocks, block_rows, block_cols], zero in the padding of edge blocks.
    """
    _require_shape("dy", dy, (None, pattern.rows), "[tokens, rows]")
    _require_shape("x", x, (len(dy), pattern.cols), "dy's tokens and the pattern's cols")
    kind = _kind("dy", dy, dtype)
    _require_same_dtype("x", x, "dy", dy)
    out = _out_kind(kind, out_dtype)
    a, lda, a_lies = _operand(dy)
    b, ldb, b_lies = _operand(x)
    plan = _plan(pattern, op=Op.SDDMM, dtype=kind, out_dtype=out, a_order=_transposed(a_lies), b_order=b_lies)
    values = np.empty((pattern.blocks, *pattern.block), _out_numpy(kind, out, dy.dtype))
    _run(plan, tokens=len(dy), a=_address(a), lda=lda, b=_address(b), ldb=ldb, values=_address(values))
    return values


def _dense_product(
    op: Op,
    pattern: Pattern,
    values: Array,
    named: tuple[str, Array],
    bias: Array | None,
    activation: str | None,
    out_dtype: DType | str | None,
    dtype: DType | str | None,
) -> Array:
    name, x = named
    inner, outer = (pattern.cols, pattern.rows) if op is Op.SPMM else (pattern.rows, pattern.cols)
    _require_values(pattern, values)
    _require_shape(name, x, (None, inner), f"[tokens, {'cols' if op is Op.SPMM else 'rows'}]")
    kind, values = _kind("values", values, dtype), _plain(values)
    _require_same_dtype(name, x, "values", values)
    out = _out_kind(kind, out_dtype)
    epilogue = Epilogue.NONE if activation is None else Epilogue.of("activation", activation)
    b, ldb, lies = _operand(x)  # [tokens, inner]; B is its transpose
    y = np.empty((len(x), outer), _out_numpy(kind, out, values.dtype))  # [tokens, outer]; D is its transpose
    bias_kind = None
    if bias is not None:
        _require_shape("bias", bias, (outer,), "one entry for each column of the result")
        bias_kind = _bias_kind(bias, out, y)
        bias = _plain(bias)
    plan = _plan(
        pattern, op=op, dtype=kind, out_dtype=out, bias_dtype=bias_kind, epilogue=epilogue, b_order=_transposed(lies)
    )
    _run(
        plan,
        tokens=len(x),
        b=_address(b),
        ldb=ldb,
        values=_address(values),
        d=_address(y),
        ldd=outer,
        bias=0 if bias is None else _address(bias),
    )
    return y


def _run(plan: Plan, tokens: int, **args: int) -> None:
    scratch = np.empty(plan.workspace_bytes(tokens) + _ALIGNMENT, np.uint8)
    plan.run(tokens=tokens, workspace=-(-_address(scratch) // _ALIGNMENT) * _ALIGNMENT, **args)


@lru_cache(maxsize=1)
def _context() -> Context:
    return Context("cpu")


@lru_cache(maxsize=128)
def _plan(pattern: Pattern, **request: Any) -> Plan:
    return Plan(_context(), pattern, **request)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _operand(array: Array) -> tuple[Array, int, Order]:
    """A 2-D array, or a copy where C could not read it in place, with its leading dimension and order."""
    rows, cols = array.shape
    size = array.itemsize
    if array.flags.aligned:
        for order, (lines, line), (pitch, step) in (
            (Order.ROW_MAJOR, (rows, cols), array.strides),
            (Order.COL_MAJOR, (cols, rows), array.strides[::-1]),
        ):
            ld = line if lines <= 1 else pitch // size  # the pitch of a single line says nothing
            if (line <= 1 or step == size) and ld >= line and (lines <= 1 or pitch % size == 0):
                return array, max(ld, 1), order
    return _plain(array), max(cols, 1), Order.ROW_MAJOR


def _plain(array: Array) -> Array:
    """The array itself where it is C-contiguous and aligned, otherwise a copy that is."""
    return np.require(array, requirements=("C", "A"))


def _transposed(order: Order) -> Order:
    return Order.COL_MAJOR if order is Order.ROW_MAJOR else Order.ROW_MAJOR


def _kind(name: str, array: Array, dtype: DType | str | None) -> DType:
    """The bsparse dtype of an array; dtype says what a uint16 array holds, and otherwise must agree."""
    named = None if dtype is None else DType.of("dtype", dtype)
    if array.dtype == np.uint16 and named is DType.BF16:
        return DType.BF16
    kind = _DTYPES.get(array.dtype.name) if array.dtype.isnative else None
    if kind is None:
        hint = ', or dtype="bf16" if it holds the bits of bf16' if array.dtype == np.uint16 else ""
        raise InvalidArgument(
            f"{name} has dtype {array.dtype}; it must be one of {', '.join(_DTYPES)}: convert it with astype{hint}"
        )
    if named not in (None, kind):
        raise InvalidArgument(f"dtype is {named}, but {name} has dtype {array.dtype}: convert it, or leave dtype out")
    return kind


def _out_kind(kind: DType, out_dtype: DType | str | None) -> DType:
    return kind if out_dtype is None else DType.of("out_dtype", out_dtype)


def _out_numpy(kind: DType, out: DType, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The NumPy dtype of a result: that of the operands, or the one that C's rule leaves: float32."""
    if out not in (kind, DType.F32):
        raise InvalidArgument(
            f"out_dtype is {out}; with operands of {kind} it must be {kind} or f32: leave it out for {kind}"
        )
    return dtype if out is kind else np.dtype(np.float32)


def _bias_kind(bias: Array, out: DType, y: Array) -> DType:
    if bias.dtype == y.dtype:
        return out
    if bias.dtype == np.float32:
        return DType.F32
    raise InvalidArgument(f"bias has dtype {bias.dtype}; it must be {y.dtype}, as the result, or float32: use astype")


def _require_values(pattern: Pattern, values: Array) -> None:
    shape = (pattern.blocks, *pattern.block)
    _require_shape("values", values, shape, "the pattern's blocks, as pack gives them")


def _require_shape(name: str, array: Array, shape: tuple[int | None, ...], meaning: str) -> None:
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"{name} is a {type(array).__name__}; it must be a NumPy array: use np.asarray")
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("tokens" if n is None else str(n) for n in shape)
        raise InvalidArgument(
            f"{name} has shape {list(array.shape)}; it must be [{wanted}], {meaning}: pass an array of that shape"
        )


def _require_same_dtype(name: str, array: Array, other_name: str, other: Array) -> None:
    if array.dtype != other.dtype:
        raise InvalidArgument(
            f"{name} has dtype {array.dtype}, {other_name} has {other.dtype}; both need the same: use astype"
        )
