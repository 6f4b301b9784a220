"""The operators torch.ops.bsparse.*: against the oracle on every case, and by torch.library.opcheck."""

import gc

import pytest
import torch
from cases import CASES, CASES_24, SMALL, SMALL_24, case_id, named
from torch.library import opcheck

from bsparse_torch import BlockPattern, InvalidArgument

DTYPES = ("f32", "f16", "bf16", "f64")
BSR24, SEMI24 = named("ragged").within("bsr24"), named("tokens_7").within("semi24")
ops = torch.ops.bsparse


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_equals_the_oracle(operands, expect, check, case, dtype):
    data = operands(case, dtype)
    y, aux = ops.linear(data.x, data.values, data.bias, *data.arguments, "none", False, data.metadata)
    assert y.is_contiguous()
    assert not aux.numel()
    check(y, dtype=dtype, **expect(case, data.exact, "linear"))


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_grad_input_equals_the_oracle(operands, expect, check, case, dtype):
    data = operands(case, dtype)
    dx = ops.grad_input(data.dy, data.values, *data.arguments, data.metadata)
    assert dx.is_contiguous()
    check(dx, dtype=dtype, **expect(case, data.exact, "grad_input"))


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
@pytest.mark.parametrize("dtype", DTYPES)
def test_grad_values_equals_the_oracle(operands, expect, check, case, dtype):
    data = operands(case, dtype)
    dw = ops.grad_values(data.dy, data.x, *data.arguments, *case.block, data.metadata)
    assert dw.is_contiguous()
    check(dw, dtype=dtype, **expect(case, data.exact, "grad_values"))


@pytest.mark.parametrize("case", SMALL + SMALL_24, ids=case_id)
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_activation_and_aux_equal_the_oracle(operands, expect, check, case, activation, dtype):
    data = operands(case, dtype)
    y, aux = ops.linear(data.x, data.values, data.bias, *data.arguments, activation, True, data.metadata)
    check(y, dtype=dtype, **expect(case, data.exact, "linear", activation))
    check(aux, dtype=dtype, **expect(case, data.exact, "linear"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_float32_bias_with_low_precision(operands, expect, check, dtype):
    case = named("ragged")
    data = operands(case, dtype)
    y, _ = ops.linear(data.x, data.values, data.bias.float(), *data.arguments, "none", False)
    check(y, dtype=dtype, **expect(case, data.exact, "linear"))


def test_without_bias(operands, expect, check):
    case = named("ragged")
    data = operands(case, "f32")
    y, _ = ops.linear(data.x, data.values, None, *data.arguments, "none", False)
    check(y, dtype="f32", **expect(case, data.exact, "linear", bias=False))


@pytest.mark.parametrize("case", [named("ragged"), named("empty"), named("tokens_0"), BSR24, SEMI24], ids=case_id)
@pytest.mark.parametrize(("activation", "keep_aux"), [("none", False), ("gelu", True)])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_opcheck_linear(operands, case, activation, keep_aux, bias):
    data = operands(case, "f32")
    x, values = data.x.requires_grad_(), data.values.requires_grad_()
    added = data.bias.requires_grad_() if bias else None
    opcheck(ops.linear, (x, values, added, *data.arguments, activation, keep_aux, data.metadata))


@pytest.mark.parametrize("grads", [True, False], ids=["grads", "no_grads"])
@pytest.mark.parametrize("case", [named("ragged"), BSR24, SEMI24], ids=case_id)
def test_opcheck_gradients(operands, case, grads):
    data = operands(case, "f32")
    for tensor in (data.x, data.dy, data.values):
        tensor.requires_grad_(grads)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")  # test_aot would ask for double backward
    opcheck(ops.grad_input, (data.dy, data.values, *data.arguments, data.metadata), test_utils=tests)
    opcheck(ops.grad_values, (data.dy, data.x, *data.arguments, *case.block, data.metadata), test_utils=tests)


def test_results_repeat_bit_by_bit(operands):
    data = operands(named("many_blocks"), "f32")
    first, again = (ops.linear(data.x, data.values, data.bias, *data.arguments, "none", False)[0] for _ in range(2))
    assert torch.equal(first, again)


def test_every_thread_count_of_torch_is_followed(operands):
    data = operands(named("many_blocks"), "f64")
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(ops.linear(data.x, data.values, None, *data.arguments, "none", False)[0])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


def unknown_pattern():
    """A pattern's arguments after the process has forgotten it, as in a fresh process."""
    pattern = BlockPattern.from_mask(torch.tensor([[True, False, True]]), block=(3, 5))
    return pattern.row_offsets, pattern.col_indices, pattern.key, 3, 15


def test_a_pattern_that_this_process_has_not_seen_is_rebuilt():
    arguments = unknown_pattern()
    gc.collect()
    y, _ = ops.linear(torch.ones(1, 15), torch.ones(2, 3, 5), None, *arguments, "none", False)
    assert torch.equal(y, torch.full((1, 3), 10.0))


def test_changed_index_tensors_of_an_unknown_pattern_are_refused():
    row_offsets, _, key, *shape = unknown_pattern()
    gc.collect()
    changed = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(InvalidArgument, match=f"pattern_key is {key - 1}.*changed after it was made"):
        ops.linear(torch.ones(1, 15), torch.ones(2, 3, 5), None, row_offsets, changed, key - 1, *shape, "none", False)


def test_index_tensors_out_of_range_of_an_unknown_pattern_are_refused():
    row_offsets, _, key, *shape = unknown_pattern()
    wild = torch.tensor([0, 7], dtype=torch.int32)
    with pytest.raises(InvalidArgument, match="col_indices"):
        ops.linear(torch.ones(1, 15), torch.ones(2, 3, 5), None, row_offsets, wild, key - 1, *shape, "none", False)


def test_a_key_of_other_sizes_is_refused(operands):
    data = operands(named("ragged"), "f32")
    row_offsets, col_indices, key, rows, cols = data.arguments
    with pytest.raises(InvalidArgument, match=f"pattern_key {key} stands for .*70 x 45.*pass the key and the tensors"):
        ops.grad_input(data.dy[:, :69], data.values, row_offsets, col_indices, key, rows - 1, cols)
