"""NumPy arrays as C takes them: dtypes, addresses, leading dimensions, orders; and the shapes that they must have."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bsparse_core.errors import InvalidArgument
from bsparse_core.pattern import Pattern
from bsparse_core.types import DType, Format, Order

Array = NDArray[Any]

_DTYPES = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16, "float64": DType.F64}


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def operand(array: Array) -> tuple[Array, int, Order]:
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
    return plain(array), max(cols, 1), Order.ROW_MAJOR


def plain(array: Array) -> Array:
    """The array itself where it is C-contiguous and aligned, otherwise a copy that is."""
    return np.require(array, requirements=("C", "A"))


def transposed(order: Order) -> Order:
    return Order.COL_MAJOR if order is Order.ROW_MAJOR else Order.ROW_MAJOR


def kind_of(name: str, array: Array, dtype: DType | str | None) -> DType:
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


def out_kind(kind: DType, out_dtype: DType | str | None) -> DType:
    return kind if out_dtype is None else DType.of("out_dtype", out_dtype)


def out_numpy(kind: DType, out: DType, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """The NumPy dtype of a result: that of the operands, or the one that C's rule leaves: float32."""
    if out not in (kind, DType.F32):
        raise InvalidArgument(
            f"out_dtype is {out}; with operands of {kind} it must be {kind} or f32: leave it out for {kind}"
        )
    return dtype if out is kind else np.dtype(np.float32)


def bias_kind(bias: Array, out: DType, y: Array) -> DType:
    if bias.dtype == y.dtype:
        return out
    if bias.dtype == np.float32:
        return DType.F32
    raise InvalidArgument(f"bias has dtype {bias.dtype}; it must be {y.dtype}, as the result, or float32: use astype")


def require_values(pattern: Pattern, values: Array) -> None:
    meaning = "the pattern's blocks" if pattern.format is not Format.SEMI24 else "half the pattern's cols"
    require_shape("values", values, pattern.values_shape, f"{meaning}, as pack gives them")


def positions(pattern: Pattern, metadata: Array | None) -> tuple[Array | None, int]:
    """The metadata that a pattern needs, C-contiguous, and its address; None and 0 for "bsr"."""
    shape = pattern.metadata_shape
    if shape is None:
        if metadata is not None:
            raise InvalidArgument("metadata is given, but a pattern of format bsr has none: leave it out")
        return None, 0
    if metadata is None:
        raise InvalidArgument(
            f"metadata is missing; a pattern of format {pattern.format} needs uint8 {list(shape)}: pass what pack gave "
            f"beside the values"
        )
    require_shape("metadata", metadata, shape, "two positions for each 4 columns, as pack gives them")
    if metadata.dtype != np.uint8:
        raise InvalidArgument(f"metadata has dtype {metadata.dtype}; it must be uint8: pass what pack gave")
    metadata = plain(metadata)
    return metadata, address(metadata)


def require_shape(name: str, array: Array, shape: tuple[int | None, ...], meaning: str) -> None:
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"{name} is a {type(array).__name__}; it must be a NumPy array: use np.asarray")
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("tokens" if n is None else str(n) for n in shape)
        raise InvalidArgument(
            f"{name} has shape {list(array.shape)}; it must be [{wanted}], {meaning}: pass an array of that shape"
        )


def require_same_dtype(name: str, array: Array, other_name: str, other: Array) -> None:
    if array.dtype != other.dtype:
        raise InvalidArgument(
            f"{name} has dtype {array.dtype}, {other_name} has {other.dtype}; both need the same: use astype"
        )
