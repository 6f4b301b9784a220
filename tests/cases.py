"""The named cases that every product, format, dtype, layer and backend must pass. Data only: NumPy and the oracle.

    from cases import CASES, case_id
    @pytest.mark.parametrize("case", CASES, ids=case_id)
    def test_forward(case):
        data = case.operands("f32")     # float64 arrays that hold numbers exact in f32
        ...

A case is a pattern (rows, cols, block, a bool block mask), a number of tokens and an awkwardness of memory: `pad`
elements between the rows of every dense operand, and `offset` elements before its first. `strided` lays an array
out so. Add an edge here, once, and every test meets it. `named("ragged")` returns one; SMALL is a quick subset.

CASES are bsr. Each says in which 2:4 formats it fits as well, and `within` gives it in one: CASES_24 holds them all.
"""

import zlib
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import oracle


@dataclass(frozen=True, eq=False)
class Case:
    """One pattern with one number of tokens. mask: bool [ceil(rows / block_rows), ceil(cols / block_cols)]."""

    name: str
    rows: int
    cols: int
    block: tuple[int, int]
    mask: np.ndarray
    tokens: int = 8
    pad: int = 0
    offset: int = 0
    format: str = "bsr"

    @property
    def formats_24(self):
        """The 2:4 formats that this case fits in."""
        fits = {"bsr24": self.block[1] % 8 == 0, "semi24": self.cols % 8 == 0}
        return tuple(format for format in fits if fits[format])

    def within(self, format):
        """This case in a 2:4 format; in semi24 the whole matrix is one block."""
        if format == "semi24":
            return replace(self, format=format, block=self.shape, mask=np.ones((1, 1), dtype=bool))
        return replace(self, format=format)

    @property
    def values_shape(self):
        """As the format has it: semi24 says nothing of its one block."""
        blocks = () if self.format == "semi24" else (self.blocks,)
        return *blocks, self.block[0], self.block[1] if self.format == "bsr" else self.block[1] // 2

    @property
    def metadata_shape(self):
        return None if self.format == "bsr" else (*self.values_shape[:-1], self.block[1] // 8)

    @property
    def shape(self):
        return self.rows, self.cols

    @property
    def blocks(self):
        return int(self.mask.sum())

    @property
    def row_offsets(self):
        return oracle.mask_to_indices(self.mask)[0]

    @property
    def col_indices(self):
        return oracle.mask_to_indices(self.mask)[1]

    @property
    def element_mask(self):
        """Bool [rows, cols]: where the stored blocks are."""
        return oracle.element_mask(self.mask, self.shape, self.block)

    def operands(self, dtype):
        """Standard normal float64 arrays, the same in every process, rounded to numbers that dtype holds exactly.

        s [rows, cols], zero where nothing is stored; values and metadata (None in bsr), its packed form; x [tokens,
        cols]; dy [tokens, rows]; bias [rows]; bias_t [cols]. Any two of a group are kept, whatever the dtype.
        spmm takes b = x.T, spmm_t takes b = dy.T, sddmm takes a = dy.T and b = x.
        """
        random = np.random.default_rng(zlib.crc32(self.name.encode()))

        def draw(*shape):
            return oracle.round_to(random.standard_normal(shape), dtype)

        s = np.where(self.element_mask, draw(self.rows, self.cols), 0.0)
        metadata = None
        if self.format != "bsr":
            metadata = self.choose(s, oracle.choose_largest)
            s = self.unpack(self.pack(s, metadata), metadata)
        return SimpleNamespace(
            s=s,
            values=self.pack(s, metadata),
            metadata=metadata,
            x=draw(self.tokens, self.cols),
            dy=draw(self.tokens, self.rows),
            bias=draw(self.rows),
            bias_t=draw(self.cols),
        )

    def choose(self, dense, rule):
        """The metadata of what one of the oracle's rules chooses of a dense matrix."""
        stored = oracle.pack(dense, self.mask, self.block)
        return oracle.metadata_of(rule(oracle.groups_of(stored))).reshape(self.metadata_shape)

    def pack(self, dense, metadata=None):
        """oracle.pack, in the values' shape."""
        return oracle.pack(dense, self.mask, self.block, self._in_blocks(metadata)).reshape(self.values_shape)

    def unpack(self, values, metadata=None):
        """oracle.unpack."""
        return oracle.unpack(self._in_blocks(values), self.mask, self.shape, self.block, self._in_blocks(metadata))

    def sddmm(self, a, b, metadata=None, *, alpha=1.0, beta=0.0, values=None):
        """oracle.sddmm, in the values' shape."""
        rest = {"alpha": alpha, "beta": beta, "values": self._in_blocks(values)}
        sampled = oracle.sddmm(a, b, self.mask, self.block, self._in_blocks(metadata), **rest)
        return sampled.reshape(self.values_shape)

    def _in_blocks(self, array):
        """Values or metadata with the block dimension that semi24 leaves out."""
        return array if array is None else array.reshape(self.blocks, self.block[0], array.shape[-1])

    def strided(self, array):
        """A copy of a 2-D array laid out with this case's pad and offset; what lies between is NaN (bf16: its bits)."""
        poison = 0x7FC0 if array.dtype == np.uint16 else np.nan
        rows, cols = array.shape
        flat = np.full(self.offset + rows * (cols + self.pad), poison, dtype=array.dtype)
        view = flat[self.offset :].reshape(rows, cols + self.pad)[:, :cols]
        view[:] = array
        return view


def case_id(case):
    return case.name if case.format == "bsr" else f"{case.name}-{case.format}"


def _mask(grid, density, seed):
    return np.random.default_rng(seed).random(grid) < density


def _only(grid, rows, cols):
    mask = np.zeros(grid, dtype=bool)
    mask[rows, cols] = True
    return mask


def _without(grid, rows, cols):
    mask = _mask(grid, 0.6, 7)
    mask[rows, cols] = False
    return mask


EVERY = slice(None)

PATTERNS = (
    Case("empty", 64, 48, (16, 16), np.zeros((4, 3), dtype=bool)),
    Case("full", 64, 48, (16, 16), np.ones((4, 3), dtype=bool)),
    Case("one_block", 64, 48, (16, 16), _only((4, 3), 2, 1)),
    Case("one_row_dense", 64, 96, (16, 16), _only((4, 6), 1, EVERY)),
    Case("one_col_dense", 96, 64, (16, 16), _only((6, 4), EVERY, 2)),
    Case("first_row_empty", 64, 64, (16, 16), _without((4, 4), 0, EVERY)),
    Case("last_row_empty", 64, 64, (16, 16), _without((4, 4), -1, EVERY)),
    Case("last_col_empty", 64, 64, (16, 16), _without((4, 4), EVERY, -1)),
    Case("diagonal", 128, 128, (32, 32), np.eye(4, dtype=bool)),
    Case("single_block_row", 16, 512, (16, 16), np.ones((1, 32), dtype=bool)),
    Case("single_block_col", 512, 16, (16, 16), np.ones((32, 1), dtype=bool)),
    Case("one_element", 1, 1, (1, 1), np.ones((1, 1), dtype=bool)),
)

BLOCKS = (
    Case("blocks_32x32", 128, 160, (32, 32), _mask((4, 5), 0.5, 1), tokens=24),
    Case("blocks_64x64", 192, 256, (64, 64), _mask((3, 4), 0.5, 2), tokens=16),
    Case("blocks_tall_128x32", 256, 96, (128, 32), _mask((2, 3), 0.6, 3), tokens=16),
    Case("blocks_wide_16x128", 48, 256, (16, 128), _mask((3, 2), 0.6, 4), tokens=16),
    Case("blocks_1x1", 19, 23, (1, 1), _mask((19, 23), 0.3, 5)),
    Case("blocks_8x1", 40, 13, (8, 1), _mask((5, 13), 0.4, 6)),
    Case("blocks_1x8", 13, 40, (1, 8), _mask((13, 5), 0.4, 7)),
    Case("blocks_4x4", 28, 36, (4, 4), _mask((7, 9), 0.4, 8)),
    Case("blocks_odd_7x5", 49, 35, (7, 5), _mask((7, 7), 0.4, 9)),
    Case("blocks_odd_33x17", 99, 68, (33, 17), _mask((3, 4), 0.6, 10)),
    Case("ragged", 70, 45, (16, 16), _mask((5, 3), 0.6, 11)),
    Case("ragged_last_stored", 70, 45, (16, 16), _only((5, 3), -1, -1)),
    Case("ragged_rows", 33, 64, (32, 32), np.ones((2, 2), dtype=bool)),
    Case("ragged_cols", 64, 33, (32, 32), np.ones((2, 2), dtype=bool)),
    Case("smaller_than_a_block", 5, 3, (16, 32), np.ones((1, 1), dtype=bool)),
)

GROUPS = (  # what 2:4 formats are sensitive to: 8 columns are one byte of metadata
    Case("groups_one_byte", 3, 8, (3, 8), np.ones((1, 1), dtype=bool), tokens=3),
    Case("groups_one_row_one_token", 1, 8, (1, 8), np.ones((1, 1), dtype=bool), tokens=1),
    Case("groups_odd_7x24", 21, 72, (7, 24), _mask((3, 3), 0.6, 22), tokens=13),
    Case("groups_ragged_inside", 37, 42, (16, 24), np.ones((3, 2), dtype=bool), tokens=5),
    Case("groups_ragged_between", 37, 44, (16, 24), np.ones((3, 2), dtype=bool), tokens=5),
    Case("groups_long_rows", 10, 5000, (10, 40), _mask((1, 125), 0.8, 23), tokens=18),
    Case("groups_tokens_1031", 19, 40, (16, 8), _mask((2, 5), 0.7, 24), tokens=1031),
)

_TOKENS = (0, 1, 2, 3, 7, 16, 17, 31, 64, 129)
TOKENS = tuple(Case(f"tokens_{n}", 96, 80, (16, 16), _mask((6, 5), 0.5, 12), tokens=n) for n in _TOKENS)

MEMORY = (
    Case("misaligned_ld", 64, 96, (32, 32), _mask((2, 3), 0.7, 13), tokens=19, pad=3),
    Case("misaligned_base", 64, 96, (32, 32), _mask((2, 3), 0.7, 14), tokens=19, offset=1),
    Case("misaligned_ragged", 61, 87, (16, 16), _mask((4, 6), 0.5, 15), tokens=5, pad=1, offset=3),
    Case("wide_ld", 48, 48, (16, 16), _mask((3, 3), 0.6, 16), tokens=6, pad=64),
)

THREADED = (  # work enough for several threads, evenly and very unevenly spread
    Case("many_blocks", 512, 384, (32, 32), _mask((16, 12), 0.4, 17), tokens=96),
    Case("one_heavy_row", 256, 1024, (16, 16), _only((16, 64), 3, EVERY) | _mask((16, 64), 0.02, 18), tokens=40),
)

LONG = (  # more tokens, or more inner features in a row, than a kernel takes at a time; the last time an odd number
    Case("tokens_1029", 35, 45, (16, 16), _mask((3, 3), 0.6, 19), tokens=1029),
    Case("inner_5000", 20, 5000, (16, 25), _mask((2, 200), 0.9, 20), tokens=19),
    Case("inner_5000_transposed", 5000, 20, (25, 16), _mask((200, 2), 0.9, 21), tokens=19),
)

CASES = PATTERNS + BLOCKS + GROUPS + TOKENS + MEMORY + THREADED + LONG


def within_24(cases):
    """These cases in each 2:4 format that they fit in. Two that are the same matrix in semi24 are there once."""
    found = {}
    for case in cases:
        for format in case.formats_24:
            same = (case.rows, case.cols, case.tokens, case.pad, case.offset) if format == "semi24" else case.name
            found.setdefault((format, same), case.within(format))
    return tuple(found.values())


CASES_24 = within_24(CASES)


def named(name):
    """The case of that name."""
    return next(case for case in CASES if case.name == name)


_SMALL = "empty full last_row_empty last_col_empty blocks_odd_7x5 ragged tokens_0 tokens_1 tokens_17 misaligned_ragged"
SMALL = tuple(named(name) for name in _SMALL.split())

_SMALL_24 = (
    "empty ragged groups_odd_7x24 groups_ragged_inside tokens_0 tokens_1 tokens_17 misaligned_ragged misaligned_ld"
)
SMALL_24 = within_24([named(name) for name in _SMALL_24.split()])
THREADED_24 = within_24(THREADED)
LONG_24 = within_24([*LONG, named("groups_tokens_1031")])
