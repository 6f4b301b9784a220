"""The metadata of 2:4 formats: what packing keeps, which positions are refused and where, and what a mask says."""

import compare
import numpy as np
import oracle
import pytest
from cases import SMALL_24, case_id, named
from core.products import DTYPES, OPS, address, pattern_of, poison, product

import bsparse_core as bc
import bsparse_core.numpy as bn

NAN, INF = np.nan, np.inf
GROUPS = [  # a group, the columns that are kept of it, and those kept in f32
    ([0.0, 0.0, 0.0, 0.0], (0, 1), (0, 2)),
    ([-0.0, 0.0, -0.0, 0.0], (0, 1), (0, 2)),
    ([1.0, 2.0, 3.0, 4.0], (2, 3), (1, 3)),
    ([4.0, 3.0, 2.0, 1.0], (0, 1), (0, 2)),
    ([1.0, -2.0, 0.5, 2.0], (1, 3), (1, 3)),
    ([-1.0, 1.0, -1.0, 1.0], (0, 1), (0, 2)),
    ([0.0, 0.0, 0.0, -1.0], (0, 3), (0, 3)),
    ([2.0, 3.0, -3.0, 3.0], (1, 2), (1, 2)),
    ([NAN, 5.0, INF, 6.0], (0, 2), (0, 2)),
    ([1.0, NAN, -INF, NAN], (1, 3), (1, 3)),
    ([INF, 7.0, -INF, 9.0], (0, 2), (0, 2)),
    ([0.0, 2.0**-24, 0.0, -(2.0**-24)], (1, 3), (1, 3)),  # subnormal in f16
]
INVALID = [nibble for nibble in range(16) if nibble & 3 >= nibble >> 2]


def says(dtype):
    return {"dtype": "bf16"} if dtype == "bf16" else {}


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_pack_keeps(dtype):
    dense = oracle.encode(np.array([group for group, _, _ in GROUPS]).reshape(1, -1), dtype)
    values, metadata = bn.pack(bc.Pattern(*dense.shape, format="semi24"), dense, **says(dtype))
    kept = np.array([f32 if dtype == "f32" else others for _, others, f32 in GROUPS])
    assert oracle.positions_of(metadata)[0].tolist() == kept.tolist()
    expected = np.take_along_axis(oracle.groups_of(dense), kept[None], axis=-1).reshape(1, -1)
    compare.assert_same_bits(values, expected)


