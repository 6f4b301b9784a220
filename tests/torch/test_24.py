"""Layers of the 2:4 formats: making one, choosing what is kept, training. test_24_errors.py has what is refused."""

import copy
import pickle

import numpy as np
import oracle
import pytest
import torch
from cases import SMALL_24, case_id
from torch import nn
from torch.nn.utils import prune

from bsparse_torch import BlockPattern, BlockSparseLinear, InvalidArgument, gain
from bsparse_torch import functional as F
from bsparse_torch.pruning import BlockShrinker

FORMATS = {"semi24": {"format": "semi24"}, "bsr24": {"format": "bsr24", "block": (16, 8)}}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
every_format = pytest.mark.parametrize("rest", FORMATS.values(), ids=FORMATS)


def groups(dense):
    """[out, groups, 4], with zero columns at the end where they are needed."""
    return nn.functional.pad(dense, (0, -dense.shape[1] % 4)).unflatten(1, (-1, 4))


@every_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_a_dense_layer_with_the_zeros(rest, dtype):
    layer, x = BlockSparseLinear(48, 64, dtype=dtype, **rest), torch.randn(5, 48, dtype=dtype)
    linear, other = layer.to_linear(), x.clone().requires_grad_()
    x.requires_grad_()
    for y in (layer(x), linear(other)):
        y.square().sum().backward()
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype in (torch.bfloat16, torch.float16) else {}
    torch.testing.assert_close(layer(x), linear(other), **tolerance)
    torch.testing.assert_close(x.grad, other.grad, **tolerance)
    kept = F.pack(linear.weight.grad, layer.pattern, layer.metadata)  # a masked gradient
    torch.testing.assert_close(layer.values.grad, kept, **tolerance)
    torch.testing.assert_close(layer.bias.grad, linear.bias.grad, **tolerance)


def test_shapes_and_attributes():
    layer = BlockSparseLinear(48, 70, format="bsr24", block=16, density=0.4)
    assert (layer.format, layer.pattern.format, layer.pattern.blocks) == ("bsr24", "bsr24", 5)
    assert (layer.values.shape, layer.metadata.shape, layer.metadata.dtype) == ((5, 16, 8), (5, 16, 2), torch.uint8)
    assert layer.density == layer.pattern.density == 5 / 15 / 2
    assert list(dict(layer.named_buffers())) == ["row_offsets", "col_indices", "metadata"]
    assert repr(layer.pattern).startswith("BlockPattern(format='bsr24', shape=(70, 48), block=(16, 16), blocks=5")
    whole = BlockSparseLinear(48, 70, format="semi24")
    assert (whole.block, whole.density, whole.pattern) == ((70, 48), 0.5, BlockPattern.semi24((70, 48)))
    assert (whole.values.shape, whole.metadata.shape) == ((70, 24), (70, 6))
    assert "format='semi24', block=(70, 48), blocks=1, density=0.5" in repr(whole)
    assert BlockSparseLinear(48, 70, block=16).metadata is None


def test_a_pattern_brings_its_format():
    pattern = BlockPattern.random((70, 48), 0.5, 16, format="bsr24")
    assert BlockSparseLinear(48, 70, pattern=pattern).format == "bsr24"
    mask = pattern.mask()
    assert BlockSparseLinear(48, 70, pattern=mask, block=16, format="bsr24").pattern == pattern
    assert BlockPattern.from_mask(mask, 16, (70, 48)) != pattern
    assert pickle.loads(pickle.dumps(pattern)) == copy.deepcopy(pattern) == pattern


