"""bsparse_core.numpy: the same products on arrays, whatever their dtype, strides and shape."""

import compare
import numpy as np
import oracle
import pytest
import tolerances
from cases import CASES, CASES_24, SMALL, SMALL_24, case_id, named
from core.products import DTYPES, pattern_of

import bsparse_core as bc
import bsparse_core.numpy as bn

ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")


def says(dtype):
    """What a call must be told about arrays of this dtype: uint16 could be anything."""
    return {"dtype": "bf16"} if dtype == "bf16" else {}


def check(actual, dtype, exact, size, terms, **rest):
    allowed = tolerances.bound(exact, size, terms, dtype, **rest)
    compare.assert_close(oracle.decode(actual, rest.get("out_dtype") or dtype), exact, allowed)


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pack_and_unpack(dtype, case):
    dense = oracle.encode(np.random.default_rng(1).standard_normal(case.shape), dtype)
    values = bn.pack(pattern_of(case), case.strided(dense), **says(dtype))
    compare.assert_same_bits(values, oracle.pack(dense, case.mask, case.block))
    again = bn.unpack(pattern_of(case), values, **says(dtype))
    compare.assert_same_bits(again, oracle.unpack(values, case.mask, case.shape, case.block))


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_spmm(dtype, case):
    data = case.operands(dtype)
    x, values = case.strided(oracle.encode(data.x, dtype)), oracle.encode(data.values, dtype)
    y = bn.spmm(pattern_of(case), values, x, metadata=data.metadata, **says(dtype))
    assert y.flags.c_contiguous
    check(y.T, dtype, oracle.spmm(data.s, data.x.T)[0], oracle.magnitude(data.s, data.x.T), case.cols)


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_spmm_t(dtype, case):
    data = case.operands(dtype)
    dy, values = case.strided(oracle.encode(data.dy, dtype)), oracle.encode(data.values, dtype)
    dx = bn.spmm_t(pattern_of(case), values, dy, metadata=data.metadata, **says(dtype))
    check(dx.T, dtype, oracle.spmm_t(data.s, data.dy.T)[0], oracle.magnitude(data.s.T, data.dy.T), case.rows)


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sddmm(dtype, case):
    data = case.operands(dtype)
    dy, x = (case.strided(oracle.encode(array, dtype)) for array in (data.dy, data.x))
    values = bn.sddmm(pattern_of(case), dy, x, data.metadata, **says(dtype))
    exact = case.sddmm(data.dy.T, data.x, data.metadata)
    size = case.pack(oracle.magnitude(data.dy.T, data.x), data.metadata)
    check(values, dtype, exact, size, case.tokens)


@pytest.mark.parametrize("case", SMALL + SMALL_24, ids=case_id)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_activation(dtype, activation, case):
    data = case.operands(dtype)
    x, values, bias = (oracle.encode(array, dtype) for array in (data.x, data.values, data.bias))
    y = bn.spmm(pattern_of(case), values, x, bias, activation, metadata=data.metadata, **says(dtype))
    epilogue = activation or "none"
    exact, before = oracle.spmm(data.s, data.x.T, bias=data.bias, epilogue=epilogue)
    size = oracle.magnitude(data.s, data.x.T) + abs(data.bias[:, None])
    check(y.T, dtype, exact, size, case.cols, epilogue=epilogue, before=before)


@pytest.mark.parametrize("case", [named("ragged"), named("ragged").within("bsr24")], ids=case_id)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_f32_results_and_bias(dtype, case):
    data = case.operands(dtype)
    x, dy, values = (oracle.encode(array, dtype) for array in (data.x, data.dy, data.values))
    rest = {"out_dtype": "f32", **says(dtype)}
    y = bn.spmm(pattern_of(case), values, x, data.bias.astype(np.float32), metadata=data.metadata, **rest)
    size = oracle.magnitude(data.s, data.x.T) + abs(data.bias[:, None])
    check(y.T, dtype, oracle.spmm(data.s, data.x.T, bias=data.bias)[0], size, case.cols, out_dtype="f32")
    dv = bn.sddmm(pattern_of(case), dy, x, data.metadata, **rest)
    size = case.pack(oracle.magnitude(data.dy.T, data.x), data.metadata)
    check(dv, dtype, case.sddmm(data.dy.T, data.x, data.metadata), size, case.tokens, out_dtype="f32")
    assert y.dtype == dv.dtype == np.float32


