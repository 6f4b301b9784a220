"""The same inputs give the same bits: run after run, with any number of threads, side by side, and after a fork."""

import os
from concurrent.futures import ThreadPoolExecutor

import compare
import numpy as np
import pytest
from cases import THREADED, THREADED_24, case_id
from core.products import DTYPES, OPS, Dense, Sampled, product

import bsparse_core as bc

cases = pytest.mark.parametrize("case", THREADED + THREADED_24, ids=case_id)
dtypes = pytest.mark.parametrize("dtype", DTYPES)
ops = pytest.mark.parametrize("op", OPS)


def written(wanted: Dense | Sampled, context, plan=None):
    result = wanted.run(context, plan)
    return result if isinstance(wanted, Sampled) else result[0]


@cases
@dtypes
@ops
def test_ten_runs(cpu, op, dtype, case):
    wanted = product(case, op, dtype)
    plan = wanted.plan(cpu)
    first = written(wanted, cpu, plan)
    for _ in range(9):
        compare.assert_same_bits(written(wanted, cpu, plan), first)


@cases
@dtypes
@ops
def test_thread_counts(op, dtype, case):
    wanted = product(case, op, dtype)
    alone = written(wanted, bc.Context("cpu", threads=1))
    for threads in (2, 3, 7):
        compare.assert_same_bits(written(wanted, bc.Context("cpu", threads=threads)), alone, f"{threads} threads")


@cases
@ops
def test_concurrent_runs_of_one_plan(cpu, op, case):
    wanted = product(case, op, "f32")
    plan = wanted.plan(cpu)
    alone = written(wanted, cpu, plan)
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: written(wanted, cpu, plan), range(40)):
            compare.assert_same_bits(result, alone)


def test_contexts_in_threads_of_their_own():
    wanted = product(THREADED[0], "spmm", "f32")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: written(wanted, bc.Context("cpu", threads=2)), range(12)))
    for result in results:
        compare.assert_same_bits(result, results[0])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_fork(cpu):
    wanted = product(THREADED[0], "spmm", "f32")
    plan = wanted.plan(cpu)
    parent = written(wanted, cpu, plan)  # the threads are running now
    child = os.fork()
    if not child:
        os._exit(int(not np.array_equal(written(wanted, cpu, plan), parent)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    compare.assert_same_bits(written(wanted, cpu, plan), parent)