@every_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_values_and_positions(rest, dtype):
    """Uniform within 1/sqrt(fan-in), that of the kept half; all pairs of columns alike (in float32 one of each two)."""
    layer = BlockSparseLinear(512, 256, dtype=dtype, **{**rest, "block": (64, 64)}, density=0.5)
    inputs = 256 if layer.format == "semi24" else 128
    bound, values = inputs**-0.5, layer.values.detach().float()
    assert 0.98 * bound < values.abs().max() <= bound * 1.01
    torch.testing.assert_close(values.std(), torch.tensor(bound / 3**0.5), rtol=0.02, atol=0)
    halves = torch.cat([layer.metadata & 15, layer.metadata >> 4]).flatten()
    valid = [8, 9, 12, 13] if dtype is torch.float32 else [4, 8, 9, 12, 13, 14]
    found, counts = halves.unique(return_counts=True)
    assert found.tolist() == valid
    assert counts.float().std() < 0.06 * counts.float().mean()


def test_seeds():
    def make(seed):
        return BlockSparseLinear(64, 64, format="semi24", generator=torch.Generator().manual_seed(seed))

    assert torch.equal(make(1).metadata, make(1).metadata) and torch.equal(make(1).values, make(1).values)
    assert not torch.equal(make(1).metadata, make(2).metadata)


@pytest.mark.parametrize("case", SMALL_24, ids=case_id)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_chooses_as_the_oracle(operands, case, dtype):
    pattern = operands(case, "f64").pattern
    dense = torch.from_numpy(np.random.default_rng(1).standard_normal(case.shape)).to(dtype)
    dense[::3, ::5], dense[1::3, ::7], dense[2::3, ::9] = 0, torch.nan, -torch.inf
    rule = oracle.choose_larger if dtype is torch.float32 else oracle.choose_largest
    expected = case.choose(dense.double().numpy(), rule)
    assert torch.equal(F.choose_positions(dense, pattern), torch.from_numpy(expected))
    metadata = F.choose_positions(dense, pattern)
    assert np.array_equal(
        F.pack(dense, pattern, metadata).double().numpy(),
        case.pack(dense.double().numpy(), expected),
        equal_nan=True,
    )


@every_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_linear_keeps_the_largest(rest, dtype):
    linear = nn.Linear(64, 48, dtype=dtype)
    linear.bias.requires_grad_(False)
    layer = BlockSparseLinear.from_linear(linear, density=1.0 if "block" in rest else None, **rest)
    dense, weight = layer.to_dense().detach(), linear.weight.detach()
    assert torch.equal(dense[dense != 0], weight[dense != 0])
    assert ((groups(dense) != 0).sum(-1) == 2).all()
    dropped = groups(weight.abs().masked_fill(dense != 0, 0)).unflatten(-1, (-1, 2 if dtype is torch.float32 else 4))
    kept = groups(dense.abs().masked_fill(dense == 0, torch.inf)).unflatten(-1, dropped.shape[-2:])
    assert (dropped.amax(-1) <= kept.amin(-1)).all()
    assert (layer.values.dtype, layer.bias.requires_grad, layer.values.requires_grad) == (dtype, False, True)
    assert torch.equal(layer.to_linear().weight, dense)


def test_bsr24_keeps_the_blocks_that_lose_least():
    """Of two blocks the one with the larger numbers after pruning, though the other one's norm is larger before."""
    linear = nn.Linear(16, 1, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0] * 8 + [1.1, 1.1, 0, 0] * 2]))
    layer = BlockSparseLinear.from_linear(linear, density=0.5, block=(1, 8), format="bsr24")
    assert layer.col_indices.tolist() == [1]


def fitting_mask(shape=(48, 64)):
    """Bool: one or two of every four columns, in some blocks of 16 x 8 none."""
    order = torch.rand(*shape).unflatten(1, (-1, 4)).argsort(-1)
    mask = (order < torch.randint(1, 3, (*order.shape[:2], 1))).flatten(1)
    return mask & (torch.rand(3, 8) < 0.6).repeat_interleave(16, 0).repeat_interleave(8, 1)


