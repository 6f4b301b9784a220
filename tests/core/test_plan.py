"""Plan: what it tells, what it refuses, and that a refused run writes nothing."""

import numpy as np
import pytest
from cases import case_id, named
from core.products import address, pattern_of, workspace

import bsparse_core as bc

CASE = named("ragged")  # 70 x 45 in blocks of 16 x 16
TOKENS = 6
GOOD = {"op": "spmm", "dtype": "f32"}


@pytest.fixture(scope="module")
def memory():
    """Arrays with room for any of the products."""
    return {name: np.zeros((100, 100), np.float32) for name in ("a", "b", "c", "d", "aux", "bias")} | {
        "values": np.zeros((CASE.blocks, 16, 16), np.float32)
    }


def test_tells_what_it_is(cpu):
    plan = bc.Plan(cpu, pattern_of(CASE), op="spmm", dtype="bf16", out_dtype="f32", epilogue="gelu")
    assert (plan.op, plan.dtype, plan.out_dtype) == (bc.Op.SPMM, bc.DType.BF16, bc.DType.F32)
    assert plan.epilogue is bc.Epilogue.GELU
    assert plan.context is cpu
    assert plan.pattern == pattern_of(CASE)
    assert repr(plan).startswith("<bsparse Plan: spmm bf16 to f32 + gelu on cpu ")


def test_takes_members_as_well_as_names(cpu):
    request = {"op": bc.Op.SPMM_T, "dtype": bc.DType.F16, "epilogue": bc.Epilogue.SILU, "b_order": bc.Order.ROW_MAJOR}
    assert bc.Plan(cpu, pattern_of(CASE), **request).out_dtype is bc.DType.F16


@pytest.mark.parametrize("case", [CASE, CASE.within("bsr24"), named("tokens_1").within("semi24")], ids=case_id)
@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_names_its_kernel(context, op, dtype, case):
    plan = bc.Plan(context, pattern_of(case), op=op, dtype=dtype)
    for tokens in (0, 1, 4096):
        assert plan.kernel(tokens).startswith(f"cpu.{case.format}_{op}.{dtype}")


def test_has_nothing_to_upload_on_the_cpu(cpu):
    plan = bc.Plan(cpu, pattern_of(CASE), **GOOD)
    assert plan.schedule_bytes == 0
    plan.upload(0)


def test_outlives_its_pattern(cpu):
    plan = bc.Plan(cpu, bc.Pattern.from_mask([[True]], 4), **GOOD)
    b, values, d = np.ones((1, 4), np.float32), np.ones((1, 4, 4), np.float32), np.zeros((1, 4), np.float32)
    scratch = workspace(plan, 1)
    plan.run(tokens=1, b=address(b), ldb=4, values=address(values), d=address(d), ldd=4, workspace=address(scratch))
    assert (d == 4).all()


def test_is_immutable(cpu):
    with pytest.raises(AttributeError, match="dtype of a Plan is fixed"):
        bc.Plan(cpu, pattern_of(CASE), **GOOD).dtype = bc.DType.F16


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        ({"op": "matmul"}, bc.InvalidArgument, r"op is 'matmul'; it must be one of spmm, spmm_t, sddmm"),
        ({"dtype": "fp32"}, bc.InvalidArgument, r"dtype is 'fp32'; it must be one of f32, f16, bf16, f8e4m3, i8, f64"),
        ({"dtype": "i8"}, bc.Unsupported, r"i8.*reserved"),
        ({"dtype": "f16", "out_dtype": "bf16"}, bc.Unsupported, r"out_dtype is 3 \(bf16\).*must be f16 or f32"),
        ({"dtype": "f16", "bias_dtype": "f64"}, bc.Unsupported, r"bias_dtype is 6 \(f64\).*must be f16 or f32"),
        ({"dtype": "f16", "c_dtype": "bf16"}, bc.Unsupported, r"c_dtype is 3 \(bf16\).*must be f16 or f32"),
        ({"out_dtype": "x"}, bc.InvalidArgument, r"out_dtype is 'x'; it must be one of"),
        ({"epilogue": "tanh"}, bc.InvalidArgument, r"epilogue is 'tanh'; it must be one of none, relu, gelu"),
        ({"op": "sddmm", "epilogue": "relu"}, bc.InvalidArgument, r"epilogue is 1 in sddmm, which has no activation"),
        ({"b_order": "C"}, bc.InvalidArgument, r"b_order is 'C'; it must be one of default, row_major, col_major"),
        ({"flags": 8}, bc.InvalidArgument, r"flags is 0x8, of which 0x8 is unknown"),
        ({"flags": 2**31}, bc.InvalidArgument, r"plan_desc.flags is 2147483648; it must fit in 32 bits"),
        ({"flags": "fast"}, bc.InvalidArgument, r"plan_desc.flags is 'fast'; it must be an integer"),
    ],
)  # fmt: skip
def test_refuses(cpu, change, kind, sentence):
    for make in (bc.Plan, bc.Plan.supports):
        with pytest.raises(kind, match=sentence):
            make(cpu, pattern_of(CASE), **(GOOD | change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"context": "cpu"}, r"context is 'cpu'; it must be a Context: pass bsparse_core.Context\(...\)"),
        ({"pattern": [[1]]}, r"pattern is \[\[1\]\]; it must be a Pattern: pass bsparse_core.Pattern\(...\)"),
    ],
)
def test_refuses_other_objects(cpu, change, sentence):
    for make in (bc.Plan, bc.Plan.supports):
        with pytest.raises(bc.InvalidArgument, match=sentence):
            make(**({"context": cpu, "pattern": pattern_of(CASE)} | GOOD | change))


