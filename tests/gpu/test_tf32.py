"""f32 multiplied as TF32, where the caller allows it: within what one such product costs, in every kernel."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import CASES, SMALL
from core.products import product
from gpu.judge import FAMILIES, judge
from gpu.memory import DeviceMemory
from gpu.planned import of_case
from gpu.test_products import EPILOGUES, HEIGHTS, LARGER, TOKENS, UNALIGNED, WAVES, WIDTHS, ragged

import bsparse_core as bc

ALLOW = int(bc.Flags.ALLOW_TF32)

families = pytest.mark.parametrize("family", FAMILIES)
dense_ops = pytest.mark.parametrize("op", ["spmm", "spmm_t"])


def check(cases, cuda, cpu, op, family, variants=({},)):
    """Every variant of every case."""
    products = (
        (f"{case.name} {rest}", product(case, op, "f32", flags=FAMILIES[family] | ALLOW, **rest))
        for rest in variants
        for case in cases
    )
    judge(products, cuda, cpu, arithmetic="tf32")


@families
@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
def test_cases(cuda, cpu, op, family):
    check((*CASES, *WAVES, *UNALIGNED), cuda, cpu, op, family)


@families
@dense_ops
@pytest.mark.parametrize("height", HEIGHTS)
def test_block_shapes(cuda, cpu, op, family, height):
    blocks = [(height, width) for width in (*WIDTHS, 48, 96)]
    check([ragged(block, tokens) for block in blocks for tokens in TOKENS], cuda, cpu, op, family)


@families
def test_dense_orders(cuda, cpu, family):
    orders = [{"b_order": b, "d_order": d} for b in ("row_major", "col_major") for d in ("row_major", "col_major")]
    check((*SMALL, *UNALIGNED[:10]), cuda, cpu, "spmm", family, orders)


@families
@dense_ops
def test_epilogues(cuda, cpu, op, family):
    """Each activation with and without aux, alpha, beta C and the bias."""
    variants = [{"epilogue": name, "bias": "f32", "aux": aux} for name in EPILOGUES for aux in (False, True)]
    variants += [{"c": "f32", "c_is_d": is_d, "alpha": 0.5, "beta": -1.5} for is_d in (False, True)]
    variants += [{"alpha": 0.0, "bias": "f32"}, {"alpha": -2.0}]
    narrow = (ragged((64, 16), 520), ragged((128, 16), 300))
    check((*SMALL, *LARGER, *narrow), cuda, cpu, op, family, variants)


@families
@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
def test_operands_are_rounded_to_nearest(cuda, op, family):
    """An error of 2**-12 / sqrt(3) times 2 in each operand, about 2.9e-4 together; cut off, it would be twice that."""
    wanted = product(replace(WAVES[0], tokens=600), op, "f32", flags=FAMILIES[family] | ALLOW)
    result = wanted.run(cuda, memory=DeviceMemory())
    result, exact = (found if op == "sddmm" else found[0] for found in (result, wanted.exact()))
    assert np.linalg.norm(result - exact) <= 3.2e-4 * np.linalg.norm(exact)


@families
@dense_ops
def test_ten_runs_have_the_same_bits(cuda, op, family):
    for case in (WAVES[0], WAVES[1], ragged((64, 16), 520), ragged((64, 64), 7)):
        wanted = of_case(cuda, case, op, "f32", FAMILIES[family] | ALLOW)
        outs = [wanted.run(wanted.empty()) for _ in range(10)]
        torch.cuda.synchronize()
        assert not outs[0].isnan().any()
        assert all(torch.equal(out, outs[0]) for out in outs), f"{case.name}, {wanted.kernel}"


@families
def test_what_is_not_finite_stays_so(cuda, family):
    """Infinity and NaN of an input reach the outputs that it belongs to, and no others."""
    wanted = of_case(cuda, WAVES[0], "spmm", "f32", FAMILIES[family] | ALLOW)
    wanted.values.fill_(1.0)
    strange = torch.tensor([0x7F800000, 0x7FC00000, 0x7FFFFFFF, -1], dtype=torch.int32, device="cuda")
    wanted.x[:4, 5] = strange.view(torch.float32)
    result = wanted.run(wanted.empty())
    met = result[0].isinf()
    assert met.any() and (~met).any()
    for token in (1, 2, 3):
        assert torch.equal(result[token].isnan(), met)
    assert result[4:].isfinite().all() and result[:4, ~met].isfinite().all()