@every_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_linear_with_a_mask_of_numbers(rest, dtype):
    linear, mask = nn.Linear(64, 48, dtype=dtype), fitting_mask()
    layer = BlockSparseLinear.from_linear(linear, mask=mask, **rest)
    assert torch.equal(layer.to_dense(), linear.weight * mask)
    if layer.format == "bsr24":
        assert torch.equal(layer.pattern.mask(), mask.view(3, 16, 8, 8).any(3).any(1))
    with torch.no_grad():
        linear.weight.mul_(mask)
    again = BlockSparseLinear.from_linear(linear, choose="nonzero", **rest)
    assert torch.equal(again.to_dense(), linear.weight)
    assert torch.equal(again.metadata, layer.metadata) and again.pattern == layer.pattern


def test_from_a_pruned_linear():
    linear = nn.Linear(64, 48)
    prune.custom_from_mask(linear, "weight", fitting_mask())
    layer = BlockSparseLinear.from_linear(linear, mask=linear.weight_mask.bool(), format="semi24")
    assert torch.equal(layer.to_dense(), linear.weight)


def test_from_linear_with_a_block_mask():
    linear, blocks = nn.Linear(45, 70), torch.rand(5, 3) < 0.6
    layer = BlockSparseLinear.from_linear(linear, mask=blocks, block=16, format="bsr24")
    assert torch.equal(layer.pattern.mask(), blocks)
    whole = BlockSparseLinear.from_linear(linear, mask=torch.ones(5, 3, dtype=torch.bool), block=16, format="bsr24")
    kept = blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)[:70, :45]
    assert torch.equal(layer.to_dense(), whole.to_dense() * kept)


@every_format
def test_report(rest):
    layer = BlockSparseLinear(48, 64, **rest)
    report = layer.report(tokens=7)
    assert all(name.startswith(f"cpu.{layer.format}_s") for name in report["kernels"].values())
    offsets = 4 * (layer.row_offsets.numel() + layer.col_indices.numel() + 64)
    assert report["bytes"]["sparse"] == 4 * layer.values.numel() + layer.metadata.numel() + offsets
    assert (report["format"], report["density"]) == (layer.format, layer.density)


def test_where_dense_is_predicted_to_be_faster():
    pattern, cpu = BlockPattern.semi24((2048, 2048)), torch.device("cpu")
    assert gain.predicted_gain(pattern, 512, torch.float32, cpu) == pytest.approx(1.0)
    assert gain.dense_from(pattern, torch.float32, cpu) == gain.NEVER
    quarter = BlockPattern.balanced((2048, 2048), 0.25, 64, format="bsr24")
    assert gain.predicted_gain(quarter, 512, torch.float32, cpu) == pytest.approx(4.0)
    assert gain.dense_from(quarter, torch.float32, cpu) == gain.NEVER
    assert gain.predicted_gain(quarter, 512, torch.bfloat16, torch.device("cuda")) == 0  # no kernel
    assert gain.dense_from(quarter, torch.bfloat16, torch.device("cuda")) == 0


@every_format
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("grad", [True, False])
def test_the_dense_path(rest, activation, grad):
    layer, x = BlockSparseLinear(48, 64, activation=activation, **rest).double(), torch.randn(5, 48).double()
    results = []
    for backend in ("bsparse", "dense"):
        layer.backend = backend
        with torch.set_grad_enabled(grad):
            y = layer(x)
        results.append([y, *(torch.autograd.grad(y.square().sum(), layer.parameters()) if grad else ())])
    torch.testing.assert_close(*results)


def test_padding_is_zero_at_first_and_after_steps():
    layer = BlockSparseLinear(45, 70, block=16, density=1.0, format="bsr24")
    inside = F.pack(torch.ones(70, 45), layer.pattern, layer.metadata)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for _ in range(3):
        assert not layer.values.detach()[inside == 0].any()
        layer(torch.randn(4, 45)).square().sum().backward()
        assert not layer.values.grad[inside == 0].any()
        optimizer.step()
    assert layer.values.detach()[inside == 1].all()


