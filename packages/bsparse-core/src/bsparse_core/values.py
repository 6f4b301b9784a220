"""Dense matrices to stored values and back, on memory at addresses."""

from bsparse_core._handle import address, handle, integer
from bsparse_core._library import lib
from bsparse_core.context import Context
from bsparse_core.errors import check
from bsparse_core.pattern import Pattern
from bsparse_core.types import DType


def pack_values(
    context: Context,
    pattern: Pattern,
    dtype: DType | str,
    dense: int,
    ld: int,
    values: int,
    stream: int = 0,
    metadata: int = 0,
) -> None:
    """Copies what a pattern stores of a dense matrix to values, with zeros in the padding of edge blocks.

    A 2:4 format keeps the two of each group of four that are largest in magnitude; in f32 the larger of each pair, as
    tensor cores have it. Of equals the first is kept; NaN is largest.

    Args:
        dense: address of [rows, cols], row-major, ld elements from one row to the next.
        values: address of pattern.values_shape: pattern.sizes(dtype)[0] bytes.
        stream: a CUDA stream; on the CPU the call returns when done.
        metadata: address of uint8 pattern.metadata_shape, written: the positions that were kept; 0 for "bsr".
    """
    check(
        lib.bsparse_pack(
            handle("context", context, Context),
            handle("pattern", pattern, Pattern),
            DType.of("dtype", dtype),
            address("dense", dense),
            integer("ld", ld, 64),
            address("values", values),
            address("metadata", metadata),
            address("stream", stream),
        )
    )


def pack_values_at(
    context: Context,
    pattern: Pattern,
    dtype: DType | str,
    dense: int,
    ld: int,
    metadata: int,
    values: int,
    stream: int = 0,
) -> None:
    """pack_values of a 2:4 format at positions that are given: those of a mask, or of a layer that was packed before.

    Args:
        metadata: address of uint8 pattern.metadata_shape, read; on the CPU it is checked before anything is written.
    """
    check(
        lib.bsparse_pack_at(
            handle("context", context, Context),
            handle("pattern", pattern, Pattern),
            DType.of("dtype", dtype),
            address("dense", dense),
            integer("ld", ld, 64),
            address("metadata", metadata),
            address("values", values),
            address("stream", stream),
        )
    )


def unpack_values(
    context: Context,
    pattern: Pattern,
    dtype: DType | str,
    values: int,
    dense: int,
    ld: int,
    stream: int = 0,
    metadata: int = 0,
) -> None:
    """The inverse of pack_values; writes zeros where nothing is stored. On the CPU metadata is checked first."""
    check(
        lib.bsparse_unpack(
            handle("context", context, Context),
            handle("pattern", pattern, Pattern),
            DType.of("dtype", dtype),
            address("values", values),
            address("metadata", metadata),
            address("dense", dense),
            integer("ld", ld, 64),
            address("stream", stream),
        )
    )


def check_metadata(pattern: Pattern, metadata: int) -> None:
    """Raises InvalidArgument unless every group of 4 has two positions that ascend: before metadata goes to a device.

    Args:
        metadata: address of uint8 pattern.metadata_shape, in host memory; 0 for "bsr".
    """
    check(lib.bsparse_check_metadata(handle("pattern", pattern, Pattern), address("metadata", metadata)))
