"""Index arrays and block masks in whatever form a caller has them, as plain Python and int32."""

import struct
from array import array
from typing import Any

from bsparse_core.errors import InvalidArgument

Integers = Any  # a sequence of int, or a buffer of any integer type: array, memoryview, NumPy array

# Of buffers, as the struct module writes them: any byte order.
_INTEGER_FORMATS = {order + code for order in ("", "@", "=", "<", ">", "!") for code in "bBhHiIlLqQ"} | {"n", "N"}


def int32(field: str, values: Integers) -> memoryview:
    """A read-only int32 copy of 1-D integers."""
    if values is None:
        raise InvalidArgument(f"{field} is missing; pass a sequence of integers, or use Pattern.from_mask")
    items: Any
    try:
        view = memoryview(values)
    except TypeError:
        items = _items(field, values)
    except ValueError as error:  # NumPy's dates, a released memoryview
        raise InvalidArgument(f"{field} is a buffer that cannot be read ({error}): pass int32") from None
    else:
        if view.ndim != 1 or view.format not in _INTEGER_FORMATS:
            raise InvalidArgument(
                f"{field} is {view.ndim}-D of type {view.format!r}; it must be 1-D and hold integers: pass int32"
            )
        order, code = view.format[:-1], view.format[-1]
        items = struct.unpack(f"{order}{len(view)}{code}", view.tobytes())
    try:
        copy = array("i", items)
    except OverflowError:
        beyond = next(item for item in items if not -(2**31) <= item < 2**31)
        raise InvalidArgument(f"{field} holds {beyond}; it must fit in 32 bits: pass int32") from None
    except TypeError:
        raise InvalidArgument(f"{field} is {items!r}; it must be a sequence of integers: pass int32") from None
    return memoryview(copy.tobytes()).cast("i")


def _items(field: str, values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise InvalidArgument(f"{field} is {values!r}; it must be a sequence of integers: pass int32") from None


def mask_rows(mask: Any) -> list[list[bool]]:
    """The rows of a 2-D bool mask, all of one length."""
    try:
        view: Any = memoryview(mask)
    except TypeError:
        lines = _mask_lists(mask)
    except ValueError as error:
        raise InvalidArgument(f"mask is a buffer that cannot be read ({error}): pass a bool array") from None
    else:
        if view.ndim != 2 or view.format != "?":
            raise InvalidArgument(
                f"mask is {view.ndim}-D of type {view.format!r}; it must be 2-D and bool, one entry a block: "
                f"pass (mask != 0) for the blocks that are not zero"
            )
        lines = view.tolist()
    lengths = sorted({len(line) for line in lines})
    if len(lengths) != 1 or not lengths[0]:
        raise InvalidArgument(
            f"mask has rows of {lengths} entries; all need the same, at least 1: add False to short ones"
        )
    return lines


def _mask_lists(mask: Any) -> list[list[bool]]:
    """The rows of a nested sequence that holds nothing but True and False."""
    try:
        lines = [list(line) for line in mask]
        wrong = [entry for line in lines for entry in line if entry not in (False, True)]
    except (TypeError, ValueError):  # less than 2-D; entries that are arrays themselves
        raise InvalidArgument(
            f"mask is {mask!r}; it must be 2-D and bool, one entry a block: pass lists of bool"
        ) from None
    if wrong:
        raise InvalidArgument(f"mask holds {wrong[0]!r}; it must hold True or False, one entry a block: pass x != 0")
    return lines
