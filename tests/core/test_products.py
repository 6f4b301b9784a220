"""Every product of every case and dtype, on every instruction set, against the oracle."""

import pytest
from cases import CASES, CASES_24, LONG, LONG_24, SMALL, SMALL_24, case_id, named
from core.products import DTYPES, OPS, product

LOW = ("f16", "bf16")
ROUNDS = (named("tokens_1029"),)  # sums wait between rounds of tokens
FEW = SMALL + SMALL_24
# Orders, and all that comes after the sums, know nothing of the format: one case of each kernel is enough.
ONE_OF_EACH = SMALL + tuple(
    case for case in SMALL_24 if case.name in ("groups_odd_7x24", "tokens_1", "misaligned_ragged")
)


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_equals_the_oracle(context, op, dtype, case):
    product(case, op, dtype).check(context)


@pytest.mark.parametrize("case", ONE_OF_EACH + LONG + LONG_24, ids=case_id)
@pytest.mark.parametrize("d_order", ["row_major", "col_major"])
@pytest.mark.parametrize("b_order", ["row_major", "col_major"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["spmm", "spmm_t"])
def test_dense_orders(context, op, dtype, b_order, d_order, case):
    product(case, op, dtype, b_order=b_order, d_order=d_order).check(context)


@pytest.mark.parametrize("case", ONE_OF_EACH + ROUNDS, ids=case_id)
@pytest.mark.parametrize("a_order", ["row_major", "col_major"])
@pytest.mark.parametrize("b_order", ["row_major", "col_major"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sddmm_orders(context, dtype, a_order, b_order, case):
    product(case, "sddmm", dtype, a_order=a_order, b_order=b_order).check(context)


@pytest.mark.parametrize("case", FEW, ids=case_id)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", LOW)
def test_f32_results_of_low_precision(context, dtype, op, case):
    product(case, op, dtype, out_dtype="f32").check(context)


@pytest.mark.parametrize("case", FEW + ROUNDS, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sddmm_accumulates(context, dtype, case):
    product(case, "sddmm", dtype, alpha=0.5, beta=-2.0).check(context)


@pytest.mark.parametrize("case", FEW + ROUNDS, ids=case_id)
@pytest.mark.parametrize("dtype", LOW)
def test_sddmm_accumulates_in_f32(context, dtype, case):
    product(case, "sddmm", dtype, out_dtype="f32", alpha=-1.0, beta=1.0).check(context)


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=case_id)
@pytest.mark.parametrize("epilogue", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["spmm", "spmm_t"])
def test_epilogues_with_bias_and_aux(context, op, dtype, epilogue, case):
    product(case, op, dtype, epilogue=epilogue, bias=dtype, aux=True).check(context)


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=case_id)
@pytest.mark.parametrize("dtype", LOW)
def test_f32_bias(context, dtype, case):
    product(case, "spmm", dtype, bias="f32").check(context)


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_aux_without_activation(context, dtype, case):
    product(case, "spmm", dtype, bias=dtype, aux=True).check(context)


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=case_id)
@pytest.mark.parametrize("c_is_d", [False, True], ids=["c_apart", "c_is_d"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["spmm", "spmm_t"])
def test_adds_beta_c(context, op, dtype, c_is_d, case):
    product(case, op, dtype, c=dtype, c_is_d=c_is_d, alpha=0.5, beta=-1.5).check(context)


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=case_id)
@pytest.mark.parametrize("dtype", LOW)
def test_f32_c_with_everything_else(context, dtype, case):
    rest = {"b_order": "row_major", "d_order": "row_major", "bias": "f32", "aux": True, "epilogue": "gelu"}
    product(case, "spmm", dtype, c="f32", alpha=2.0, beta=0.5, **rest).check(context)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["spmm", "spmm_t"])
def test_alpha_zero(context, op, dtype):
    product(named("ragged"), op, dtype, alpha=0.0, bias=dtype).check(context)
