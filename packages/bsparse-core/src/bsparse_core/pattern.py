"""Pattern: which part of a matrix is stored."""

import hashlib
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Any

from bsparse_core._handle import Frozen, create, describe, integer
from bsparse_core._indices import Integers, int32, mask_rows
from bsparse_core._library import ffi, lib
from bsparse_core.errors import InvalidArgument, check
from bsparse_core.types import DType, Format

Block = int | tuple[int, int]

DEFAULT_BLOCK = (64, 64)


class Pattern(Frozen):
    """The stored blocks of a matrix [rows, cols], row by row, as BSR in SciPy and torch. Copies what it is given.

    Args:
        rows, cols: size of the matrix in elements, at least 1; they need not be multiples of the block.
        block: (block_rows, block_cols) in elements, or one int for a square block; None: (64, 64).
        row_offsets: [ceil(rows / block_rows) + 1] integers from 0, non-decreasing, ending at the number of blocks.
        col_indices: [blocks] integers, the block column of each stored block, strictly ascending within a block row.
        format: "bsr": whole blocks. "bsr24": 2:4 inside the blocks, block_cols a multiple of 8. "semi24": 2:4 in the
            whole matrix, cols a multiple of 8; it is one block, so block, row_offsets and col_indices may be left out.

    Which two of every four elements a 2:4 format keeps is no part of the pattern: metadata beside the values says it.
    Equal patterns compare equal, hash equal and have equal keys, in any process.

    Raises:
        InvalidArgument: sizes or indices that break a rule above; the message names it.
    """

    __slots__ = (
        "_handle", "block", "blocks", "col_blocks", "col_indices", "cols", "format", "key", "row_blocks", "row_offsets",
        "rows",
    )  # fmt: skip

    _handle: Any
    rows: int
    cols: int
    block: tuple[int, int]
    row_blocks: int  # ceil(rows / block_rows)
    col_blocks: int  # ceil(cols / block_cols)
    blocks: int  # stored
    row_offsets: memoryview  # int32 [row_blocks + 1], read-only
    col_indices: memoryview  # int32 [blocks], read-only
    format: Format
    key: int  # 63-bit digest of all of the above

    def __init__(
        self,
        rows: int,
        cols: int,
        block: Block | None = None,
        row_offsets: Integers = None,
        col_indices: Integers = None,
        format: Format | str = Format.BSR,
    ) -> None:
        self.format = Format.of("format", format)
        self.rows, self.cols = _positive("rows", rows), _positive("cols", cols)
        if self.format is Format.SEMI24:
            self.block = _whole(block, (self.rows, self.cols))
            row_offsets = (0, 1) if row_offsets is None else row_offsets
            col_indices = (0,) if col_indices is None else col_indices
        else:
            self.block = _pair(DEFAULT_BLOCK if block is None else block)
        self.row_blocks, self.col_blocks = -(-self.rows // self.block[0]), -(-self.cols // self.block[1])
        self.row_offsets = int32("row_offsets", row_offsets)
        self.col_indices = int32("col_indices", col_indices)
        self.blocks = len(self.col_indices)
        if len(self.row_offsets) != self.row_blocks + 1:
            raise InvalidArgument(
                f"row_offsets has {len(self.row_offsets)} entries; {self.rows} rows in blocks of {self.block[0]} "
                f"need {self.row_blocks + 1}, one more than block rows"
            )
        description = describe(
            "pattern_desc",
            format=self.format,
            block_rows=self.block[0],
            block_cols=self.block[1],
            rows=self.rows,
            cols=self.cols,
            blocks=self.blocks,
            row_offsets=ffi.from_buffer("int32_t[]", self.row_offsets),
            col_indices=ffi.from_buffer("int32_t[]", self.col_indices) if self.blocks else ffi.NULL,
        )
        self._handle = create(lib.bsparse_pattern_create, lib.bsparse_pattern_destroy, description)
        self.key = self._digest()

    @classmethod
    def from_mask(
        cls,
        mask: Any,
        block: Block = DEFAULT_BLOCK,
        shape: tuple[int, int] | None = None,
        format: Format | str = Format.BSR,
    ) -> "Pattern":
        """The pattern of the blocks where mask is True.

        Args:
            mask: bool [block rows, block columns], a nested sequence or a buffer such as a NumPy array.
            block: (block_rows, block_cols), or one int.
            shape: (rows, cols) of the matrix where these are not multiples of the block; None: they are.
            format: "bsr" or "bsr24".

        Raises:
            InvalidArgument: a mask that is not 2-D or not bool, or does not fit the shape; a format without blocks.
        """
        kind = Format.of("format", format)
        if kind is Format.SEMI24:
            raise InvalidArgument(
                "format is semi24, in which no blocks are chosen; it must be bsr or bsr24: use Pattern(rows, cols, "
                'format="semi24")'
            )
        lines = mask_rows(mask)
        pair, grid = _pair(block), (len(lines), len(lines[0]))
        if shape is None:
            shape = grid[0] * pair[0], grid[1] * pair[1]
        if not isinstance(shape, Sequence) or len(shape) != 2:
            raise InvalidArgument(f"shape is {shape!r}; it must be a pair (rows, cols): pass the matrix's shape")
        rows, cols = shape
        needed = (-(-_positive("shape[0]", rows) // pair[0]), -(-_positive("shape[1]", cols) // pair[1]))
        if grid != needed:
            raise InvalidArgument(
                f"mask has shape {grid}; a matrix of {rows} x {cols} in blocks of {pair[0]} x {pair[1]} needs {needed}"
            )
        indices = array("i")
        counts = []
        for line in lines:
            kept = list(compress(range(grid[1]), line))
            indices.extend(kept)
            counts.append(len(kept))
        return cls(rows, cols, pair, array("i", accumulate(counts, initial=0)), indices, kind)

    @property
    def density(self) -> float:
        """Stored elements over all: stored blocks over all blocks, and half of that where they are 2:4."""
        return self.blocks / (self.row_blocks * self.col_blocks) * (1.0 if self.format is Format.BSR else 0.5)

    @property
    def values_shape(self) -> tuple[int, ...]:
        """[blocks, block_rows, block_cols]; "bsr24" [blocks, block_rows, block_cols / 2]; "semi24" [rows, cols / 2]."""
        return (*self._lines, self.block[1] if self.format is Format.BSR else self.block[1] // 2)

    @property
    def metadata_shape(self) -> tuple[int, ...] | None:
        """Of uint8: "bsr24" [blocks, block_rows, block_cols / 8]; "semi24" [rows, cols / 8]; None for "bsr"."""
        return None if self.format is Format.BSR else (*self._lines, self.block[1] // 8)

    @property
    def _lines(self) -> tuple[int, ...]:
        return (self.rows,) if self.format is Format.SEMI24 else (self.blocks, self.block[0])

    def sizes(self, dtype: DType | str) -> tuple[int, int]:
        """Bytes of the values in this dtype, and of their metadata (0 for "bsr")."""
        values, metadata = ffi.new("size_t *"), ffi.new("size_t *")
        check(lib.bsparse_pattern_sizes(self._handle, DType.of("dtype", dtype), values, metadata))
        return int(values[0]), int(metadata[0])

    def _digest(self) -> int:
        sizes = struct.pack("<6q", self.format, self.rows, self.cols, *self.block, self.blocks)
        digest = hashlib.blake2b(sizes, digest_size=8)
        digest.update(self.row_offsets)
        digest.update(self.col_indices)
        return int.from_bytes(digest.digest(), "little") >> 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return NotImplemented
        return self is other or self._contents() == other._contents()

    def _contents(self) -> tuple[Any, ...]:
        return self.key, self.rows, self.cols, self.block, self.format, self.row_offsets, self.col_indices

    def __hash__(self) -> int:
        return self.key

    def __reduce__(self) -> tuple[Any, ...]:
        indices = array("i", self.row_offsets), array("i", self.col_indices)
        return Pattern, (self.rows, self.cols, self.block, *indices, self.format.label)

    def __repr__(self) -> str:
        stored = f"{self.blocks} blocks of {self.block[0]} x {self.block[1]}"
        if self.format is not Format.BSR:
            stored = "semi24" if self.format is Format.SEMI24 else f"bsr24, {stored}"
        return f"<bsparse Pattern: {self.rows} x {self.cols}, {stored}, density {self.density:.3g}>"


def _positive(field: str, value: Any) -> int:
    number = integer(field, value, 64)
    if number < 1:
        raise InvalidArgument(f"{field} is {number}; it must be at least 1: pass a size in elements")
    return number


def _pair(block: Any) -> tuple[int, int]:
    """(block_rows, block_cols) of an int or a pair of ints."""
    if not isinstance(block, Sequence):
        block = (block, block)
    if len(block) != 2:
        raise InvalidArgument(
            f"block is {block!r}; it must be an int or a pair (block_rows, block_cols): pass (64, 64)"
        )
    return _positive("block[0]", block[0]), _positive("block[1]", block[1])


def _whole(block: Any, shape: tuple[int, int]) -> tuple[int, int]:
    """The one block of a semi24 matrix."""
    if block is not None and _pair(block) != shape:
        raise InvalidArgument(
            f"block is {block!r}; a semi24 matrix of {shape[0]} x {shape[1]} is one block, {shape}: leave it out"
        )
    return shape
