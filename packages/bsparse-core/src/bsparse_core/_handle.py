"""What Context, Pattern and Plan share: an owned C handle, attributes that never change, descriptions filled safely."""

import operator
from typing import Any

from bsparse_core._library import ffi
from bsparse_core.errors import InvalidArgument, check

_ADDRESS = ffi.typeof("void *")
_cast, _NULL = ffi.cast, ffi.NULL  # looked up once: a run is called often


class Frozen:
    """Attributes are set once, in __init__, and never again: any thread may share the object."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{name} of a {type(self).__name__} is fixed: make another {type(self).__name__}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} is fixed: it cannot be deleted")


def integer(field: str, value: Any, bits: int) -> int:
    """Value as an int that fits a signed C integer of so many bits. Raises InvalidArgument naming the field."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{field} is {value!r}; it must be an integer: pass an int") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        rule = f"it must fit in {bits} bits: pass -2**{bits - 1} to 2**{bits - 1} - 1"
        raise InvalidArgument(f"{field} is {number}; {rule}")
    return number


def describe(name: str, **fields: Any) -> Any:
    """A C struct bsparse_<name> with struct_size and these fields; integers are checked, pointers passed on."""
    description = ffi.new(f"bsparse_{name} *", {"struct_size": ffi.sizeof(f"bsparse_{name}")})
    types = dict(ffi.typeof(f"bsparse_{name}").fields)
    for field, value in fields.items():
        if types[field].type.kind == "primitive":
            value = integer(f"{name}.{field}", value, 8 * ffi.sizeof(types[field].type))
        setattr(description, field, value)
    return description


def address(field: str, value: Any) -> Any:
    """An address given as an int, as a void pointer. Raises InvalidArgument naming the field."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{field} is {value!r}; it must be an address, an int: pass 0 for none") from None
    if 0 <= number < 2**64:
        return _cast(_ADDRESS, number) if number else _NULL
    raise InvalidArgument(f"{field} is {number}; it must be an address, 0 to 2**64 - 1: pass 0 for none")


def handle(field: str, value: Any, kind: type[Frozen]) -> Any:
    """The C handle of a Context or Pattern. Raises InvalidArgument, naming the field, where value is none of kind."""
    if not isinstance(value, kind):
        name = kind.__name__
        raise InvalidArgument(f"{field} is {value!r}; it must be a {name}: pass bsparse_core.{name}(...)")
    return value._handle  # type: ignore[attr-defined]


def create(function: Any, destroy: Any, *arguments: Any) -> Any:
    """The handle that a bsparse_<noun>_create function makes; destroyed with the last reference to it."""
    out = ffi.new(ffi.typeof(function).args[0])
    check(function(out, *arguments))
    return ffi.gc(out[0], destroy)
