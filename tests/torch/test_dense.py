"""From nn.Linear and back, and what `layer.weight` answers."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from bsparse_torch import BlockSparseLinear, InvalidArgument, Unsupported, choose_blocks
from bsparse_torch import functional as F


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_from_linear_keeps_the_kept_weights_exactly(dtype):
    linear = nn.Linear(100, 60, dtype=dtype)
    layer = BlockSparseLinear.from_linear(linear, density=0.3, block=(16, 32))
    mask = choose_blocks(linear.weight, (16, 32), 0.3)
    assert torch.equal(layer.pattern.mask(), mask)
    kept = F.unpack(torch.ones_like(layer.values), layer.pattern).bool()
    assert torch.equal(layer.to_dense(), linear.weight.detach().where(kept, 0))
    assert torch.equal(layer.bias, linear.bias)
    assert layer.values.dtype is dtype


def test_from_linear_keeps_flags_and_shares_nothing():
    linear = nn.Linear(32, 32).eval()
    linear.weight.requires_grad_(False)
    layer = BlockSparseLinear.from_linear(linear, density=1.0, block=32)
    assert (layer.training, layer.values.requires_grad, layer.bias.requires_grad) == (False, False, True)
    before = layer.values.clone(), layer.bias.clone()
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.zero_()
    assert torch.equal(layer.values, before[0])
    assert torch.equal(layer.bias, before[1])


def test_from_linear_with_a_mask():
    linear = nn.Linear(24, 16, bias=False)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    layer = BlockSparseLinear.from_linear(linear, mask=mask, block=8)
    assert torch.equal(layer.pattern.mask(), mask)
    assert layer.bias is None
    with pytest.raises(InvalidArgument, match="mask is given beside density = 0.5 and choose = 'magnitude'"):
        BlockSparseLinear.from_linear(linear, 0.5, 8, mask=mask)


def test_from_linear_of_the_blocks_that_hold_a_nonzero():
    linear = nn.Linear(24, 16)
    with torch.no_grad():
        linear.weight[:8, 8:] = 0.0
        linear.weight[8:] = -0.0
    layer = BlockSparseLinear.from_linear(linear, choose="nonzero", block=8)
    assert layer.pattern.mask().tolist() == [[True, False, False], [False, False, False]]
    x = torch.randn(3, 24)
    torch.testing.assert_close(layer(x), linear(x))


def test_from_a_linear_pruned_by_torch():
    linear = nn.Linear(32, 32)
    mask = torch.eye(2).repeat_interleave(16, 0).repeat_interleave(16, 1)
    prune.custom_from_mask(linear, "weight", mask)
    layer = BlockSparseLinear.from_linear(linear, choose="nonzero", block=16)
    assert torch.equal(layer.pattern.mask(), torch.eye(2, dtype=torch.bool))
    assert layer.values.requires_grad


def test_to_linear():
    layer = BlockSparseLinear(45, 70, block=16).eval()
    layer.values.requires_grad_(False)
    linear = layer.to_linear()
    x = torch.randn(3, 45)
    assert type(linear) is nn.Linear
    assert (linear.in_features, linear.out_features, linear.training) == (45, 70, False)
    assert (linear.weight.requires_grad, linear.bias.requires_grad) == (False, True)
    torch.testing.assert_close(linear(x), layer(x))
    assert BlockSparseLinear(45, 70, bias=False, block=16).to_linear().bias is None


def test_to_dense_is_differentiable():
    layer = BlockSparseLinear(45, 70, block=16)
    layer.to_dense().square().sum().backward()
    torch.testing.assert_close(layer.values.grad, 2 * layer.values.detach())


def test_weight_answers_dtype_device_and_shape():
    weight = BlockSparseLinear(45, 70, block=16, dtype=torch.bfloat16).weight
    assert isinstance(weight, torch.Tensor)
    assert not isinstance(weight, nn.Parameter)
    assert (weight.dtype, weight.device.type, tuple(weight.shape)) == (torch.bfloat16, "cpu", (70, 45))
    assert (weight.dim(), weight.numel(), weight.is_floating_point()) == (2, 70 * 45, True)
    assert "not stored" in repr(weight)


@pytest.mark.parametrize(
    "use",
    [
        lambda weight: weight + 1,
        lambda weight: torch.nn.functional.linear(torch.randn(2, 32), weight),
        lambda weight: weight.data.add_(1),
        lambda weight: nn.init.normal_(weight),
        lambda weight: weight.clone(),
        lambda weight: weight[0],
    ],
)
def test_weight_refuses_to_compute(use):
    with pytest.raises(Unsupported, match="no dense weight is stored.*layer.values.*to_dense"):
        use(BlockSparseLinear(32, 32, block=16).weight)


@torch.no_grad()
def test_torchs_transformer_layer_takes_its_ordinary_path():
    """In evaluation it looks at its Linears' weights for a fast path of its own."""
    encoder = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    with torch.enable_grad():
        expected = encoder(x)
    encoder.linear1, encoder.linear2 = (
        BlockSparseLinear.from_linear(linear, density=1.0, block=16) for linear in (encoder.linear1, encoder.linear2)
    )
    torch.testing.assert_close(nn.TransformerEncoder(encoder, 1, enable_nested_tensor=False)(x), expected)
    torch.testing.assert_close(encoder(x), expected)
