"""Exceptions: each is a BsparseError and the built-in that a caller would expect."""

import pickle

import pytest

import bsparse_core as bc
from bsparse_core.errors import check


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (bc.InvalidArgument, ValueError),
        (bc.Unsupported, NotImplementedError),
        (bc.OutOfMemory, MemoryError),
        (bc.BackendError, RuntimeError),
        (bc.InternalError, RuntimeError),
    ],
)
def test_kinds(kind, builtin):
    assert issubclass(kind, bc.BsparseError)
    assert issubclass(kind, builtin)
    assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (1, bc.InvalidArgument),
        (2, bc.Unsupported),
        (3, bc.OutOfMemory),
        (4, bc.BackendError),
        (5, bc.InternalError),
        (99, bc.InternalError),
    ],
)
def test_statuses(status, kind):
    with pytest.raises(bc.BsparseError) as caught:
        check(status)
    assert type(caught.value) is kind


def test_ok_is_no_error():
    check(0)


def test_names_are_compared_exactly():
    with pytest.raises(bc.InvalidArgument, match="dtype is 'F32'; it must be one of f32, f16, bf16, f8e4m3, i8, f64"):
        bc.DType.of("dtype", "F32")
    assert bc.DType.of("dtype", "bf16") is bc.DType.of("dtype", bc.DType.BF16) is bc.DType.BF16
    assert f"{bc.DType.BF16} {bc.DType.BF16!s}" == "bf16 bf16"