@pytest.mark.parametrize("case", SMALL_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_says_what_is_kept(dtype, case):
    random = np.random.default_rng(2)
    dense = oracle.encode(random.standard_normal(case.shape), dtype)
    kept = case.unpack(np.ones(case.values_shape, bool), case.operands(dtype).metadata)  # two of each group
    for mask in (kept, kept & (random.random(case.shape) < 0.5), np.zeros(case.shape, bool)):
        values, metadata = bn.pack(pattern_of(case), dense, mask=mask, **says(dtype))
        compare.assert_same_bits(metadata, case.choose(mask, oracle.choose_from_mask), "metadata")
        compare.assert_same_bits(values, case.pack(np.where(mask, dense, dense.dtype.type(0)), metadata))
        again = bn.unpack(pattern_of(case), values, metadata, **says(dtype))
        compare.assert_same_bits(again, np.where(mask & case.element_mask, dense, dense.dtype.type(0)))


@pytest.mark.parametrize(
    ("format", "row", "column", "first"), [("bsr24", 36, 40, 40), ("bsr24", 17, 22, 20), ("semi24", 2, 6, 4)]
)
def test_a_mask_that_keeps_too_many(format, row, column, first):
    case = named("groups_ragged_between" if format == "bsr24" else "groups_one_byte").within(format)
    mask = np.zeros(case.shape, bool)
    mask[row, column : min(column + 2, first + 4)] = True
    mask[row, first : first + 2] = True
    mask[row, first + 2] = True
    with pytest.raises(bc.InvalidArgument) as caught:
        bn.pack(pattern_of(case), np.zeros(case.shape, np.float32), mask=mask)
    count = mask[row, first : first + 4].sum()
    told = f"mask keeps {count} of row {row}, columns {first} to {first + 3}; {format} stores at most 2 of each 4"
    assert told in str(caught.value)


def test_a_mask_may_keep_anything_where_nothing_is_stored():
    pattern = bc.Pattern(2, 16, (2, 8), [0, 1], [1], "bsr24")
    mask = np.zeros((2, 16), bool)
    mask[:, :8] = True
    values, metadata = bn.pack(pattern, np.ones((2, 16), np.float32), mask=mask)
    assert not values.any()
    assert metadata.tolist() == [[[0x44], [0x44]]]


def test_strided_and_bfloat16_arrays_with_a_mask():
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: bf16 ran as uint16").bfloat16
    pattern = bc.Pattern(3, 8, format="semi24")
    dense, mask = np.arange(24).reshape(8, 3).T.astype(bfloat16), np.eye(8, dtype=bool)[:3]
    values, metadata = bn.pack(pattern, dense, mask=mask)
    assert values.dtype == bfloat16
    np.testing.assert_array_equal(bn.unpack(pattern, values, metadata), np.where(mask, dense, 0))
    column_major = np.asfortranarray(metadata), np.asfortranarray(values)
    np.testing.assert_array_equal(bn.unpack(pattern, column_major[1], column_major[0]), np.where(mask, dense, 0))


def damaged(case, where, nibble, half):
    """A case's metadata with one nibble changed, in its first or last byte."""
    metadata = case.operands("f32").metadata.copy()
    flat = metadata.reshape(-1)
    flat[where] = flat[where] & (0xF0 if half == 0 else 0x0F) | nibble << 4 * half
    at = where % flat.size
    told = (
        rf"metadata\[{at}\] is 0x{flat[where]:02x}, whose {'high' if half else 'low'} half .*columns {nibble & 3} and"
    )
    return metadata, told


BAD = [
    named("groups_odd_7x24").within("bsr24"),
    named("tokens_17").within("semi24"),
    named("groups_one_byte").within("semi24"),
]


@pytest.mark.parametrize("half", [0, 1], ids=["low", "high"])
@pytest.mark.parametrize("where", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("nibble", INVALID)
@pytest.mark.parametrize("case", BAD, ids=case_id)
def test_bad_positions_are_refused_and_nothing_is_written(cpu, case, nibble, where, half):
    metadata, told = damaged(case, where, nibble, half)
    with pytest.raises(bc.InvalidArgument, match=told):
        bc.check_metadata(pattern_of(case), address(metadata))

    values, dense = np.ones(case.values_shape, np.float32), poison(case.shape, "f32")
    place = cpu, pattern_of(case), "f32"
    with pytest.raises(bc.InvalidArgument, match=told):
        bc.unpack_values(*place, address(values), address(dense), case.cols, metadata=address(metadata))
    assert np.isnan(dense).all()
    values[:] = NAN
    with pytest.raises(bc.InvalidArgument, match=told):
        bc.pack_values_at(*place, address(dense), case.cols, address(metadata), address(values))
    assert np.isnan(values).all()

    values, d = np.full(case.values_shape, NAN, np.float32), poison((case.tokens, max(case.shape)), "f32")
    x = np.ones((case.tokens, max(case.shape)), np.float32)
    for op in OPS:
        plan = bc.Plan(cpu, pattern_of(case), op=op, dtype="f32")
        operands = {"b": address(x), "ldb": case.rows if op == "spmm_t" else case.cols}
        operands |= {"a": address(x), "lda": case.rows} if op == "sddmm" else {"d": address(d), "ldd": max(case.shape)}
        scratch = np.zeros(plan.workspace_bytes(case.tokens) + 64, np.uint8)
        operands |= {"workspace": -(-address(scratch) // 64) * 64, "values": address(values)}
        with pytest.raises(bc.InvalidArgument, match=rf"args.s_{told}"):
            plan.run(tokens=case.tokens, metadata=address(metadata), **operands)
        assert np.isnan(d).all()
        assert np.isnan(values).all()


@pytest.mark.parametrize("case", SMALL_24, ids=case_id)
def test_good_positions_pass(case):
    for nibble in set(range(16)) - set(INVALID):
        metadata = np.full(case.metadata_shape, nibble * 0x11, np.uint8)
        bc.check_metadata(pattern_of(case), address(metadata))


@pytest.mark.parametrize("op", OPS)
def test_metadata_that_is_missing_or_too_much(cpu, op):
    wanted = product(named("ragged").within("bsr24"), op, "f32")
    wanted.metadata = None
    with pytest.raises(bc.InvalidArgument, match=r"args.s_metadata is NULL; bsr24 has 320 bytes of positions: pass"):
        wanted.run(cpu)
    wanted = product(named("ragged"), op, "f32")
    wanted.metadata = np.zeros(320, np.uint8)
    with pytest.raises(
        bc.InvalidArgument, match=r"args.s_metadata is set, but only 2:4 formats have metadata: pass NULL"
    ):
        wanted.run(cpu)


def test_packing_without_metadata_or_with_too_much(cpu):
    bsr, case = named("ragged"), named("ragged").within("bsr24")
    dense, values = np.zeros(case.shape, np.float32), np.zeros((case.blocks, *case.block), np.float32)
    metadata, bytes_ = np.zeros(case.metadata_shape, np.uint8), address
    missing, surplus = r"metadata is NULL; bsr24 has 320 bytes", r"metadata is set, but only 2:4 formats have metadata"
    for pattern, given, told in (
        (pattern_of(case), 0, missing),
        (pattern_of(bsr), bytes_(metadata), surplus),
    ):
        where = {"values": address(values), "dense": address(dense), "ld": 45, "metadata": given}
        for function in (bc.pack_values, bc.unpack_values, bc.pack_values_at):
            with pytest.raises(bc.InvalidArgument, match=told):
                function(cpu, pattern, "f32", **where)
        with pytest.raises(bc.InvalidArgument, match=told):
            bc.check_metadata(pattern, given)
    bc.check_metadata(pattern_of(bsr), 0)
    with pytest.raises(bc.InvalidArgument, match=r"format bsr.*use bsparse_pack"):
        bc.pack_values_at(cpu, pattern_of(bsr), "f32", address(dense), 45, 0, address(values))
    with pytest.raises(bc.InvalidArgument, match=r"metadata is 'x'; it must be an address, an int"):
        bc.check_metadata(pattern_of(case), "x")
    with pytest.raises(bc.InvalidArgument, match=r"pattern is None; it must be a Pattern"):
        bc.check_metadata(None, 0)


@pytest.mark.parametrize("op", OPS)
def test_metadata_must_lie_apart_from_what_is_written(cpu, op):
    plan = product(named("tokens_17").within("semi24"), op, "f32").plan(cpu)
    memory = {name: np.zeros(10_000, np.float32) for name in ("a" if op == "sddmm" else "d", "b", "values")}
    written = "values" if op == "sddmm" else "d"
    addresses = {name: address(array) for name, array in memory.items()} | {"metadata": address(memory[written])}
    leading = {f"ld{name}": 96 for name in memory if name != "values"}
    with pytest.raises(bc.InvalidArgument, match=r"args\.s_metadata overlaps args\.\w+, which is written"):
        plan.run(tokens=17, **addresses, **leading)
