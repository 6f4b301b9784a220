"""Random input: what is valid agrees with the oracle, what is not is refused by a BsparseError, and nothing crashes."""

import numpy as np
import oracle
import pytest
from cases import Case
from core.products import DTYPES, OPS, pattern_of, product
from hypothesis import given
from hypothesis import strategies as st

import bsparse_core as bc
import bsparse_core.numpy as bn

FORMATS = ("bsr", "bsr24", "semi24")
ORDERS = st.sampled_from(["row_major", "col_major"])
EPILOGUES = st.sampled_from(["none", "relu", "gelu", "gelu_tanh", "silu"])
NUMBERS = st.integers(-3, 12) | st.integers(-(2**66), 2**66)
ANYTHING = NUMBERS | st.none() | st.text(max_size=8) | st.floats() | st.lists(NUMBERS, max_size=3)
CONTEXTS = {}


def context(threads):
    if threads not in CONTEXTS:
        CONTEXTS[threads] = bc.Context("cpu", threads=threads)
    return CONTEXTS[threads]


@st.composite
def cases(draw):
    """Any small pattern of any format, number of tokens and awkwardness of memory."""
    format = draw(st.sampled_from(FORMATS))
    whole = 1 if format == "bsr" else 8  # columns in a byte of metadata
    block = draw(st.integers(1, 40)), whole * draw(st.integers(1, 40 // whole))
    grid = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rows, cols = (n * b - draw(st.integers(0, b - 1)) for n, b in zip(grid, block, strict=True))
    if format == "semi24":
        cols = -(-cols // whole) * whole
    bits = draw(st.lists(st.booleans(), min_size=grid[0] * grid[1], max_size=grid[0] * grid[1]))
    mask = np.array(bits, dtype=bool).reshape(grid)
    memory = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    case = Case("fuzz", rows, cols, block, mask, draw(st.integers(0, 70)), *memory)
    return case if format == "bsr" else case.within(format)


@st.composite
def products(draw):
    """Any product of any case, with any epilogue, orders, scales and dtypes that bsparse.h allows."""
    op, dtype = draw(st.sampled_from(OPS)), draw(st.sampled_from(DTYPES))
    rest = {"alpha": draw(st.sampled_from([1.0, 0.5, -2.0, 0.0])), "beta": draw(st.sampled_from([0.0, 1.0, -0.5]))}
    rest |= {"out_dtype": draw(st.sampled_from([None, dtype] + ["f32"] * (dtype != "f64"))), "b_order": draw(ORDERS)}
    if op == "sddmm":
        return product(draw(cases()), op, dtype, a_order=draw(ORDERS), **rest)
    out = rest["out_dtype"] or dtype
    rest |= {"d_order": draw(ORDERS), "epilogue": draw(EPILOGUES), "aux": draw(st.booleans())}
    rest |= {"bias": draw(st.sampled_from([None, out])), "c": out if rest["beta"] else None}
    return product(draw(cases()), op, dtype, **rest)


@given(products(), st.integers(1, 4))
def test_products_equal_the_oracle(wanted, threads):
    wanted.check(context(threads))


@given(cases(), st.sampled_from(DTYPES))
def test_pack_and_unpack_are_inverse(case, dtype):
    rest = {"dtype": "bf16"} if dtype == "bf16" else {}
    s = case.operands(dtype).s
    dense = oracle.encode(s, dtype)
    if case.format == "bsr":
        packed = (bn.pack(pattern_of(case), case.strided(dense), **rest),)
    else:  # in f32 pack would keep one of each pair
        packed = bn.pack(pattern_of(case), case.strided(dense), mask=s != 0, **rest)
    np.testing.assert_array_equal(bn.unpack(pattern_of(case), *packed, **rest), dense)


@given(st.lists(st.sampled_from([0x44, 0x8C, 0xD9, 0xEE]) | st.integers(0, 255), min_size=6, max_size=6))
def test_metadata_of_any_bytes(found):
    pattern = bc.Pattern(3, 16, format="semi24")
    metadata, values = np.array(found, np.uint8).reshape(3, 2), np.arange(24.0).reshape(3, 8)
    positions = oracle.positions_of(metadata)
    try:
        dense = bn.unpack(pattern, values, metadata)
    except bc.InvalidArgument:
        assert (positions[..., 0] >= positions[..., 1]).any()
        return
    assert (positions[..., 0] < positions[..., 1]).all()
    one_block = np.ones((1, 1), bool), (3, 16), (3, 16)
    np.testing.assert_array_equal(dense, oracle.unpack(values[None], *one_block, metadata[None]))


def refused_or_sound(rows, cols, block, row_offsets, col_indices, format="bsr"):
    """What Pattern takes keeps the rules of bsparse.h."""
    try:
        pattern = bc.Pattern(rows, cols, block, row_offsets, col_indices, format)
    except bc.InvalidArgument:
        return
    assert (list(pattern.row_offsets), list(pattern.col_indices)) == (row_offsets, col_indices)
    for begin, end in zip(row_offsets, row_offsets[1:], strict=False):
        line = col_indices[begin:end]
        assert line == sorted(set(line))
        assert all(0 <= col < pattern.col_blocks for col in line)
    assert format == "bsr" or pattern.block[1] % 8 == 0
    assert format != "semi24" or (pattern.block, pattern.blocks) == ((rows, cols), 1)


@given(
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.lists(NUMBERS, max_size=6),
    st.lists(NUMBERS, max_size=8),
    st.sampled_from(FORMATS),
)
def test_patterns_of_any_numbers(rows, cols, block_rows, block_cols, row_offsets, col_indices, format):
    refused_or_sound(rows, cols, (block_rows, block_cols), row_offsets, col_indices, format)


@given(cases(), st.data())
def test_patterns_with_one_number_changed(case, data):
    numbers = [case.rows, case.cols, *case.block, *case.row_offsets.tolist(), *case.col_indices.tolist()]
    numbers[data.draw(st.integers(0, len(numbers) - 1))] = data.draw(NUMBERS)
    rows, cols, block_rows, block_cols, *indices = numbers
    offsets = len(case.row_offsets)
    refused_or_sound(rows, cols, (block_rows, block_cols), indices[:offsets], indices[offsets:], case.format)


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_patterns_of_anything(rows, cols, block, row_offsets, col_indices, format):
    with pytest.raises(bc.BsparseError):  # a format that is no name is always among them
        bc.Pattern(rows, cols, block, row_offsets, col_indices, format)


@given(st.lists(st.lists(st.booleans() | NUMBERS, max_size=4) | ANYTHING, max_size=4) | ANYTHING, ANYTHING, ANYTHING)
def test_masks_of_anything(mask, block, shape):
    try:
        pattern = bc.Pattern.from_mask(mask, block, shape)
    except bc.InvalidArgument:
        return
    assert pattern.blocks == sum(bool(entry) for line in mask for entry in line)


@given(*[ANYTHING] * 8)
def test_plans_of_anything(op, dtype, out_dtype, bias_dtype, c_dtype, epilogue, order, flags):
    pattern = bc.Pattern(8, 8, 4, [0, 1, 2], [0, 1])
    request = {"op": op, "dtype": dtype, "out_dtype": out_dtype, "bias_dtype": bias_dtype, "c_dtype": c_dtype}
    with pytest.raises(bc.BsparseError):  # an op that is no name is always among them
        bc.Plan(context(1), pattern, **request, epilogue=epilogue, b_order=order, flags=flags)


@given(
    st.sampled_from(OPS), ANYTHING, st.dictionaries(st.sampled_from(["lda", "ldb", "ldc", "ldd", "ldaux"]), ANYTHING)
)
def test_runs_without_memory(op, tokens, leading):
    plan = bc.Plan(context(1), bc.Pattern(8, 8, 4, [0, 1, 2], [0, 1]), op=op, dtype="f32")
    with pytest.raises(bc.InvalidArgument):
        plan.run(tokens=tokens, **leading)


@given(
    st.sampled_from(["spmm", "spmm_t"]),
    st.lists(st.integers(0, 5), min_size=0, max_size=3),
    st.lists(st.integers(0, 5), min_size=0, max_size=4),
    st.sampled_from(["f4", "f8", "f2", "u2", "i4", "?", "c8", "O"]),
    st.sampled_from([None, "f32", "bf16", "i8", "x"]),
)
def test_arrays_of_any_shape(op, shape, values_shape, numpy_dtype, dtype):
    pattern = bc.Pattern(4, 6, 2, [0, 1, 1], [2])
    x, values = np.zeros(shape, numpy_dtype), np.zeros(values_shape, numpy_dtype)
    try:
        y = getattr(bn, op)(pattern, values, x, dtype=dtype)
    except bc.BsparseError:
        return
    assert y.shape == (len(x), 4 if op == "spmm" else 6)
