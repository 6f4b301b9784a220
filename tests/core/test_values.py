"""pack_values and unpack_values on addresses: exact copies, zeros elsewhere. test_positions.py has what 2:4 keeps."""

import compare
import numpy as np
import oracle
import pytest
from cases import CASES, CASES_24, case_id, named
from core.products import DTYPES, address, assert_untouched_between, leading, pattern_of, poison

import bsparse_core as bc


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pack(cpu, dtype, case):
    dense = oracle.encode(np.random.default_rng(0).standard_normal(case.shape), dtype)
    placed, values = case.strided(dense), poison((case.blocks, *case.block), dtype)
    bc.pack_values(cpu, pattern_of(case), dtype, address(placed), leading(placed, "row_major"), address(values))
    compare.assert_same_bits(values, oracle.pack(dense, case.mask, case.block))


@pytest.mark.parametrize("case", CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pack_24(cpu, dtype, case):
    exact = np.random.default_rng(0).standard_normal(case.shape)
    dense, rule = oracle.encode(exact, dtype), oracle.choose_larger if dtype == "f32" else oracle.choose_largest
    placed, values = case.strided(dense), poison(case.values_shape, dtype)
    metadata, chosen = np.zeros(case.metadata_shape, np.uint8), case.choose(oracle.decode(dense, dtype), rule)
    whence = cpu, pattern_of(case), dtype, address(placed), leading(placed, "row_major")
    bc.pack_values(*whence, address(values), metadata=address(metadata))
    compare.assert_same_bits(metadata, chosen, "metadata")
    compare.assert_same_bits(values, case.pack(dense, chosen))

    metadata, values = case.choose(exact[::-1], oracle.choose_largest), poison(case.values_shape, dtype)
    bc.pack_values_at(*whence, address(metadata), address(values))
    compare.assert_same_bits(values, case.pack(dense, metadata), "values at other positions")


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unpack(cpu, dtype, case):
    data = case.operands(dtype)
    values = oracle.encode(data.values, dtype)
    dense = case.strided(poison(case.shape, dtype))
    whither = address(dense), leading(dense, "row_major")
    positions = {} if data.metadata is None else {"metadata": address(data.metadata)}
    bc.unpack_values(cpu, pattern_of(case), dtype, address(values), *whither, **positions)
    compare.assert_same_bits(dense.copy(), case.unpack(values, data.metadata))
    assert_untouched_between(dense, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["ragged", "tokens_1"])
def test_sizes(dtype, name):
    for case in (named(name), *(named(name).within(format) for format in named(name).formats_24)):
        data = case.operands(dtype)
        expected = data.values.size * np.dtype(oracle.NUMPY_DTYPES[dtype]).itemsize
        assert pattern_of(case).sizes(dtype) == (expected, 0 if data.metadata is None else data.metadata.size)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "f8e4m3"}, r"f8e4m3.*reserved"),
        ({"dtype": "float"}, r"dtype is 'float'; it must be one of f32, f16"),
        ({"dense": 0}, r"dense is NULL.*\[70, 45\] of f32.*pass its address"),
        ({"values": 0}, r"values is NULL; \d+ elements of f32.*pass their address"),
        ({"values": "x"}, r"values is 'x'; it must be an address, an int"),
        ({"values": -8}, r"values is -8; it must be an address, 0 to 2\*\*64 - 1"),
        ({"context": None}, r"context is None; it must be a Context"),
        ({"pattern": None}, r"pattern is None; it must be a Pattern"),
        ({"ld": 44}, r"ld is 44.*at least 45"),
        ({"ld": 2**63}, r"ld is 9223372036854775808; it must fit in 64 bits"),
        ({"ld": 1.5}, r"ld is 1.5; it must be an integer"),
        ({"ld": 2**62}, r"ld is 4611686018427387904.*exceed the address space"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
@pytest.mark.parametrize("function", [bc.pack_values, bc.unpack_values])
def test_bad_arguments(cpu, function, change, sentence):
    case = named("ragged")
    values, dense = np.zeros((case.blocks, *case.block), np.float32), np.zeros(case.shape, np.float32)
    good = {
        "context": cpu,
        "pattern": pattern_of(case),
        "dtype": "f32",
        "dense": address(dense),
        "ld": case.cols,
        "values": address(values),
    }
    with pytest.raises(bc.BsparseError, match=sentence):
        function(**(good | change))
    assert not values.any()
    assert not dense.any()
