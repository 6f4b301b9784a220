"""Pattern: what it takes, what it is, what it refuses."""

import copy
import ctypes
import pickle
import subprocess
import sys
from array import array

import numpy as np
import pytest
from cases import CASES, CASES_24, case_id, named
from core.products import pattern_of

import bsparse_core as bc

OFFSETS, COLUMNS = [0, 1, 1, 3], [1, 0, 2]
FORMS = {
    "list": list,
    "tuple": tuple,
    "array_i": lambda items: array("i", items),
    "array_q": lambda items: array("q", items),
    "memoryview": lambda items: memoryview(array("i", items)),
    "numpy_int32": lambda items: np.array(items, np.int32),
    "numpy_int64": lambda items: np.array(items, np.int64),
    "numpy_uint8": lambda items: np.array(items, np.uint8),
    "ctypes_int": lambda items: (ctypes.c_int * len(items))(*items),
    "numpy_other_byte_order": lambda items: np.array(items, ">i4"),
    "generator": lambda items: (item for item in items),
    "numpy_strided": lambda items: np.repeat(np.array(items), 2)[::2],
    "numpy_scalars": lambda items: [np.int64(item) for item in items],
}


def small(**change):
    fields = {"rows": 6, "cols": 12, "block": (2, 4), "row_offsets": OFFSETS, "col_indices": COLUMNS}
    return bc.Pattern(**(fields | change))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_takes_any_integers(form):
    pattern = small(row_offsets=form(OFFSETS), col_indices=form(COLUMNS))
    assert list(pattern.row_offsets) == OFFSETS
    assert list(pattern.col_indices) == COLUMNS


def test_facts():
    pattern = small()
    assert (pattern.rows, pattern.cols, pattern.block, pattern.blocks) == (6, 12, (2, 4), 3)
    assert (pattern.row_blocks, pattern.col_blocks, pattern.format) == (3, 3, bc.Format.BSR)
    assert pattern.density == 3 / 9
    assert repr(pattern) == "<bsparse Pattern: 6 x 12, 3 blocks of 2 x 4, density 0.333>"


def test_an_int_is_a_square_block():
    assert bc.Pattern(4, 4, 2, [0, 0, 0], []).block == (2, 2)


def test_copies_what_it_is_given():
    columns = np.array(COLUMNS, np.int32)
    pattern = small(col_indices=columns)
    columns[:] = 0
    assert list(pattern.col_indices) == COLUMNS


def test_indices_are_read_only_int32():
    view = np.asarray(small().col_indices)
    assert view.dtype == np.int32
    assert not view.flags.writeable


@pytest.mark.parametrize("name", ["rows", "block", "col_indices", "key"])
def test_is_immutable(name):
    with pytest.raises(AttributeError, match=f"{name} of a Pattern is fixed: make another Pattern"):
        setattr(small(), name, 1)
    with pytest.raises(AttributeError, match=f"{name} of a Pattern is fixed"):
        delattr(small(), name)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_from_mask(case):
    for mask in (case.mask, np.asfortranarray(case.mask), case.mask.tolist(), list(case.mask)):
        assert bc.Pattern.from_mask(mask, case.block, case.shape) == pattern_of(case)


def test_from_mask_without_a_shape():
    pattern = bc.Pattern.from_mask([[True, False], [False, True], [True, True]], (4, 8))
    assert (pattern.rows, pattern.cols, list(pattern.col_indices)) == (12, 16, [0, 1, 0, 1])


def test_equal_patterns():
    assert small() == small(row_offsets=np.array(OFFSETS))
    assert hash(small()) == hash(small()) == small().key
    assert len({small(), small()}) == 1


@pytest.mark.parametrize(
    "change",
    [{"rows": 5}, {"cols": 11}, {"col_indices": [1, 0, 1]}, {"row_offsets": [0, 1, 2, 3]}],
    ids=lambda change: next(iter(change)),
)
def test_unequal_patterns(change):
    assert small() != small(**change)
    assert small().key != small(**change).key


def test_unequal_blocks():
    assert bc.Pattern(4, 4, (2, 4), [0, 1, 1], [0]).key != bc.Pattern(4, 4, (2, 2), [0, 1, 1], [0]).key


def test_is_not_equal_to_other_things():
    assert small() != 3
    assert small() != small().key


def test_key_is_the_same_in_another_process():
    code = "import bsparse_core as bc; print(bc.Pattern(6, 12, (2, 4), [0, 1, 1, 3], [1, 0, 2]).key)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(printed) == small().key == 1805151553422019100
    assert 0 <= small().key < 2**63