STRIDES = {
    "fortran": np.asfortranarray,
    "every_other_row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every_other_col": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "mirrored": lambda x: x[:, ::-1].copy()[:, ::-1],
    "transposed_slice": lambda x: np.pad(x.T, ((0, 3), (2, 1)))[: x.shape[1], 2:-1].T,
    "misaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, x.size, 1).reshape(x.shape),
    "read_only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("lay", STRIDES.values(), ids=STRIDES.keys())
@pytest.mark.parametrize("name", ["ragged", "tokens_1", "one_element"])
def test_strides(lay, name):
    case = named(name)
    pattern = pattern_of(case)
    data = case.operands("f32")
    x, dy, s = (array.astype(np.float32) for array in (data.x, data.dy, data.s))
    values = bn.pack(pattern, s)
    for product, plain in (
        (bn.pack(pattern, lay(s)), values),
        (bn.spmm(pattern, values, lay(x)), bn.spmm(pattern, values, x)),
        (bn.spmm_t(pattern, values, lay(dy)), bn.spmm_t(pattern, values, dy)),
        (bn.sddmm(pattern, lay(dy), lay(x)), bn.sddmm(pattern, dy, x)),
    ):
        np.testing.assert_allclose(product, plain, rtol=1e-5, atol=1e-5)


def test_broadcast_rows():
    case = named("ragged")
    x = np.broadcast_to(np.ones(case.cols, np.float32), (5, case.cols))
    values = bn.pack(pattern_of(case), np.ones(case.shape, np.float32))
    y = bn.spmm(pattern_of(case), values, x)
    np.testing.assert_array_equal(y, np.broadcast_to(case.element_mask.sum(axis=1), y.shape))


def test_strided_values():
    case = named("blocks_4x4")
    data = case.operands("f32")
    x, values = data.x.astype(np.float32), data.values.astype(np.float32)
    strided = np.repeat(values, 2, axis=2)[:, :, ::2]
    compare.assert_same_bits(bn.spmm(pattern_of(case), strided, x), bn.spmm(pattern_of(case), values, x))


def test_ml_dtypes_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: bf16 ran as uint16").bfloat16
    case = named("ragged")
    data = case.operands("bf16")
    x, values, bias = (array.astype(bfloat16) for array in (data.x, data.values, data.bias))
    y = bn.spmm(pattern_of(case), values, x, bias)
    assert y.dtype == bfloat16
    bits = bn.spmm(pattern_of(case), values.view(np.uint16), x.view(np.uint16), bias.view(np.uint16), dtype="bf16")
    compare.assert_same_bits(y.view(np.uint16), bits)


def test_nan_and_infinity_pass_through():
    case = named("full")
    data = case.operands("f32")
    x, values = data.x.astype(np.float32), data.values.astype(np.float32)
    x[2, 5], x[3, 7] = np.nan, np.inf
    y = bn.spmm(pattern_of(case), values, x)
    assert np.isnan(y[2]).all()
    assert np.isinf(y[3]).all()
    assert np.isfinite(np.delete(y, [2, 3], axis=0)).all()
    assert np.isnan(bn.spmm(pattern_of(case), values, x, activation="relu")[2]).all()


CASE = named("ragged")
X, DY = np.zeros((3, 45), np.float32), np.zeros((3, 70), np.float32)
VALUES = np.zeros((CASE.blocks, 16, 16), np.float32)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda p: bn.spmm(p, VALUES, DY), r"x has shape \[3, 70\]; it must be \[tokens, 45\], \[tokens, cols\]"),
        (lambda p: bn.spmm(p, VALUES, X[0]), r"x has shape \[45\]; it must be \[tokens, 45\]"),
        (lambda p: bn.spmm(p, VALUES, X[None]), r"x has shape \[1, 3, 45\]"),
        (lambda p: bn.spmm_t(p, VALUES, X), r"dy has shape \[3, 45\]; it must be \[tokens, 70\], \[tokens, rows\]"),
        (
            lambda p: bn.spmm(p, VALUES[1:], X),
            r"values has shape .*; it must be \[10, 16, 16\].*as pack gives them: pass",
        ),
        (lambda p: bn.spmm(p, VALUES, X.astype("f8")), r"x has dtype float64, values has float32; both need the same"),
        (lambda p: bn.spmm(p, VALUES, X.tolist()), r"x is a list; it must be a NumPy array"),
        (lambda p: bn.spmm(p, VALUES.astype(int), X), r"values has dtype int64; it must be one of float32, .*astype"),
        (lambda p: bn.spmm(p, VALUES.astype(">f4"), X), r"values has dtype >f4; it must be one of"),
        (lambda p: bn.spmm(p, VALUES.astype("u2"), X), r'values has dtype uint16; .*dtype="bf16" if it holds the bits'),
        (lambda p: bn.spmm(p, VALUES, X, dtype="f16"), r"dtype is f16, but values has dtype float32"),
        (lambda p: bn.spmm(p, VALUES, X, dtype="half"), r"dtype is 'half'; it must be one of f32"),
        (lambda p: bn.spmm(p, VALUES, X, out_dtype="f16"), r"out_dtype is f16; with operands of f32 it must be f32"),
        (lambda p: bn.spmm(p, VALUES, X, activation="tanh"), r"activation is 'tanh'; it must be one of none, relu"),
        (lambda p: bn.spmm(p, VALUES, X, X[0]), r"bias has shape \[45\]; it must be \[70\]"),
        (lambda p: bn.spmm(p, VALUES, X, DY[0].astype("f8")), r"bias has dtype float64; it must be float32"),
        (lambda p: bn.spmm(p, VALUES, X, [0.0] * 70), r"bias is a list; it must be a NumPy array"),
        (lambda p: bn.sddmm(p, DY, X[1:]), r"x has shape \[2, 45\]; it must be \[3, 45\]"),
        (lambda p: bn.sddmm(p, X, X), r"dy has shape \[3, 45\]; it must be \[tokens, 70\]"),
        (lambda p: bn.sddmm(p, DY, X.astype("f2")), r"x has dtype float16, dy has float32"),
        (lambda p: bn.pack(p, X), r"dense has shape \[3, 45\]; it must be \[70, 45\]"),
        (lambda p: bn.pack(p, None), r"dense is a NoneType; it must be a NumPy array"),
        (lambda p: bn.unpack(p, X), r"values has shape \[3, 45\]; it must be \[10, 16, 16\]"),
    ],
)
def test_refuses(call, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        call(pattern_of(CASE))


CASE_24 = CASE.within("bsr24")
HALVES, METADATA = VALUES[:, :, :8], np.full((CASE.blocks, 16, 2), 0x44, np.uint8)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"metadata": None},
            r"metadata is missing; a pattern of format bsr24 needs uint8 \[10, 16, 2\]: pass what pack",
        ),
        ({"metadata": METADATA[1:]}, r"metadata has shape \[9, 16, 2\]; it must be \[10, 16, 2\], two positions"),
        ({"metadata": METADATA[0]}, r"metadata has shape \[16, 2\]; it must be \[10, 16, 2\]"),
        ({"metadata": METADATA.astype("i1")}, r"metadata has dtype int8; it must be uint8: pass what pack gave"),
        ({"metadata": METADATA.tolist()}, r"metadata is a list; it must be a NumPy array"),
        ({"metadata": 0 * METADATA}, r"metadata\[0\] is 0x00, whose low half .*keeps its columns 0 and 0"),
        ({"values": VALUES}, r"values has shape \[10, 16, 16\]; it must be \[10, 16, 8\]"),
    ],
)
def test_refuses_24(change, sentence):
    pattern, given = pattern_of(CASE_24), {"values": HALVES, "metadata": METADATA} | change
    calls = [
        lambda: bn.unpack(pattern, **given),
        lambda: bn.spmm(pattern, x=X, **given),
        lambda: bn.spmm_t(pattern, dy=DY, **given),
        lambda: bn.sddmm(pattern, DY, X, given["metadata"]),
    ]
    for call in calls[: 3 if "values" in change else 4]:
        with pytest.raises(bc.InvalidArgument, match=sentence):
            call()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda p: bn.unpack(p, VALUES, METADATA),
            r"metadata is given, but a pattern of format bsr has none: leave it",
        ),
        (
            lambda p: bn.spmm(p, VALUES, X, metadata=METADATA),
            r"metadata is given, but a pattern of format bsr has none",
        ),
        (lambda p: bn.sddmm(p, DY, X, METADATA), r"metadata is given, but a pattern of format bsr has none"),
        (lambda p: bn.pack(p, CASE.operands("f32").s, mask=CASE.element_mask), r"mask is given, but .* whole blocks"),
        (lambda p: bn.pack(pattern_of(CASE_24), CASE.operands("f32").s, mask=X != 0), r"mask has shape \[3, 45\]; it"),
        (
            lambda p: bn.pack(pattern_of(CASE_24), CASE.operands("f32").s, mask=[1]),
            r"mask is a list; it must be a NumPy",
        ),
        (
            lambda p: bn.pack(pattern_of(CASE_24), CASE.operands("f32").s, mask=np.ones((70, 45))),
            r"mask .* must be bool",
        ),
    ],
)
def test_refuses_what_a_format_has_not(call, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        call(pattern_of(CASE))


def test_reserved_dtypes_are_unsupported():
    with pytest.raises(bc.InvalidArgument, match="dtype is i8, but values has dtype float32"):
        bn.unpack(pattern_of(CASE), VALUES, dtype="i8")
