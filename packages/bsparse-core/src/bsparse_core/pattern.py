"""Pattern: which blocks of a matrix are stored."""

import hashlib
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Any

from bsparse_core._handle import Frozen, create, describe, integer
from bsparse_core._library import ffi, lib
from bsparse_core.errors import InvalidArgument, check
from bsparse_core.types import DType, Format

Integers = Any  # a sequence of int, or a buffer of any integer type: array, memoryview, NumPy array
Block = int | tuple[int, int]

# Of buffers, as the struct module writes them: any byte order.
_INTEGER_FORMATS = {order + code for order in ("", "@", "=", "<", ">", "!") for code in "bBhHiIlLqQ"} | {"n", "N"}


class Pattern(Frozen):
    """The stored blocks of a matrix [rows, cols], row by row, as BSR in SciPy and torch. Copies what it is given.

    Args:
        rows, cols: size of the matrix in elements, at least 1; they need not be multiples of the block.
        block: (block_rows, block_cols) in elements, or one int for a square block.
        row_offsets: [ceil(rows / block_rows) + 1] integers from 0, non-decreasing, ending at the number of blocks.
        col_indices: [blocks] integers, the block column of each stored block, strictly ascending within a block row.
        format: "bsr"; "semi24" and "bsr24" are reserved.

    Equal patterns compare equal, hash equal and have equal keys, in any process.

    Raises:
        InvalidArgument: sizes or indices that break a rule above; the message names it.
        Unsupported: a reserved format.
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
        block: Block = (64, 64),
        row_offsets: Integers = None,
        col_indices: Integers = None,
        format: Format | str = Format.BSR,
    ) -> None:
        self.format = Format.of("format", format)
        self.rows, self.cols, self.block = _positive("rows", rows), _positive("cols", cols), _pair(block)
        self.row_blocks, self.col_blocks = -(-self.rows // self.block[0]), -(-self.cols // self.block[1])
        self.row_offsets = _int32("row_offsets", row_offsets)
        self.col_indices = _int32("col_indices", col_indices)
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
    def from_mask(cls, mask: Any, block: Block = (64, 64), shape: tuple[int, int] | None = None) -> "Pattern":
        """The pattern of the blocks where mask is True.

        Args:
            mask: bool [block rows, block columns], a nested sequence or a buffer such as a NumPy array.
            block: (block_rows, block_cols), or one int.
            shape: (rows, cols) of the matrix where these are not multiples of the block; None: they are.

        Raises:
            InvalidArgument: a mask that is not 2-D or not bool, or does not fit the shape.
        """
        lines = _mask_rows(mask)
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
        return cls(rows, cols, pair, array("i", accumulate(counts, initial=0)), indices)

    @property
    def density(self) -> float:
        """Stored blocks over all blocks."""
        return self.blocks / (self.row_blocks * self.col_blocks)

    def sizes(self, dtype: DType | str) -> tuple[int, int]:
        """Bytes of the values [blocks, block_rows, block_cols] in this dtype, and of their metadata (0 for "bsr")."""
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
        shape, block = f"{self.rows} x {self.cols}", f"{self.block[0]} x {self.block[1]}"
        return f"<bsparse Pattern: {shape}, {self.blocks} blocks of {block}, density {self.density:.3g}>"


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


def _int32(field: str, values: Integers) -> memoryview:
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


def _mask_rows(mask: Any) -> list[list[bool]]:
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
