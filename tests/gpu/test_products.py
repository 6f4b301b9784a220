"""Every product on the device against the oracle and the CPU backend: one test a product, dtype, family and group.

`auto` is what a plan picks by itself, `sm80` what it picks with BSPARSE_FORCE_SM80.
"""

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES, LONG, SMALL, Case, named
from core.products import OPS, product
from gpu.judge import FAMILIES, judge
from gpu.memory import DeviceMemory

DTYPES = ("bf16", "f16", "f32")
HEIGHTS, WIDTHS = (16, 32, 64, 128, 256), (16, 32, 64, 128)
TOKENS = (1, 7, 64, 100, 520)

dtypes = pytest.mark.parametrize("dtype", DTYPES)
lows = pytest.mark.parametrize("dtype", ["bf16", "f16"])
families = pytest.mark.parametrize("family", FAMILIES)
ops = pytest.mark.parametrize("op", OPS)
dense_ops = pytest.mark.parametrize("op", ["spmm", "spmm_t"])


def mask(grid, density, seed):
    return np.random.default_rng(seed).random(grid) < density


def ragged(block, tokens):
    """Five block rows and six block columns, none of them whole at the edge, one row and one column empty."""
    (height, width), kept = block, mask((5, 6), 0.5, sum(block))
    kept[2], kept[:, 3] = False, False
    name = f"{height}x{width}_tokens_{tokens}"
    return Case(name, 5 * height - 8, 6 * width - 8, block, kept, tokens=tokens)


WAVES = (  # rows of very different lengths, a thousand blocks in a row
    Case("balanced_128x64", 2048, 1024, (128, 64), mask((16, 16), 0.25, 1), tokens=1100),
    Case("uneven_64x64", 1536, 1536, (64, 64), mask((24, 24), np.linspace(0, 0.6, 24)[:, None], 2), tokens=900),
    Case(
        "one_dense_row_32x32", 1024, 2048, (32, 32), mask((32, 64), 0.03, 3) | (np.arange(32) == 7)[:, None], tokens=600
    ),
    Case("1100_blocks_a_row_16x16", 64, 17600, (16, 16), mask((4, 1100), 1.0, 4), tokens=70),
    Case("1100_blocks_a_column_16x16", 17600, 64, (16, 16), mask((1100, 4), 1.0, 5), tokens=70),
    Case("1030_blocks_a_row_64x16", 130, 16480, (64, 16), mask((3, 1030), 1.0, 6), tokens=33),
)

# Leading dimensions and addresses that no 16-byte load suits, for kernels that would like to use one.
UNALIGNED = tuple(
    Case(f"pad_{pad}_offset_{offset}_{height}x{width}", 4 * height, 4 * width, (height, width), mask((4, 4), 0.6, 7),
         tokens=tokens, pad=pad, offset=offset)
    for (height, width) in ((128, 64), (64, 64), (32, 32), (16, 16))
    for pad, offset, tokens in ((1, 0, 200), (0, 1, 200), (4, 0, 9), (8, 8, 130), (3, 5, 33))
)  # fmt: skip


def all_of(cases, op, dtype, family, **rest):
    for case in cases:
        yield case.name, product(case, op, dtype, flags=FAMILIES[family], **rest)


@ops
@dtypes
@families
def test_cases(cuda, cpu, op, dtype, family):
    judge(all_of(CASES, op, dtype, family), cuda, cpu)


@ops
@dtypes
@families
@pytest.mark.parametrize("height", HEIGHTS)
def test_block_shapes(cuda, cpu, op, dtype, family, height):
    cases = (ragged((height, width), tokens) for width in WIDTHS for tokens in TOKENS)
    judge(all_of(cases, op, dtype, family), cuda, cpu)


@ops
@dtypes
@families
def test_uneven_patterns(cuda, cpu, op, dtype, family):
    judge(all_of(WAVES, op, dtype, family), cuda, cpu)