@every_format
def test_reprune_moves_values_and_optimizer_state(rest):
    layer = BlockSparseLinear(48, 64, **rest)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(5, 48)).square().sum().backward()
    optimizer.step()
    values, momentum, scores = layer.values, optimizer.state[layer.values]["exp_avg"], torch.randn(64, 48)
    before = layer.to_dense().detach()
    moments = F.unpack(momentum, layer.pattern, layer.metadata)
    layer.reprune(scores, optimizer)
    assert layer.values is values and values.grad is None
    assert torch.equal(layer.metadata, F.choose_positions(scores, layer.pattern))
    after = F.unpack(torch.ones_like(values), layer.pattern, layer.metadata)
    assert torch.equal(layer.to_dense(), before * after)
    assert torch.equal(F.unpack(momentum, layer.pattern, layer.metadata), moments * after)
    x = torch.randn(5, 48)
    torch.testing.assert_close(layer(x), layer.to_linear()(x))
    layer(x).square().sum().backward()
    optimizer.step()


def test_backward_after_reprune_raises():
    layer = BlockSparseLinear(48, 64, format="semi24")
    loss = layer(torch.randn(5, 48)).sum()
    layer.reprune(torch.randn(64, 48))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_training_with_repruning_finds_the_weight():
    """A 2:4 teacher is learned where positions follow the dense weight's gradient, and not where they are fixed."""
    teacher = BlockSparseLinear(32, 16, format="semi24", bias=False, dtype=torch.float64)
    losses = []
    for every in (10, 1000):
        torch.manual_seed(1)
        layer = BlockSparseLinear(32, 16, format="semi24", bias=False, dtype=torch.float64)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        for step in range(200):
            x = torch.randn(64, 32, dtype=torch.float64)
            error = layer(x) - teacher(x).detach()
            optimizer.zero_grad()
            error.square().mean().backward()
            optimizer.step()
            if step % every == every - 1 and step < 150:
                gradient = 2 * error.detach().T @ x / len(x)
                layer.reprune(layer.to_dense() - 0.5 * gradient, optimizer)
        losses.append(float(error.detach().square().mean() / teacher(x).detach().square().mean()))
    assert losses[0] < 0.01 < 0.1 < losses[1]


def test_set_pattern_moves_positions_with_their_blocks():
    layer = BlockSparseLinear(45, 70, block=16, format="bsr24", pattern="random")
    before, old = layer.to_dense().detach(), layer.pattern.mask()
    new = torch.rand(5, 3) < 0.6
    layer.set_pattern(new, fill=0.5)
    assert torch.equal(layer.pattern.mask(), new)
    expand = lambda mask: mask.repeat_interleave(16, 0).repeat_interleave(16, 1)[:70, :45]  # noqa: E731
    dense = layer.to_dense().detach()
    assert torch.equal(dense[expand(old & new)], before[expand(old & new)])
    columns = torch.arange(45).expand(70, 45)
    assert torch.equal(dense == 0.5, expand(new & ~old) & (columns % 2 == 0))
    x = torch.randn(3, 45)
    torch.testing.assert_close(layer(x), layer.to_linear()(x))


def test_shrinking_counts_blocks():
    layer = BlockSparseLinear(64, 64, block=8, density=0.5, format="bsr24")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    shrinker = BlockShrinker([layer], 0.25, steps=4, every=2, optimizer=optimizer)
    counts = []
    for _ in range(4):
        layer(torch.randn(4, 64)).square().sum().backward()
        shrinker.observe()
        optimizer.step()
        shrinker.step()
        counts.append(layer.pattern.blocks)
    assert counts == [32, 18, 18, 16]
    with pytest.raises(InvalidArgument, match="format semi24, which has no blocks to drop"):
        BlockShrinker([BlockSparseLinear(64, 64, format="semi24")], 0.25, steps=4, optimizer=optimizer)
