"""backend="auto" and "dense": which product runs, that it computes the same, and what predicts the faster one."""

import pytest
import torch

from bsparse_torch import BlockPattern, BlockSparseLinear, InvalidArgument, gain
from bsparse_torch import functional as F

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
ACTIVATIONS = [None, "relu", "gelu", "gelu_tanh", "silu"]


def pattern(density, block, size=4096):
    return BlockPattern.balanced((size, size), density, block)


def results(layer, x):
    """The output and all gradients."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dense_computes_the_same(activation):
    layer = BlockSparseLinear(70, 45, block=16, density=0.5, activation=activation)
    x = torch.randn(3, 5, 70)
    expected = results(layer, x)
    layer.backend = "dense"
    torch.testing.assert_close(results(layer, x), expected)


def test_dense_with_a_float32_bias_and_under_autocast():
    layer, x = BlockSparseLinear(48, 32, block=16, backend="dense"), torch.randn(4, 48)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    y = F.block_sparse_linear(x.bfloat16(), layer.values.bfloat16(), layer.pattern, layer.bias, backend="dense")
    torch.testing.assert_close(y, layer(x).bfloat16(), rtol=0.02, atol=0.02)


def test_dense_compiles():
    torch.compiler.reset()
    layer, x = BlockSparseLinear(48, 32, block=16, backend="dense"), torch.randn(4, 48)
    fast = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(results(fast, x), results(layer, x))


@pytest.mark.parametrize("backend", ["auto", "dense"])
def test_wrong_shapes_are_named_as_ever(backend):
    layer = BlockSparseLinear(48, 32, block=16, backend=backend)
    with pytest.raises(InvalidArgument, match="x has shape .*in_features = 48"):
        layer(torch.randn(4, 40))


def test_an_unknown_backend_is_named():
    sentence = 'backend is \'fast\'; it must be "bsparse", "auto" or "dense"'
    with pytest.raises(InvalidArgument, match=sentence):
        BlockSparseLinear(48, 32, block=16, backend="fast")
    layer = BlockSparseLinear(48, 32, block=16)
    with pytest.raises(InvalidArgument, match=sentence):
        F.block_sparse_linear(torch.randn(1, 48), layer.values, layer.pattern, backend="fast")


def test_auto_takes_what_is_predicted_to_be_faster(monkeypatch):
    layer, x = BlockSparseLinear(48, 32, block=16, backend="auto"), torch.randn(200, 48)
    assert not layer.report(200)["dense_path"]
    slow = gain.MACHINES["cpu"]._replace(break_even=((1, 1e-3),))
    monkeypatch.setitem(gain.MACHINES, "cpu", slow)
    report = layer.report(200)
    assert report["dense_path"]
    assert report["dense_path_reason"].endswith("the dense product is used, of the same values")
    assert set(report["kernels"].values()) == {"torch.nn.functional.linear, of the unpacked values"}
    with torch.profiler.profile() as profile:
        layer(x)
    names = {event.name for event in profile.events()}
    assert "aten::linear" in names
    assert "bsparse::linear" not in names


@pytest.mark.parametrize(
    ("block", "density", "least"),
    [(128, 0.5, 1.5), (128, 0.1, 6), (64, 0.25, 2), (32, 0.1, 2.5), (16, 0.05, 1)],
)
def test_the_table_of_cuda(block, density, least):
    assert gain.predicted_gain(pattern(density, block), 4096, torch.bfloat16, CUDA) > least


def test_dense_is_preferred_where_the_table_says_so():
    high = pattern(0.9, 32)
    assert 64 < gain.dense_from(high, torch.bfloat16, CUDA) < 8192
    assert gain.predicted_gain(pattern(0.1, 16), 8192, torch.bfloat16, CUDA) < 1  # measured: 0.82
    assert gain.dense_from(pattern(0.25, 64), torch.bfloat16, CUDA) == gain.NEVER
    assert gain.dense_from(pattern(0.5, 16), torch.bfloat16, CUDA) == gain.FEW_TOKENS + 1


def test_dense_begins_where_it_makes_up_for_unpacking():
    high, machine = pattern(0.9, 32), gain.MACHINES["cuda"]
    unpacking = 3 * high.rows * high.cols * 2 / machine.bytes

    def dense_gains(tokens):
        dense = tokens * high.rows * high.cols / machine.multiplications[torch.bfloat16] + machine.call
        return dense / gain.predicted_gain(high, tokens, torch.bfloat16, CUDA) > dense + unpacking

    least = gain.dense_from(high, torch.bfloat16, CUDA)
    assert (dense_gains(least - 1), dense_gains(least)) == (False, True)


def test_tiny_layers_gain_nothing():
    tiny = BlockPattern.balanced((64, 64), 0.25, 16)
    assert gain.predicted_gain(tiny, 8, torch.bfloat16, CUDA) < gain.WORTHWHILE


def test_what_no_kernel_serves_is_dense():
    assert gain.predicted_gain(pattern(0.1, 64), 64, torch.float64, CUDA) == 0
    assert gain.dense_from(pattern(0.1, 64), torch.float64, CUDA) == 0


def test_no_blocks_at_all():
    empty = BlockPattern([0, 0], [], (64, 64), 64)
    assert gain.predicted_gain(empty, 100, torch.float32, CPU) == float("inf")
