"""Numbers at the edges of their types, through a product."""

import numpy as np
import oracle
import pytest
from core.products import address, workspace

import bsparse_core as bc

N = 16  # a block; and more tokens than the kernels for few of them take


def sum_of(context, dtype, s, x, **request):
    """N * s * x by spmm of one block that is s everywhere, to f32; for f64 to f64."""
    plan = bc.Plan(context, bc.Pattern(N, N, N, [0, 1], [0]), op="spmm", dtype=dtype, **request)
    values, b = oracle.encode(np.full((N, N), s), dtype), oracle.encode(np.full((N, N), x), dtype)
    d = np.full((N, N), np.nan, np.float64 if dtype == "f64" else np.float32)
    scratch = workspace(plan, N)
    operands = {"b": address(b), "values": address(values), "d": address(d), "workspace": address(scratch)}
    plan.run(tokens=N, ldb=N, ldd=N, **operands)
    assert (d == d[0, 0]).all()
    return d[0, 0]


def test_bf16_subnormals(context):
    """Kept, but for the instruction that multiplies pairs of bf16: it takes them for 0 (bsparse.h says may)."""
    kept = 0.0 if "avx512_bf16" in context.name else N * 2.0**-110
    assert sum_of(context, "bf16", 2.0**-130, 2.0**20, out_dtype="f32") == kept


def test_f16_subnormals_are_kept(context):
    assert sum_of(context, "f16", 2.0**-24, 2.0**10, out_dtype="f32") == N * 2.0**-14


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_gelu_of_minus_infinity_is_its_limit(context, dtype):
    assert sum_of(context, dtype, 1.0, -np.inf, epilogue="gelu") == 0.0
