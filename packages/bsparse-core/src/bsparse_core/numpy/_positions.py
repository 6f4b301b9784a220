"""2:4 positions of an element mask. A byte of the mask's bits, eight columns, becomes a byte of metadata by a table."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bsparse_core.errors import InvalidArgument
from bsparse_core.pattern import Pattern

Array = NDArray[Any]


def _two_of(bits: int) -> tuple[int, int]:
    """The columns that a group keeps: those of its bits, filled up with the lowest others."""
    columns = sorted(range(4), key=lambda column: not bits >> column & 1)  # the set ones first, each part ascending
    first, second = sorted(columns[:2])
    return first, second


_BITS = np.arange(256)
_COUNTS = np.array([bits.bit_count() for bits in range(16)])
_TWO = np.array([_two_of(bits) for bits in range(16)])
_NIBBLES = _TWO[:, 0] | _TWO[:, 1] << 2
_METADATA = (_NIBBLES[_BITS & 15] | _NIBBLES[_BITS >> 4] << 4).astype(np.uint8)  # [256]
_CHOSEN = np.arange(16)[:, None] >> _TWO & 1  # [16, 2]: whether the mask has it, or it fills up
_KEPT = np.hstack([_CHOSEN[_BITS & 15], _CHOSEN[_BITS >> 4]]).astype(bool)  # [256, 4]
_FULL = (_COUNTS[_BITS & 15] > 2) | (_COUNTS[_BITS >> 4] > 2)  # [256]


def of_mask(pattern: Pattern, mask: Array) -> tuple[Array, Array]:
    """What a bool mask [rows, cols] keeps, as metadata, and where it keeps nothing, as bool of the values' shape.

    Raises InvalidArgument where it keeps more than two of a group that the pattern stores.
    """
    octets = np.packbits(_stored(pattern, mask), axis=-1, bitorder="little")  # [blocks, block_rows, block_cols / 8]
    full = _FULL[octets]
    if full.any():
        raise _too_many(pattern, octets, np.argwhere(full)[0])
    return _METADATA[octets].reshape(pattern.metadata_shape), ~_KEPT[octets].reshape(pattern.values_shape)


def _stored(pattern: Pattern, mask: Array) -> Array:
    """The stored blocks of a mask: bool [blocks, block_rows, block_cols], False in the padding."""
    (height, width), grid = pattern.block, (pattern.row_blocks, pattern.col_blocks)
    padded = np.zeros((grid[0] * height, grid[1] * width), bool)
    padded[: pattern.rows, : pattern.cols] = mask
    block_rows = np.repeat(np.arange(grid[0]), np.diff(pattern.row_offsets))
    stored: Array = padded.reshape(grid[0], height, grid[1], width)[block_rows, :, np.asarray(pattern.col_indices)]
    return stored


def _too_many(pattern: Pattern, octets: Array, where: Array) -> InvalidArgument:
    """The error on a byte of the mask's bits, at [block, row in it, byte]."""
    block, line, byte = map(int, where)
    bits = int(octets[block, line, byte])
    half = 0 if _COUNTS[bits & 15] > 2 else 1
    block_row = int(np.searchsorted(np.asarray(pattern.row_offsets), block, side="right")) - 1
    row = block_row * pattern.block[0] + line
    column = pattern.col_indices[block] * pattern.block[1] + 8 * byte + 4 * half
    return InvalidArgument(
        f"mask keeps {_COUNTS[bits >> 4 * half & 15]} of row {row}, columns {column} to {column + 3}; {pattern.format} "
        f"stores at most 2 of each 4 columns: set the others to False, or leave mask out to keep the largest"
    )
