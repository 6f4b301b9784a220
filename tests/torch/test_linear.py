"""BlockSparseLinear in use: making one, calling it, copying it, and its report."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import CASES, CASES_24, SMALL, SMALL_24, case_id, named
from torch import nn

from bsparse_torch import BlockPattern, BlockSparseLinear, Unsupported
from bsparse_torch import functional as F


def layer_of(data):
    """A layer with a case's values and bias."""
    layer = BlockSparseLinear(data.pattern.cols, data.pattern.rows, dtype=data.values.dtype, pattern=data.pattern)
    with torch.no_grad():
        layer.values.copy_(data.values)
        if data.metadata is not None:
            layer.metadata.copy_(data.metadata)
        layer.bias.copy_(data.bias)
    return layer


@pytest.mark.parametrize("case", CASES + CASES_24, ids=case_id)
def test_forward_equals_the_oracle(operands, expect, check, case):
    data = operands(case, "f32")
    check(layer_of(data)(data.x), dtype="f32", **expect(case, data.exact, "linear"))


@pytest.mark.parametrize("case", SMALL + SMALL_24, ids=case_id)
def test_to_dense_and_back(operands, case):
    data = operands(case, "f64")
    layer = layer_of(data)
    assert torch.equal(layer.to_dense(), torch.from_numpy(data.exact.s))
    assert torch.equal(F.pack(layer.to_dense(), data.pattern, layer.metadata), layer.values)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (5,), (2, 3), (2, 0, 3), (2, 1, 3, 2)])
def test_leading_dimensions(shape):
    layer = BlockSparseLinear(24, 40, block=8)
    x = torch.randn(*shape, 24)
    y = layer(x)
    assert y.shape == (*shape, 40)
    assert y.is_contiguous()
    torch.testing.assert_close(y, layer.to_linear()(x))


