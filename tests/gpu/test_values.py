"""pack_values and unpack_values on the device: exact copies, zeros elsewhere."""

import compare
import numpy as np
import oracle
import pytest
import torch
from cases import CASES, Case
from core.products import assert_untouched_between, leading, pattern_of, poison
from gpu.memory import DeviceMemory

import bsparse_core as bc

LARGE = Case("large", 1000, 1900, (64, 32), np.random.default_rng(0).random((16, 60)) < 0.3)
dtypes = pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])


@dtypes
def test_pack(cuda, dtype):
    for case in (*CASES, LARGE):
        memory = DeviceMemory()
        dense = oracle.encode(np.random.default_rng(0).standard_normal(case.shape), dtype)
        placed, values = case.strided(dense), poison((case.blocks, *case.block), dtype)
        addresses = memory.address(placed), leading(placed, "row_major"), memory.address(values)
        bc.pack_values(cuda, pattern_of(case), dtype, *addresses, torch.cuda.current_stream().cuda_stream)
        memory.fetch()
        compare.assert_same_bits(values, oracle.pack(dense, case.mask, case.block), case.name)


@dtypes
def test_unpack(cuda, dtype):
    for case in (*CASES, LARGE):
        memory = DeviceMemory()
        values = oracle.encode(case.operands(dtype).values, dtype)
        dense = case.strided(poison(case.shape, dtype))
        addresses = memory.address(values), memory.address(dense), leading(dense, "row_major")
        bc.unpack_values(cuda, pattern_of(case), dtype, *addresses, torch.cuda.current_stream().cuda_stream)
        memory.fetch()
        compare.assert_same_bits(dense.copy(), oracle.unpack(values, case.mask, case.shape, case.block), case.name)
        assert_untouched_between(dense, dtype)
