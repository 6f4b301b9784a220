"""Every test starts from the same seed. `operands` turns a case into tensors; `check` compares with the oracle."""

from types import SimpleNamespace

import compare
import numpy as np
import oracle
import pytest
import tolerances
import torch

from bsparse_torch import BlockPattern

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def place(case, array, dtype):
    """A 2-D float64 array as a tensor with the case's pad and offset; what lies between is NaN."""
    rows, cols = array.shape
    flat = torch.full((case.offset + rows * (cols + case.pad),), torch.nan, dtype=dtype)
    placed = flat[case.offset :].view(rows, cols + case.pad)[:, :cols]
    return placed.copy_(torch.from_numpy(array))


@pytest.fixture
def operands():
    """operands(case, dtype): a case's pattern and tensors, of the same numbers as the float64 arrays in exact."""

    def make(case, dtype):
        exact = case.operands(dtype)
        indices = case.row_offsets.tolist(), case.col_indices.tolist()
        pattern = BlockPattern(*indices, case.shape, case.block, case.format)
        return SimpleNamespace(
            exact=exact,
            pattern=pattern,
            arguments=(pattern.row_offsets, pattern.col_indices, pattern.key, *pattern.shape),  # what every op takes
            values=torch.from_numpy(exact.values).to(DTYPES[dtype]),
            metadata=None if exact.metadata is None else torch.from_numpy(exact.metadata),
            x=place(case, exact.x, DTYPES[dtype]),
            dy=place(case, exact.dy, DTYPES[dtype]),
            bias=torch.from_numpy(exact.bias).to(DTYPES[dtype]),
        )

    return make


@pytest.fixture
def check():
    """Compares a tensor with the oracle's result, given as Case products are: [rows of D, tokens] or values."""

    def compare_all(actual, exact, magnitude, terms, dtype, epilogue="none", before=None):
        allowed = tolerances.bound(exact, magnitude, terms, dtype, None, epilogue, before)
        compare.assert_close(actual.detach().double().numpy(), exact, allowed)

    return compare_all


@pytest.fixture
def expect():
    """expect(case, exact, op, epilogue): the oracle's result of one operator, as keyword arguments of check."""

    def make(case, exact, op, epilogue="none", bias=True):
        if op == "linear":
            added = exact.bias if bias else None
            y, before = oracle.spmm(exact.s, exact.x.T, bias=added, epilogue=epilogue)
            size = oracle.magnitude(exact.s, exact.x.T) + (np.abs(exact.bias)[:, None] if bias else 0)
            return {"exact": y.T, "magnitude": size.T, "terms": case.cols, "epilogue": epilogue, "before": before.T}
        if op == "grad_input":
            dx, _ = oracle.spmm_t(exact.s, exact.dy.T)
            return {"exact": dx.T, "magnitude": oracle.magnitude(exact.s.T, exact.dy.T).T, "terms": case.rows}
        dw = case.sddmm(exact.dy.T, exact.x, exact.metadata)
        size = case.sddmm(np.abs(exact.dy.T), np.abs(exact.x), exact.metadata)
        return {"exact": dw, "magnitude": size, "terms": case.tokens}

    return make