VIEWS = {
    "transposed": lambda: torch.randn(24, 5).t(),
    "permuted": lambda: torch.randn(24, 3, 2).permute(2, 1, 0),
    "sliced rows": lambda: torch.randn(10, 24)[::2],
    "sliced columns": lambda: torch.randn(5, 48)[:, ::2],
    "narrowed": lambda: torch.randn(5, 30)[:, 3:27],
    "expanded": lambda: torch.randn(1, 24).expand(5, 24),
    "flipped": lambda: torch.randn(5, 24).flip(0)[:, :],
    "one row of many": lambda: torch.randn(4, 5, 24)[:, 1:2],
    "channels last": lambda: torch.randn(2, 24, 3, 4).to(memory_format=torch.channels_last).permute(0, 2, 3, 1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_non_contiguous_input(view):
    layer = BlockSparseLinear(24, 40, block=8)
    x = VIEWS[view]()
    assert torch.equal(layer(x), layer(x.contiguous()))


def test_one_input_feature_with_odd_strides():
    layer = BlockSparseLinear(1, 5, block=4, density=1.0)
    x = torch.randn(6, 3)[:, :1]
    torch.testing.assert_close(layer(x), layer.to_linear()(x))


def test_values_of_any_strides(operands):
    data = operands(named("blocks_odd_7x5"), "f32")
    strided = data.values.transpose(1, 2).contiguous().transpose(1, 2)
    for values in (strided, data.values.repeat_interleave(2, 0)[::2]):
        assert torch.equal(
            F.block_sparse_linear(data.x, values, data.pattern),
            F.block_sparse_linear(data.x, data.values, data.pattern),
        )


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_functional_needs_no_gradients(operands, expect, check, activation):
    case = named("ragged")
    data = operands(case, "f32")
    y = F.block_sparse_linear(data.x, data.values, data.pattern, data.bias, activation)
    check(y, dtype="f32", **expect(case, data.exact, "linear", activation))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_a_layer_with_an_activation_is_the_functional(activation):
    layer, x = BlockSparseLinear(48, 32, block=16, activation=activation), torch.randn(4, 48)
    expected = F.block_sparse_linear(x, layer.values, layer.pattern, layer.bias, activation)
    assert torch.equal(layer(x), expected)
    layer.activation = None
    assert not torch.equal(layer(x), expected)


def test_an_activation_beside_from_linear():
    linear, x = nn.Linear(48, 32), torch.randn(4, 48)
    layer = BlockSparseLinear.from_linear(linear, density=1.0, block=16, activation="gelu")
    torch.testing.assert_close(layer(x), nn.functional.gelu(linear(x)))


def test_copies_keep_the_activation():
    layer = BlockSparseLinear(32, 32, block=16, activation="silu")
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.activation == "silu"


def test_layers_pickled_before_they_had_an_activation():
    layer, x = BlockSparseLinear(32, 32, block=16), torch.randn(2, 32)
    del layer.__dict__["activation"]
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


def test_an_activation_is_no_state():
    layer = BlockSparseLinear(32, 32, block=16, activation="relu")
    other = BlockSparseLinear(32, 32, block=16)
    other.load_state_dict(layer.state_dict())
    assert other.activation is None


def test_no_linear_computes_an_activation():
    layer = BlockSparseLinear(32, 32, block=16, activation="gelu")
    with pytest.raises(Unsupported, match="activation is 'gelu'; an nn.Linear has none: set layer.activation = None"):
        layer.to_linear()


def test_constructor_arguments():
    layer = BlockSparseLinear(70, 45, bias=False, dtype=torch.bfloat16, density=0.5, block=(16, 8), pattern="random")
    assert (layer.in_features, layer.out_features, layer.block, layer.format) == (70, 45, (16, 8), "bsr")
    assert layer.bias is None
    assert layer.values.dtype is torch.bfloat16
    assert layer.values.shape == (14, 16, 8)
    assert layer.density == 14 / 27
    assert isinstance(layer.values, nn.Parameter)
    assert [name for name, _ in layer.named_parameters()] == ["values"]
    assert {name: buffer.dtype for name, buffer in layer.named_buffers()} == {
        "row_offsets": torch.int32,
        "col_indices": torch.int32,
    }


def test_patterns_given_as_mask_and_as_pattern():
    mask = torch.eye(3, dtype=torch.bool)
    by_mask = BlockSparseLinear(24, 24, pattern=mask, block=8)
    by_pattern = BlockSparseLinear(24, 24, pattern=BlockPattern.from_mask(mask, 8))
    assert by_mask.pattern == by_pattern.pattern
    assert by_pattern.block == (8, 8)


def test_seeds():
    def make(seed=None):
        if seed is None:
            return BlockSparseLinear(64, 64, block=8)
        return BlockSparseLinear(64, 64, block=8, generator=torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    first = make()
    torch.manual_seed(1)
    again = make()
    for one, other, same in ((first, again, True), (make(5), make(5), True), (make(5), make(6), False)):
        assert (one.pattern == other.pattern) is same
        assert torch.equal(one.values, other.values) is same
        assert torch.equal(one.bias, other.bias) is same


def test_first_values_have_the_spread_of_the_fan_in_that_is_left():
    layer = BlockSparseLinear(1024, 512, block=32, density=0.25)
    bound = 256**-0.5
    assert 0.95 * bound < layer.values.abs().max() <= bound
    assert 0.95 * bound < layer.bias.abs().max() <= bound
    torch.testing.assert_close(layer.values.std(), torch.tensor(bound / 3**0.5), rtol=0.02, atol=0)
    variance = layer(torch.randn(256, 1024)).var()
    torch.testing.assert_close(variance, torch.tensor(1 / 3 + bound**2 / 3), rtol=0.1, atol=0)


def test_fan_in_is_that_of_each_block_row():
    mask = torch.tensor([[True, True, True], [False, False, True], [False, False, False]])
    layer = BlockSparseLinear(40, 48, block=16, pattern=mask)  # the last column of blocks holds 8 inputs
    limits = layer.to_dense().abs().amax(1).view(3, 16).amax(1)
    assert 0.8 * 40**-0.5 < limits[0] <= 40**-0.5
    assert 0.8 * 8**-0.5 < limits[1] <= 8**-0.5
    assert limits[2] == 0


def test_padding_is_zero_at_first_and_after_steps():
    layer = BlockSparseLinear(45, 70, block=16, density=1.0)
    inside = F.pack(torch.ones(70, 45), layer.pattern)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for _ in range(3):
        assert not layer.values.detach()[inside == 0].any()
        layer(torch.randn(4, 45)).square().sum().backward()
        optimizer.step()
    assert layer.values.detach()[inside == 1].all()


def test_reset_parameters_draws_anew():
    layer = BlockSparseLinear(64, 64, block=8)
    before = layer.values.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.values, before)


def test_copies_are_independent():
    layer = BlockSparseLinear(32, 32, block=16)
    x = torch.randn(2, 32)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
        assert other.row_offsets is other.pattern.row_offsets
        assert other.values.data_ptr() != layer.values.data_ptr()
        assert other.col_indices.data_ptr() != layer.col_indices.data_ptr()


def test_inference_mode():
    layer = BlockSparseLinear(32, 32, block=16)
    x = torch.randn(2, 32)
    with torch.inference_mode():
        y = layer(x)
        assert y.is_inference()
        assert torch.equal(
            BlockSparseLinear(32, 32, block=16, pattern=layer.pattern)(x).isnan().any(), torch.tensor(False)
        )
    torch.testing.assert_close(y, layer(x).detach())


def test_dtype_conversions():
    layer = BlockSparseLinear(32, 32, block=16)
    x = torch.randn(2, 32)
    y = layer(x)
    torch.testing.assert_close(layer.double()(x.double()).float(), y)
    assert layer.bfloat16()(x.bfloat16()).dtype is torch.bfloat16
    assert layer.row_offsets.dtype is torch.int32
    assert layer.pattern.row_offsets is layer.row_offsets


def test_threads_may_share_a_layer():
    layer, x = BlockSparseLinear(96, 96, block=16), torch.randn(40, 96)
    expected = run_in_thread(layer, x)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: run_in_thread(layer, x), range(20)):
            assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))


