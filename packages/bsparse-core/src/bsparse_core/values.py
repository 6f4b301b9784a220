"""Dense matrices to stored values and back, on memory at addresses."""

from bsparse_core._handle import address, handle, integer
from bsparse_core._library import ffi, lib
from bsparse_core.context import Context
from bsparse_core.errors import check
from bsparse_core.pattern import Pattern
from bsparse_core.types import DType


def pack_values(
    context: Context, pattern: Pattern, dtype: DType | str, dense: int, ld: int, values: int, stream: int = 0
) -> None:
    """Copies the stored blocks of a dense matrix to values, with zeros in the padding of edge blocks.

    Args:
        dense: address of [rows, cols], row-major, ld elements from one row to the next.
        values: address of [blocks, block_rows, block_cols]: pattern.sizes(dtype)[0] bytes.
        stream: a CUDA stream; on the CPU the call returns when done.
    """
    check(
        lib.bsparse_pack(
            handle("context", context, Context),
            handle("pattern", pattern, Pattern),
            DType.of("dtype", dtype),
            address("dense", dense),
            integer("ld", ld, 64),
            address("values", values),
            ffi.NULL,
            address("stream", stream),
        )
    )


def unpack_values(
    context: Context, pattern: Pattern, dtype: DType | str, values: int, dense: int, ld: int, stream: int = 0
) -> None:
    """The inverse of pack_values; writes zeros where no block is stored."""
    check(
        lib.bsparse_unpack(
            handle("context", context, Context),
            handle("pattern", pattern, Pattern),
            DType.of("dtype", dtype),
            address("values", values),
            ffi.NULL,
            address("dense", dense),
            integer("ld", ld, 64),
            address("stream", stream),
        )
    )