@ops
@dtypes
@families
def test_unaligned_memory(cuda, cpu, op, dtype, family):
    judge(all_of(UNALIGNED, op, dtype, family), cuda, cpu)


@dense_ops
@dtypes
@families
def test_dense_orders(cuda, cpu, op, dtype, family):
    orders = [{"b_order": b, "d_order": d} for b in ("row_major", "col_major") for d in ("row_major", "col_major")]
    cases = (*SMALL, *LONG, *UNALIGNED[:5])
    judge(
        (
            (f"{case.name} {order['b_order']} {order['d_order']}", found)
            for order in orders
            for case in cases
            for _, found in all_of([case], op, dtype, family, **order)
        ),
        cuda,
        cpu,
    )


@dtypes
@families
def test_sddmm_orders(cuda, cpu, dtype, family):
    orders = [{"a_order": a, "b_order": b} for a in ("row_major", "col_major") for b in ("row_major", "col_major")]
    cases = (*SMALL, named("tokens_1029"), *UNALIGNED[:5])
    judge(
        (
            (f"{case.name} {order['a_order']} {order['b_order']}", found)
            for order in orders
            for case in cases
            for _, found in all_of([case], "sddmm", dtype, family, **order)
        ),
        cuda,
        cpu,
    )


EPILOGUES = ("none", "relu", "gelu", "gelu_tanh", "silu")
LARGER = (ragged((128, 64), 100), ragged((64, 64), 520), ragged((32, 32), 100), ragged((64, 64), 7), *UNALIGNED[4::5])


@dense_ops
@dtypes
@families
def test_epilogues(cuda, cpu, op, dtype, family):
    """bias and aux with each activation; alpha and beta C with all of them, C apart or D itself; f32 bias, C and D."""
    low = dtype != "f32"
    variants = [{"epilogue": name, "bias": dtype, "aux": True} for name in EPILOGUES]
    variants += [{"bias": dtype}, {"bias": "f32"}, {"aux": True, "epilogue": "gelu"}]
    variants += [{"c": dtype, "c_is_d": is_d, "alpha": 0.5, "beta": -1.5} for is_d in (False, True)]
    variants += [{"c": "f32", "alpha": 2.0, "beta": 0.5, "bias": "f32", "aux": True, "epilogue": "gelu_tanh"}]
    variants += [{"alpha": 0.0, "bias": dtype}]
    if low:
        variants += [{"out_dtype": "f32"}, {"out_dtype": "f32", "bias": "f32", "aux": True, "epilogue": "silu"}]
    judge(
        (
            (f"{case.name} {variant}", found)
            for variant in variants
            for case in (*SMALL, *LARGER)
            for _, found in all_of([case], op, dtype, family, **variant)
        ),
        cuda,
        cpu,
    )


@dtypes
@families
def test_sddmm_accumulates(cuda, cpu, dtype, family):
    variants = [{"alpha": 0.5, "beta": -2.0}]
    if dtype != "f32":
        variants += [
            {"out_dtype": "f32"},
            {"out_dtype": "f32", "beta": 1.0},
            {"out_dtype": "f32", "beta": 1.0, "alpha": -1.0},
        ]
    judge(
        (
            (f"{case.name} {variant}", found)
            for variant in variants
            for case in (*SMALL, named("tokens_1029"), *LARGER)
            for _, found in all_of([case], "sddmm", dtype, family, **variant)
        ),
        cuda,
        cpu,
    )


@ops
@families
def test_f32_is_as_exact_as_dense(cuda, op, family):
    """At most 1e-6 of the norm of the float64 result, as cuBLAS in f32."""
    case = replace(WAVES[1], name="f32_norm", tokens=300)
    wanted = product(case, op, "f32", flags=FAMILIES[family])
    result = wanted.run(cuda, memory=DeviceMemory())
    result, exact = (found if op == "sddmm" else found[0] for found in (result, wanted.exact()))
    assert np.linalg.norm(result - exact) <= 1e-6 * np.linalg.norm(exact)