@pytest.mark.parametrize("again", [lambda p: pickle.loads(pickle.dumps(p)), copy.copy, copy.deepcopy])
def test_pickles_and_copies(again):
    pattern = pattern_of(named("ragged"))
    assert again(pattern) == pattern
    assert again(pattern).sizes("f32") == pattern.sizes("f32")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": 0}, r"rows is 0; it must be at least 1"),
        ({"cols": -3}, r"cols is -3; it must be at least 1"),
        ({"rows": 6.0}, r"rows is 6.0; it must be an integer"),
        ({"rows": 2**63}, r"rows is 9223372036854775808; it must fit in 64 bits"),
        ({"block": (0, 4)}, r"block\[0\] is 0; it must be at least 1"),
        ({"block": (2, 2**31)}, r"block_cols is 2147483648; it must fit in 32 bits"),
        ({"block": (2, 4, 8)}, r"block is \(2, 4, 8\); it must be an int or a pair \(block_rows, block_cols\)"),
        ({"block": "big"}, r"block is 'big'; it must be an int or a pair"),
        ({"format": "csr"}, r"format is 'csr'; it must be one of bsr, semi24, bsr24"),
        ({"row_offsets": None}, r"row_offsets is missing; pass a sequence of integers, or use Pattern.from_mask"),
        ({"row_offsets": 3}, r"row_offsets is 3; it must be a sequence of integers"),
        ({"row_offsets": [0, 1, 3]}, r"row_offsets has 3 entries; 6 rows in blocks of 2 need 4"),
        ({"row_offsets": [1, 1, 1, 3]}, r"row_offsets\[0\] is 1; it must be 0"),
        ({"row_offsets": [0, 2, 1, 3]}, r"row_offsets\[2\] is 1 after row_offsets\[1\] = 2; offsets must not decrease"),
        ({"row_offsets": [0, 1, 1, 2]}, r"row_offsets\[3\] is 2, but .*blocks is 3.*make them equal"),
        ({"row_offsets": [0, 1, 1, 2**31]}, r"row_offsets holds 2147483648; it must fit in 32 bits"),
        ({"row_offsets": (item for item in [0, 2**40])}, r"row_offsets holds 1099511627776; it must fit in 32 bits"),
        ({"col_indices": np.zeros(3, "M8[s]")}, r"col_indices is a buffer that cannot be read .*: pass int32"),
        (
            {"row_offsets": [[0, 1], [1, 3]]},
            r"row_offsets is \[\[0, 1\], \[1, 3\]\]; it must be a sequence of integers",
        ),
        ({"row_offsets": np.zeros((2, 2), int)}, r"row_offsets is 2-D of type 'l'; it must be 1-D and hold integers"),
        ({"col_indices": np.zeros(3)}, r"col_indices is 1-D of type 'd'; it must be 1-D and hold integers"),
        ({"col_indices": np.zeros(3, bool)}, r"col_indices is 1-D of type '\?'"),
        ({"col_indices": [1, 0, 1.5]}, r"col_indices is \[1, 0, 1.5\]; it must be a sequence of integers"),
        ({"col_indices": [1, 0, 3]}, r"col_indices\[2\] is 3; columns count blocks, 0 to 2.*divided by block_cols"),
        ({"col_indices": [-1, 0, 2]}, r"col_indices\[0\] is -1; columns count blocks"),
        ({"col_indices": [1, 2, 0]}, r"col_indices\[2\] is 0 after 2 in block row 2; columns must ascend.*sort them"),
        ({"col_indices": [1, 2, 2]}, r"col_indices\[2\] is 2, repeated in block row 2.*keep one"),
        ({"col_indices": [1, 0]}, r"row_offsets\[3\] is 3, but .*blocks is 2"),
        ({"cols": 2**40, "block": (2, 1)}, r"cols is 1099511627776, which with block_cols = 1.*use larger blocks"),
    ],
)
def test_refuses(change, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        small(**change)


@pytest.mark.parametrize("case", CASES_24, ids=case_id)
def test_facts_24(case):
    pattern, data = pattern_of(case), case.operands("f32")
    assert (pattern.values_shape, pattern.metadata_shape) == (data.values.shape, data.metadata.shape)
    assert pattern.density == case.mask.mean() / 2
    assert pattern.format == bc.Format.of("format", case.format)
    if case.format == "semi24":
        assert pattern == bc.Pattern(*case.shape, format="semi24")
    else:
        assert pattern == bc.Pattern.from_mask(case.mask, case.block, case.shape, "bsr24")


def test_formats_tell_patterns_apart():
    patterns = {format: bc.Pattern(4, 8, (4, 8), [0, 1], [0], format) for format in ("bsr", "bsr24", "semi24")}
    assert len(set(patterns.values())) == len({pattern.key for pattern in patterns.values()}) == 3
    assert repr(patterns["bsr24"]) == "<bsparse Pattern: 4 x 8, bsr24, 1 blocks of 4 x 8, density 0.5>"
    assert repr(patterns["semi24"]) == "<bsparse Pattern: 4 x 8, semi24, density 0.5>"
    assert (patterns["bsr"].values_shape, patterns["bsr"].metadata_shape) == ((1, 4, 8), None)
    for pattern in patterns.values():
        assert pickle.loads(pickle.dumps(pattern)) == copy.deepcopy(pattern) == pattern


def test_one_block_of_64_is_the_default():
    assert bc.Pattern(64, 64, row_offsets=[0, 1], col_indices=[0]).block == (64, 64)
    assert bc.Pattern(64, 64, None, [0, 1], [0], "bsr24").block == (64, 64)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cols": 12}, r"cols is 12; in semi24 it must be a multiple of 8: use bsr24"),
        ({"cols": 4}, r"cols is 4; in semi24 it must be a multiple of 8"),
        ({"block": (6, 8)}, r"block is \(6, 8\); a semi24 matrix of 6 x 16 is one block, \(6, 16\): leave it out"),
        ({"block": 64}, r"block is 64; a semi24 matrix of 6 x 16 is one block"),
        ({"row_offsets": [0, 0], "col_indices": []}, r"blocks is 0; semi24 is one block"),
        ({"col_indices": [1]}, r"col_indices\[0\] is 1; columns count blocks, 0 to 0"),
        ({"row_offsets": [0, 2]}, r"row_offsets\[1\] is 2, but .*blocks is 1"),
        ({"row_offsets": [0]}, r"row_offsets has 1 entries; 6 rows in blocks of 6 need 2"),
        ({"cols": 2**31}, r"block_cols is 2147483648; it must fit in 32 bits"),
        ({"rows": 0}, r"rows is 0; it must be at least 1"),
    ],
)
def test_semi24_refuses(change, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        bc.Pattern(**({"rows": 6, "cols": 16, "format": "semi24"} | change))


@pytest.mark.parametrize("block", [(2, 4), (2, 12), (8, 1)])
def test_bsr24_needs_blocks_of_whole_bytes(block):
    with pytest.raises(bc.InvalidArgument, match=rf"block_cols is {block[1]}; in bsr24 it must be a multiple of 8"):
        bc.Pattern.from_mask([[True]], block, format="bsr24")


def test_from_mask_has_no_blocks_to_choose_in_semi24():
    with pytest.raises(bc.InvalidArgument, match=r"format is semi24, in which no blocks are chosen; .*use Pattern\("):
        bc.Pattern.from_mask([[True]], 8, format="semi24")


@pytest.mark.parametrize(
    ("mask", "shape", "sentence"),
    [
        (np.ones((2, 2)), None, r"mask is 2-D of type 'd'; it must be 2-D and bool.*pass \(mask != 0\)"),
        (np.ones(4, bool), None, r"mask is 1-D of type '\?'; it must be 2-D and bool"),
        ([[True, 0.5]], None, r"mask holds 0.5; it must hold True or False, one entry a block"),
        ([[True], [True, False]], None, r"mask has rows of \[1, 2\] entries; all need the same, at least 1"),
        ([[]], None, r"mask has rows of \[0\] entries"),
        ([], None, r"mask has rows of \[\] entries"),
        ([True], None, r"mask is \[True\]; it must be 2-D and bool"),
        (3, None, r"mask is 3; it must be 2-D and bool"),
        ([[np.ones(2, bool)]], None, r"mask is \[\[array\(.*it must be 2-D and bool"),
        (np.zeros((2, 2), "M8[s]"), None, r"mask is a buffer that cannot be read .*: pass a bool array"),
        ([[True]], (9, 8), r"mask has shape \(1, 1\); a matrix of 9 x 8 in blocks of 8 x 8 needs \(2, 1\)"),
        ([[True]], (0, 8), r"shape\[0\] is 0; it must be at least 1"),
        ([[True]], 8, r"shape is 8; it must be a pair \(rows, cols\)"),
    ],
)
def test_from_mask_refuses(mask, shape, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        bc.Pattern.from_mask(mask, 8, shape)
