"""pack_values and unpack_values on addresses: exact copies, zeros elsewhere."""

import compare
import numpy as np
import oracle
import pytest
from cases import CASES, case_id, named
from core.products import DTYPES, address, assert_untouched_between, leading, pattern_of, poison

import bsparse_core as bc


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pack(cpu, dtype, case):
    dense = oracle.encode(np.random.default_rng(0).standard_normal(case.shape), dtype)
    placed, values = case.strided(dense), poison((case.blocks, *case.block), dtype)
    bc.pack_values(cpu, pattern_of(case), dtype, address(placed), leading(placed, "row_major"), address(values))
    compare.assert_same_bits(values, oracle.pack(dense, case.mask, case.block))


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unpack(cpu, dtype, case):
    values = oracle.encode(case.operands(dtype).values, dtype)
    dense = case.strided(poison(case.shape, dtype))
    bc.unpack_values(cpu, pattern_of(case), dtype, address(values), address(dense), leading(dense, "row_major"))
    compare.assert_same_bits(dense.copy(), oracle.unpack(values, case.mask, case.shape, case.block))
    assert_untouched_between(dense, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype):
    case = named("ragged")
    expected = case.operands(dtype).values.size * np.dtype(oracle.NUMPY_DTYPES[dtype]).itemsize
    assert pattern_of(case).sizes(dtype) == (expected, 0)


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
