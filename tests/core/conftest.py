"""Contexts: one for each instruction set that this processor runs, two threads each."""

import pytest

import bsparse_core as bc

ISAS = ("portable", "avx2", "avx512", "avx512_bf16")


@pytest.fixture(scope="session")
def contexts():
    """Contexts by instruction set; a set that this processor lacks holds the Unsupported error instead."""
    made = {}
    for isa in ISAS:
        try:
            made[isa] = bc.Context("cpu", threads=2, isa=isa)
        except bc.Unsupported as error:
            made[isa] = error
    return made


@pytest.fixture(params=ISAS)
def context(request, contexts):
    """A CPU context of two threads, for each instruction set in turn."""
    if isinstance(contexts[request.param], bc.Unsupported):
        pytest.skip(f"{request.param}: {contexts[request.param]}")
    return contexts[request.param]


@pytest.fixture
def cpu(contexts):
    """A CPU context of two threads with the best instruction set."""
    return [made for made in contexts.values() if isinstance(made, bc.Context)][-1]
