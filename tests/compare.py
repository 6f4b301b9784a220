"""Comparing an array with the oracle: the same NaN, the same infinities, every error within its own bound."""

import numpy as np


def assert_close(actual, exact, allowed, what="result"):
    """Every element of actual within allowed (a number or an array) of exact; NaN and infinities at the same places.

    actual, exact: float arrays of one shape. The message holds the worst position and how far beyond it lies.
    """
    actual, exact = np.asarray(actual, dtype=np.float64), np.asarray(exact, dtype=np.float64)
    assert actual.shape == exact.shape, f"{what} has shape {actual.shape}; the oracle has {exact.shape}"
    for name, test in (("NaN", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        differ = np.argwhere(test(actual) != test(exact))
        assert not len(differ), f"{what} differs in where it is {name}: {len(differ)} places, first {_at(differ[0])}"
    finite = np.isfinite(exact)
    error = np.abs(np.where(finite, actual, 0.0) - np.where(finite, exact, 0.0))
    excess = error - np.broadcast_to(allowed, error.shape)
    if not excess.size or excess.max() <= 0:
        return
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    raise AssertionError(
        f"{what} is off at {np.count_nonzero(excess > 0)} of {excess.size} places; worst at {_at(worst)}: "
        f"{actual[worst]:.9g} against {exact[worst]:.9g}, error {error[worst]:.3g}, "
        f"allowed {np.broadcast_to(allowed, error.shape)[worst]:.3g}"
    )


def assert_same_bits(actual, expected, what="result"):
    """Two arrays of one dtype and shape hold the same bits, NaN included."""
    assert actual.dtype == expected.dtype, f"{what} is {actual.dtype}; expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what} has shape {actual.shape}; expected {expected.shape}"
    a, e = (np.ascontiguousarray(array).view(np.uint8) for array in (actual, expected))
    differ = np.argwhere(np.any((a != e).reshape(*actual.shape, actual.itemsize), axis=-1)) if actual.size else []
    assert not len(differ), f"{what} differs in {len(differ)} of {actual.size} places, first {_at(differ[0])}"


def _at(index):
    return "[" + ", ".join(str(int(i)) for i in index) + "]"
