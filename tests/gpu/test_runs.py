"""Runs beside each other and again: the same bits, on every stream, from every thread, in a graph."""

from concurrent.futures import ThreadPoolExecutor

import compare
import numpy as np
import oracle
import pytest
import torch
from cases import Case
from core.products import OPS, product
from gpu.judge import FAMILIES
from gpu.memory import DeviceMemory
from gpu.planned import DTYPES, of_case

import bsparse_core as bc

dtypes = pytest.mark.parametrize("dtype", DTYPES)
families = pytest.mark.parametrize("family", FAMILIES)
ops = pytest.mark.parametrize("op", OPS)


def case(block=(64, 64), tokens=640, seed=0):
    grid = 1024 // block[0], 1024 // block[1]
    mask = np.random.default_rng(seed).random(grid) < np.linspace(0.05, 0.6, grid[1])
    return Case(f"{block[0]}x{block[1]}_{seed}", 1024, 1024, block, mask, tokens=tokens)


CASES = (case((128, 64)), case((64, 64)), case((32, 32)), case((64, 64), tokens=16), case((16, 16), tokens=33))


def bits(tensor):
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def assert_same(results, first, what):
    for number, result in enumerate(results):
        differ = bits(result) != bits(first)
        assert not differ.any(), f"{what} {number} differs in {int(differ.sum())} of {differ.numel()} places"


@ops
@dtypes
@families
def test_ten_runs_have_the_same_bits(cuda, op, dtype, family):
    for number, found in enumerate(CASES):
        wanted = of_case(cuda, found, op, dtype, FAMILIES[family])
        outs = [wanted.empty() for _ in range(10)]
        for out in outs:
            wanted.run(out)
        torch.cuda.synchronize()
        assert not outs[0].isnan().any()
        assert_same(outs, outs[0], f"case {number}, {wanted.plan.kernel(found.tokens)}, run")


@ops
@dtypes
def test_two_streams_at_once(cuda, op, dtype):
    for number in range(len(CASES)):
        pair = [of_case(cuda, found, op, dtype) for found in (CASES[number], CASES[number - 1])]
        alone = [wanted.run(wanted.empty()) for wanted in pair]
        streams = [torch.cuda.Stream() for _ in pair]
        outs = [[wanted.empty() for _ in range(12)] for wanted in pair]
        torch.cuda.synchronize()
        for turn in range(12):
            for wanted, stream, out in zip(pair, streams, outs, strict=True):
                with torch.cuda.stream(stream):
                    wanted.run(out[turn])
        torch.cuda.synchronize()
        for wanted, out, first in zip(pair, outs, alone, strict=True):
            assert_same(out, first, f"case {number}, {wanted.plan.kernel(wanted.tokens)}, run")


@ops
def test_threads_share_a_plan(cuda, op):
    wanted = of_case(cuda, CASES[1], op, "bf16")
    first = wanted.run(wanted.empty())
    torch.cuda.synchronize()

    def work(_):
        with torch.cuda.stream(torch.cuda.Stream()):
            out = wanted.run(wanted.empty())
            torch.cuda.current_stream().synchronize()
        return out

    with ThreadPoolExecutor(8) as pool:
        assert_same(pool.map(work, range(40)), first, "run")


@dtypes
@families
def test_a_graph_holds_forward_and_backward(cuda, dtype, family):
    for found in CASES:
        products = [of_case(cuda, found, op, dtype, FAMILIES[family]) for op in OPS]
        alone = [wanted.run(wanted.empty()) for wanted in products]
        outs = [wanted.empty() for wanted in products]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for wanted, out in zip(products, outs, strict=True):
                wanted.run(out)
        for _ in range(3):
            for out in outs:
                out.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            for wanted, out, first in zip(products, outs, alone, strict=True):
                assert_same([out], first, f"{found.name}, {wanted.plan.kernel(found.tokens)}, replay")
        for wanted in products:  # a replay reads what its inputs hold now
            wanted.x.mul_(2), wanted.dy.mul_(2)
        graph.replay()
        torch.cuda.synchronize()
        for out, first in zip(outs[:2], alone[:2], strict=True):
            assert torch.equal(out, first * 2)


def test_a_result_outlives_others_in_a_busy_queue(cuda):
    """Many plans at once, none awaited: each has its own schedule and workspace."""
    pairs = [
        (of_case(cuda, case((64, 64), tokens, seed), "spmm", "bf16"), seed)
        for seed, tokens in enumerate((16, 64, 640) * 4)
    ]
    outs = [wanted.run(wanted.empty()) for wanted, _ in pairs]
    torch.cuda.synchronize()
    for (wanted, _), out in zip(pairs, outs, strict=True):
        assert_same([out], wanted.run(wanted.empty()), wanted.plan.kernel(wanted.tokens))


@ops
def test_a_device_that_is_not_current_is_served(cuda, op):
    if bc.devices("cuda") < 2:
        pytest.skip("one NVIDIA device here; this needs two")
    context, wanted = bc.Context("cuda", device=1), product(CASES[1], op, "bf16")
    with torch.cuda.device(0):
        wanted.check(context, DeviceMemory(device=1))


@ops
@dtypes
@families
def test_no_tokens_and_no_blocks(cuda, op, dtype, family):
    empty = Case("no blocks", 96, 80, (16, 16), np.zeros((6, 5), bool), tokens=9)
    none = Case("no tokens", 96, 80, (16, 16), np.ones((6, 5), bool), tokens=0)
    for found in (empty, none):
        wanted = product(found, op, dtype, flags=FAMILIES[family])
        result = wanted.run(cuda, memory=DeviceMemory())
        result = oracle.decode(result if op == "sddmm" else result[0], dtype)
        compare.assert_close(result, np.zeros_like(result), 0.0, found.name)