def run_in_thread(layer, x):
    """The output and the gradients of values and bias."""
    y = layer(x)
    return y, *torch.autograd.grad(y.square().sum(), (layer.values, layer.bias))


def test_gradient_checkpointing():
    layer, x = BlockSparseLinear(48, 32, block=16), torch.randn(4, 48)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    (grad,) = torch.autograd.grad(y.sum(), layer.values)
    torch.testing.assert_close(grad, torch.autograd.grad(layer(x).sum(), layer.values)[0])


def test_functional_call():
    layer, x = BlockSparseLinear(48, 32, block=16), torch.randn(4, 48)
    doubled = {name: 2 * parameter.detach() for name, parameter in layer.named_parameters()}
    torch.testing.assert_close(torch.func.functional_call(layer, doubled, (x,)), 2 * layer(x))


def test_report():
    layer = BlockSparseLinear(96, 70, block=16, density=0.25)
    report = layer.report(tokens=7)
    assert set(report["kernels"]) == {"forward", "grad_input", "grad_weight"}
    assert all(name.startswith("cpu.bsr_") for name in report["kernels"].values())
    assert report["bytes"] == {"dense": 4 * (96 * 70 + 70), "sparse": 4 * (layer.values.numel() + 6 + 10 + 70)}
    assert (report["format"], report["block"], report["blocks"], report["dtype"]) == ("bsr", (16, 16), 10, "float32")
    assert report["density"] == layer.density
    assert report["activation"] is None
    assert (report["backend"], report["dense_path"]) == ("bsparse", False)
    assert report["dense_path_reason"] == 'backend is "bsparse"; the predicted gain over dense is 2.63x with 7 tokens'


def test_report_advises_where_dense_is_about_as_fast():
    reason = BlockSparseLinear(64, 64, block=16, density=1.0).report()["dense_path_reason"]
    assert "predicted gain over dense is 1.00x with 128 tokens, below 1.05x: nn.Linear would serve as well" in reason


def test_report_where_no_kernel_runs():
    kernels = BlockSparseLinear(64, 64, block=16, device="meta").report()["kernels"]
    assert kernels["forward"] == "none: no kernel runs on device meta"


def test_report_of_a_layer_with_an_activation():
    report = BlockSparseLinear(96, 70, block=16, activation="gelu").report(tokens=7)
    assert report["activation"] == "gelu"
    assert report["kernels"]["forward"].startswith("cpu.bsr_")


def test_repr_with_an_activation():
    assert repr(BlockSparseLinear(64, 32, block=16, activation="relu")).endswith("density=0.5, activation='relu')")


def test_repr():
    assert repr(BlockSparseLinear(64, 32, block=16)) == (
        "BlockSparseLinear(in_features=64, out_features=32, bias=True, "
        "format='bsr', block=(16, 16), blocks=4, density=0.5)"
    )
