"""The C library's enumerations. Every function takes a member, or its name in lower case: DType.BF16 or "bf16"."""

from enum import IntEnum, IntFlag
from typing import TypeVar

from bsparse_core._library import lib
from bsparse_core.errors import InvalidArgument

Member = TypeVar("Member", bound="Named")


class Named(IntEnum):
    """An enumeration whose members can be given by name."""

    @classmethod
    def of(cls: type[Member], field: str, value: "Member | str") -> Member:
        """The member that value is or names. Raises InvalidArgument, naming the field, where it is neither."""
        if isinstance(value, cls):
            return value
        for member in cls:
            if value == member.label:
                return member
        names = ", ".join(member.label for member in cls)
        raise InvalidArgument(f"{field} is {value!r}; it must be one of {names}")

    @property
    def label(self) -> str:
        """The member's name in lower case, as functions take it."""
        return self.name.lower()

    def __str__(self) -> str:
        return self.label


class Backend(Named):
    CPU = 1
    CUDA = 2


class CpuIsa(Named):
    """Instruction sets of the CPU backend; BEST is the best that this processor runs."""

    BEST = 0
    PORTABLE = 1
    AVX2 = 2
    AVX512 = 3
    AVX512_BF16 = 4


class DType(Named):
    """Types of elements. F8E4M3 and I8 are reserved; F64 is for references, on the CPU."""

    F32 = 1
    F16 = 2
    BF16 = 3
    F8E4M3 = 4
    I8 = 5
    F64 = 6


class Format(Named):
    """Sparse formats: whole blocks; 2 of every 4 elements of a row; blocks that are 2:4 inside."""

    BSR = 1
    SEMI24 = 2
    BSR24 = 3


class Op(Named):
    """Products: D = S B, D = S^T B, and S = A B where S is stored."""

    SPMM = 1
    SPMM_T = 2
    SDDMM = 3


class Order(Named):
    """Memory order of a dense operand; DEFAULT is that of row-major activations (bsparse.h)."""

    DEFAULT = 0
    ROW_MAJOR = 1
    COL_MAJOR = 2


class Epilogue(Named):
    """The activation that a product ends with."""

    NONE = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4


class Flags(IntFlag):
    """Of a plan, combined by |."""

    ALLOW_ATOMICS = 1
    ALLOW_TF32 = 2
    FORCE_SM80 = 4


_PREFIXES: dict[type[IntEnum] | type[IntFlag], str] = {
    Backend: "BSPARSE_BACKEND_",
    CpuIsa: "BSPARSE_CPU_",
    DType: "BSPARSE_",
    Format: "BSPARSE_",
    Op: "BSPARSE_",
    Order: "BSPARSE_",
    Epilogue: "BSPARSE_EPILOGUE_",
    Flags: "BSPARSE_",
}


def _compare_with_c() -> None:
    """Every member above has C's value."""
    for enumeration, prefix in _PREFIXES.items():
        for member in enumeration:
            name = "BSPARSE_ORDER_DEFAULT" if member is Order.DEFAULT else f"{prefix}{member.name}"
            if getattr(lib, name) != member.value:
                raise ImportError(f"{enumeration.__name__}.{member.name} is {member.value} here, {name} differs in C")


_compare_with_c()