def test_supports_says_nothing_where_it_does(cpu):
    assert bc.Plan.supports(cpu, pattern_of(CASE), **GOOD) is None


def test_flags_that_the_cpu_need_not_heed(cpu):
    bc.Plan(cpu, pattern_of(CASE), **GOOD, flags=bc.Flags.ALLOW_ATOMICS | bc.Flags.ALLOW_TF32)


@pytest.mark.parametrize("tokens", [-1, 2**62])
@pytest.mark.parametrize("dtype", ["f32", "f64"])  # f64 needs no workspace
def test_refuses_tokens(cpu, tokens, dtype):
    plan = bc.Plan(cpu, pattern_of(CASE), op="spmm", dtype=dtype)
    for ask in (plan.kernel, plan.workspace_bytes):
        with pytest.raises(bc.InvalidArgument, match=rf"tokens is {tokens};"):
            ask(tokens)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": -1}, r"args.tokens is -1; it must be at least 0"),
        ({"tokens": 2**62}, r"args.tokens is 4611686018427387904; .* at most \d+ can be addressed: split the run"),
        ({"tokens": 2**63}, r"args.tokens is 9223372036854775808; it must be an integer of 64 bits"),
        ({"tokens": 1.5}, r"args.tokens is 1.5; it must be an integer of 64 bits"),
        ({"tokens": None}, r"args.tokens is None; it must be an integer of 64 bits"),
        ({"b": 0}, r"args.b is NULL; a matrix \[45, 6\] of f32 is needed"),
        ({"tokens": np.ones(2, int)}, r"args.tokens is array\(\[1, 1\]\); it must be an integer of 64 bits"),
        ({"b": "x"}, r"args.b is 'x'; it must be an address, an int"),
        ({"b": -64}, r"args.b is -64; it must be an address, an int"),
        ({"metadata": 64}, r"args.s_metadata is set, but only 2:4 formats have metadata: pass NULL"),
        ({"metadata": "x"}, r"args.s_metadata is 'x'; it must be an address, an int"),
        ({"values": 0}, r"args.s_values is NULL; \d+ elements of f32 are needed"),
        ({"d": 0}, r"args.d is NULL; a matrix \[70, 6\] of f32 is needed"),
        ({"ldb": 44}, r"args.ldb is 44; with args.b \[45, 6\] column-major it must be at least 45"),
        ({"ldd": 69}, r"args.ldd is 69; with args.d \[70, 6\] column-major it must be at least 70"),
        ({"ldd": -70}, r"args.ldd is -70"),
        ({"ldb": 2**62}, r"args.ldb is 4611686018427387904.*exceed the address space"),
        ({"alpha": "1"}, r"args.alpha is '1'; it must be a number"),
        ({"beta": 1.0}, r"args.c \(beta is not 0\) is NULL"),
        ({"stream": 1.5}, r"stream is 1.5; it must be an address, an int: pass 0"),
        ({"workspace": -64}, r"workspace is -64; it must be an address, 0 to 2\*\*64 - 1"),
        ({"workspace": 2**64}, r"workspace is 18446744073709551616; it must be an address"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_run_refuses(cpu, memory, change, sentence):
    plan = bc.Plan(cpu, pattern_of(CASE), **GOOD)
    good = {name: address(memory[name]) for name in ("b", "d", "values")}
    with pytest.raises(bc.InvalidArgument, match=sentence):
        plan.run(**({"tokens": TOKENS, "ldb": 45, "ldd": 70} | good | change))
    assert not memory["d"].any()


@pytest.mark.parametrize(
    ("shared", "sentence"),
    [
        (("b", "d"), r"args.b overlaps args.d, which is written"),
        (("aux", "d"), r"args.aux overlaps args.d"),
        (("bias", "aux"), r"args.bias overlaps args.aux"),
    ],
)
def test_run_refuses_overlap(cpu, memory, shared, sentence):
    plan = bc.Plan(cpu, pattern_of(CASE), **GOOD)
    addresses = {name: address(memory[name]) for name in ("b", "d", "values", "aux", "bias")}
    addresses[shared[0]] = addresses[shared[1]]
    with pytest.raises(bc.InvalidArgument, match=sentence):
        plan.run(tokens=TOKENS, ldb=70, ldd=70, ldaux=70, **addresses)


@pytest.mark.parametrize("name", ["c", "d", "aux", "bias"])
def test_sddmm_refuses_what_it_does_not_use(cpu, memory, name):
    plan = bc.Plan(cpu, pattern_of(CASE), op="sddmm", dtype="f32")
    addresses = {field: address(memory[field]) for field in ("a", "b", "values", name)}
    with pytest.raises(bc.InvalidArgument, match=rf"args.{name} is set, but sddmm .*: pass NULL"):
        plan.run(tokens=TOKENS, lda=70, ldb=45, **addresses)


def test_spmm_refuses_a(cpu, memory):
    plan = bc.Plan(cpu, pattern_of(CASE), **GOOD)
    addresses = {field: address(memory[field]) for field in ("a", "b", "d", "values")}
    with pytest.raises(bc.InvalidArgument, match=r"args.a is set, but only sddmm reads A: pass NULL"):
        plan.run(tokens=TOKENS, lda=70, ldb=45, ldd=70, **addresses)
