"""Runs many products on the device and tells of all that are wrong, a line each."""

import pytest
from gpu.memory import DeviceMemory

import bsparse_core as bc

FAMILIES = {"auto": 0, "sm80": int(bc.Flags.FORCE_SM80)}
SHOWN = 25  # lines of one test; the rest are counted


def judge(products, cuda, cpu, arithmetic="tensor"):
    """Checks each product on the device against the oracle and against the CPU backend.

    products: (label, Dense or Sampled) pairs. arithmetic: see tolerances.py. Fails once, at the end, with a line for
    each that was wrong.
    """
    wrong, run = [], 0
    for label, wanted in products:
        run += 1
        kernel = "no kernel"
        try:
            kernel = wanted.plan(cuda).kernel(wanted.case.tokens)
            wanted.check(cuda, DeviceMemory(arithmetic), beside=cpu)
        except (AssertionError, ValueError, RuntimeError) as error:
            wrong.append(f"{label} [{kernel}]: {type(error).__name__}: {str(error).splitlines()[0]}")
            if isinstance(error, RuntimeError) and not isinstance(error, bc.Unsupported):
                break  # CUDA's own error: nothing runs after that
    if wrong:
        rest = [] if len(wrong) <= SHOWN else [f"... and {len(wrong) - SHOWN} more"]
        pytest.fail("\n".join([f"{len(wrong)} of {run} products are wrong", *wrong[:SHOWN], *rest]), pytrace=False)
    assert run, "no products"
