"""The device, or the reason why there is none; and what to do when a kernel has broken it.

After an illegal address every later call of the process fails. Under pytest-xdist the worker then ends, a new one
takes its place and goes on; without it the whole run ends, with the first fault as the last line.
"""

import os

import pytest

import bsparse_core as bc

LOST = "the CUDA context was lost in {}: its kernel read or wrote outside its memory, or trapped"


@pytest.fixture(scope="session")
def cuda():
    """A context on device 0."""
    if bc.devices("cuda") == 0:
        pytest.skip("no NVIDIA device that bsparse can use here")
    pytest.importorskip("torch")
    return bc.Context("cuda")


@pytest.fixture(scope="session")
def cpu():
    """A CPU context of two threads."""
    return bc.Context("cpu", threads=2)


def pytest_runtest_logfinish(nodeid):
    if bc.devices("cuda") == 0 or _alive():
        return
    if "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(3)
    pytest.exit(LOST.format(nodeid), returncode=3)


def _alive():
    try:
        import torch

        torch.cuda.synchronize()
    except RuntimeError:
        return False
    except ImportError:
        return True
    return True
