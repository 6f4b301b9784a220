"""Each kernel once, on small operands without guards: what compute-sanitizer runs.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --kernel-regex kns=bsparse --error-exitcode 9 \
        python -m pytest tests/gpu/test_sanitize.py

Nothing but copies and our kernels runs on the device, so that racecheck, initcheck and synccheck have little to watch.
"""

import pytest
from core.products import OPS, product
from gpu.judge import FAMILIES
from gpu.memory import DeviceMemory
from gpu.test_products import ragged

import bsparse_core as bc

SHAPES = (
    ((128, 64), 100),
    ((64, 64), 300),
    ((32, 32), 100),
    ((16, 16), 70),
    ((256, 128), 33),
    ((128, 64), 2000),  # enough for wider tiles
)
FEW = (((128, 64), 7), ((64, 64), 16), ((32, 32), 1))  # tokens of the decode kernels


def check(cuda, op, dtype, block, tokens, arithmetic="tensor", **rest):
    product(ragged(block, tokens), op, dtype, **rest).check(cuda, DeviceMemory(arithmetic, guard=0))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("op", OPS)
def test_bf16(cuda, op, family):
    for block, tokens in SHAPES:
        check(cuda, op, "bf16", block, tokens, flags=FAMILIES[family])


@pytest.mark.parametrize("op", OPS)
def test_f32(cuda, op):
    for block, tokens in SHAPES[1:3]:
        check(cuda, op, "f32", block, tokens)


@pytest.mark.parametrize("op", OPS)
def test_tf32(cuda, op):
    for block, tokens in (SHAPES[0], SHAPES[1], ((64, 16), 300)):
        check(cuda, op, "f32", block, tokens, "tf32", flags=int(bc.Flags.ALLOW_TF32))


def test_few_tokens(cuda):
    for block, tokens in FEW:
        check(cuda, "spmm", "bf16", block, tokens)


@pytest.mark.parametrize("op", ["spmm", "spmm_t"])
def test_every_part_of_the_epilogue(cuda, op):
    whole = {"bias": "f32", "c": "bf16", "alpha": 0.5, "beta": -1.5, "aux": True, "epilogue": "gelu"}
    for block, tokens in (SHAPES[0], SHAPES[2]):
        check(cuda, op, "bf16", block, tokens, **whole)


def test_accumulation_in_f32(cuda):
    check(cuda, "sddmm", "bf16", (64, 64), 100, out_dtype="f32", beta=1.0)
