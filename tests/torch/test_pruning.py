"""GradualPruner and BlockShrinker: the schedule, which blocks go, what is left at the end, and resuming."""

import copy

import pytest
import torch
from torch import nn

from bsparse_core import InvalidArgument
from bsparse_torch import BlockSparseLinear
from bsparse_torch.masks import choose_blocks
from bsparse_torch.pruning import BlockShrinker, GradualPruner


def make(features=(32, 48), **options):
    torch.manual_seed(0)
    linear = nn.Linear(features[1], features[0])
    return linear, GradualPruner([linear], **{"density": 0.25, "block": 8, "steps": 4, "every": 1, **options})


def kept(linear, block=8):
    """The fraction of blocks of the effective weight that hold a nonzero."""
    return choose_blocks(linear.weight, block, None, choose="nonzero").float().mean().item()


def train(linear, pruner, calls, seed=1):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    for _ in range(calls):
        x = torch.randn(16, linear.in_features, generator=generator)
        linear(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()


def test_density_falls_along_the_cube():
    _, pruner = make()
    densities = [pruner.current_density]
    for _ in range(5):
        pruner.step()
        densities.append(pruner.current_density)
    assert densities == pytest.approx([0.25 + 0.75 * (1 - p) ** 3 for p in (0, 0.25, 0.5, 0.75, 1, 1)])


def test_start_and_every_delay_the_choice():
    linear, pruner = make(start=2, every=3, steps=6)
    seen = []
    for _ in range(8):
        pruner.step()
        seen.append(kept(linear))
    assert seen[:4] == [1] * 4 and seen[4] < 1 and seen[5] == seen[4] == seen[6] and seen[7] == 0.25


def test_the_largest_blocks_stay():
    linear, pruner = make(steps=1)
    best = choose_blocks(linear.weight, 8, 0.25)
    pruner.step()
    assert torch.equal(choose_blocks(linear.weight, 8, None, choose="nonzero"), best)


def test_training_ends_at_the_density_and_stays_there():
    linear, pruner = make(steps=10, every=2)
    train(linear, pruner, 10)
    mask = linear.weight != 0
    train(linear, pruner, 5)
    assert pruner.done and kept(linear) == 0.25 and torch.equal(linear.weight != 0, mask)


def test_dropped_blocks_learn_only_while_they_may_return():
    linear, pruner = make(steps=2)
    parameter = linear.parametrizations.weight.original
    x = torch.randn(16, 48)
    pruner.step()
    linear(x).square().mean().backward()
    assert (parameter.grad[linear.weight == 0] != 0).any()
    pruner.step()
    parameter.grad = None
    linear(x).square().mean().backward()
    assert (parameter.grad[linear.weight == 0] == 0).all()


def test_a_dropped_block_returns_when_it_has_grown():
    linear, pruner = make(steps=2)
    pruner.step()
    dropped = linear.weight == 0
    with torch.no_grad():
        linear.parametrizations.weight.original[dropped] += 10
    pruner.step()
    assert (linear.weight[dropped] != 0).any()


def test_without_regrow_dropped_blocks_never_learn():
    linear, pruner = make(steps=2, regrow=False)
    pruner.step()
    linear(torch.randn(16, 48)).square().mean().backward()
    gradient = linear.parametrizations.weight.original.grad
    assert (gradient[linear.weight == 0] == 0).all()


def test_finish_leaves_an_ordinary_linear_with_the_same_parameter():
    linear, pruner = make(steps=1)
    parameter = linear.parametrizations.weight.original
    pruner.step()
    weight = linear.weight.detach().clone()
    pruner.finish()
    assert type(linear) is nn.Linear and linear.weight is parameter and torch.equal(linear.weight, weight)


def test_ragged_edges_and_tall_blocks():
    linear, pruner = make(features=(30, 45), block=(16, 8), steps=1)
    pruner.step()
    assert kept(linear, (16, 8)) == 0.25 and linear(torch.randn(3, 45)).shape == (3, 30)


def test_a_resumed_run_equals_an_unbroken_one():
    linear, pruner = make(steps=10, every=3)
    train(linear, pruner, 4)
    states = copy.deepcopy((linear.state_dict(), pruner.state_dict()))
    other, resumed = make(steps=10, every=3)
    other.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    for part in ((linear, pruner), (other, resumed)):
        train(*part, 8, seed=2)
    assert resumed.done and torch.equal(linear.weight, other.weight)


def taylor(calls=1):
    """A linear of which only the first block of 8 inputs ever sees anything but zeros."""
    linear, pruner = make(features=(8, 16), density=0.5, steps=calls, score="taylor")
    with torch.no_grad():
        linear.parametrizations.weight.original[:, 8:] = 10
    return linear, pruner, torch.randn(4, 8).repeat(1, 2) * torch.tensor([1.0] * 8 + [0.0] * 8)


def test_taylor_keeps_what_the_loss_needs_not_what_is_large():
    linear, pruner, x = taylor()
    linear(x).square().mean().backward()
    pruner.observe()
    pruner.step()
    assert (linear.weight[:, :8] != 0).all() and (linear.weight[:, 8:] == 0).all()


def test_taylor_scores_are_a_running_mean_of_squared_sums():
    linear, pruner, x = taylor(calls=9)
    weight, expected = linear.parametrizations.weight.original, torch.zeros(1, 2)
    for _ in range(3):
        linear.zero_grad()
        linear(x).square().mean().backward()
        pruner.observe()
        change = (weight * weight.grad).view(8, 2, 8).sum((0, 2)).view(1, 2)
        expected = 0.98 * expected + 0.02 * change.square()
    assert torch.allclose(linear.parametrizations.weight[0].importance, expected)


def test_taylor_without_observe_says_what_to_call():
    _, pruner, _ = taylor()
    with pytest.raises(RuntimeError, match=r"scored by their gradients and none was observed: call observe\(\)"):
        pruner.step()


def test_taylor_scores_are_part_of_the_state():
    linear, pruner, x = taylor(calls=9)
    linear(x).square().mean().backward()
    pruner.observe()
    other, _, _ = taylor(calls=9)
    other.load_state_dict(linear.state_dict())
    scores = [module.parametrizations.weight[0].importance for module in (linear, other)]
    assert scores[0].any() and torch.equal(*scores)


def test_a_shared_module_is_pruned_once():
    linear = nn.Linear(16, 16)
    assert len(GradualPruner([linear, linear], 0.5, 8, steps=1).linears) == 1


def test_masked_models_can_be_copied():
    linear, pruner = make(steps=1)
    pruner.step()
    assert torch.equal(copy.deepcopy(linear).weight, linear.weight)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"density": 1.5}, r"density is 1.5; it must be in \(0, 1\]"),
        ({"steps": 0}, "steps is 0; it must be an int, 1 or more"),
        ({"start": -1}, "start is -1; it must be an int, 0 or more"),
        ({"every": 2.0}, "every is 2.0; it must be an int, 1 or more"),
        ({"block": 0}, "block is 0; it must be a positive int"),
        ({"score": "size"}, "score is 'size'; it must be one of magnitude, taylor"),
    ],
)
def test_bad_arguments_leave_the_module_alone(change, words):
    linear = nn.Linear(16, 16)
    with pytest.raises(InvalidArgument, match=words):
        GradualPruner([linear], **{"density": 0.5, "block": 8, "steps": 1, **change})
    assert type(linear) is nn.Linear


@pytest.mark.parametrize(
    ("linears", "words"), [([], "linears is empty"), ([nn.ReLU()], "linears holds a ReLU; each must be a Linear")]
)
def test_bad_modules(linears, words):
    with pytest.raises(InvalidArgument, match=words):
        GradualPruner(linears, 0.5, 8, steps=1)


def test_a_module_cannot_be_pruned_by_two():
    linear, _ = make()
    with pytest.raises(InvalidArgument, match="parametrized already: call finish"):
        GradualPruner([linear], 0.5, 8, steps=1)


def test_finish_too_early_says_what_is_missing():
    _, pruner = make()
    with pytest.raises(RuntimeError, match="made 0 of 4 steps"):
        pruner.finish()


def shrinker(density=0.25, start=0.5, **options):
    """A block-sparse layer, its optimizer, and what shrinks it over four steps."""
    torch.manual_seed(0)
    layer = BlockSparseLinear(48, 32, density=start, block=8)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    return layer, optimizer, BlockShrinker([layer], density, optimizer=optimizer, **{"steps": 4, "every": 1, **options})


def shrink(layer, optimizer, shrinking, steps):
    for _ in range(steps):
        layer(torch.randn(16, 48)).square().mean().backward()
        shrinking.observe()
        optimizer.step()
        optimizer.zero_grad()
        shrinking.step()


def test_a_layer_shrinks_along_the_cube_and_keeps_training():
    layer, optimizer, shrinking = shrinker()
    densities = []
    for _ in range(6):
        shrink(layer, optimizer, shrinking, 1)
        densities.append(layer.pattern.blocks / 24)
    assert densities == pytest.approx([0.25 + 0.25 * (1 - p) ** 3 for p in (0.25, 0.5, 0.75, 1, 1, 1)], abs=0.5 / 24)
    assert shrinking.done


def test_a_shrunk_layer_keeps_the_blocks_that_the_loss_needs():
    layer, optimizer, shrinking = shrinker(steps=1, start=1.0)
    x = torch.randn(16, 48)
    x[:, 24:] = 0  # columns of blocks 0 to 2 are seen
    layer(x)[:, :16].square().mean().backward()  # rows of blocks 0 and 1 are asked for
    shrinking.observe()
    shrinking.step()
    needed = torch.zeros(4, 6, dtype=torch.bool)
    needed[:2, :3] = True
    assert torch.equal(layer.pattern.mask(), needed)


def test_dropped_blocks_are_gone_and_the_rest_is_as_it_was():
    layer, optimizer, shrinking = shrinker(steps=1)
    before = layer.to_dense()
    layer(torch.randn(16, 48)).square().mean().backward()
    shrinking.observe()
    shrinking.step()
    after = layer.to_dense()
    assert torch.equal(after, before.where(after != 0, 0)) and len(layer.values) == 6


def test_bfloat16_layers_shrink_like_float32_ones():
    layer, optimizer, shrinking = shrinker(steps=1)
    narrow = BlockSparseLinear(48, 32, block=8, pattern=layer.pattern, dtype=torch.bfloat16)
    narrow.load_state_dict(layer.state_dict())
    shrinking_too = BlockShrinker([narrow], 0.25, steps=1, optimizer=torch.optim.SGD(narrow.parameters(), lr=0.0))
    gradient = torch.randn_like(layer.values).bfloat16()
    for each, shrink_it in ((layer, shrinking), (narrow, shrinking_too)):
        each.values.data = narrow.values.detach().to(each.values.dtype)
        each.values.grad = gradient.to(each.values.dtype)
        shrink_it.observe()
        shrink_it.step()
    assert narrow.pattern == layer.pattern and len(narrow.values) == 6


def test_a_resumed_shrinker_goes_on_as_an_unbroken_one():
    parts, others = shrinker(steps=8, every=3), shrinker(steps=8, every=3)
    shrink(*parts, 4)
    states = [part.state_dict() for part in parts]
    for other, state in zip(others, copy.deepcopy(states), strict=True):
        other.load_state_dict(state)
    for each in (parts, others):
        torch.manual_seed(1)
        shrink(*each, 6)
    assert others[2].done and others[0].pattern == parts[0].pattern
    assert torch.equal(others[0].values, parts[0].values)


def test_no_layer_shrinks_unless_all_were_observed():
    layers = [BlockSparseLinear(48, 32, block=8) for _ in range(2)]
    optimizer = torch.optim.SGD([parameter for layer in layers for parameter in layer.parameters()], lr=0.1)
    shrinking = BlockShrinker(layers, 0.25, steps=1, optimizer=optimizer)
    layers[0](torch.randn(4, 48)).square().sum().backward()
    shrinking.observe()
    with pytest.raises(RuntimeError, match="none was observed"):
        shrinking.step()
    assert layers[0].density == 0.5


@pytest.mark.parametrize(
    ("layers", "words"),
    [([], "layers is empty; pass the BlockSparseLinear"), ([nn.ReLU()], "layers holds a ReLU; each must be a Block")],
)
def test_bad_layers_of_a_shrinker(layers, words):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(InvalidArgument, match=words):
        BlockShrinker(layers, 0.5, steps=1, optimizer=optimizer)


def test_shrinking_without_observe_says_what_to_call():
    _, _, shrinking = shrinker()
    with pytest.raises(RuntimeError, match=r"none was observed: call observe\(\)"):
        shrinking.step()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"density": 0.75}, "density is 0.75; a layer's is 0.5 already: pass less"),
        ({"density": 0.0}, r"density is 0.0; it must be in \(0, 1\]"),
        ({"steps": 0}, "steps is 0; it must be an int, 1 or more"),
        ({"every": 0}, "every is 0; it must be an int, 1 or more"),
    ],
)
def test_bad_arguments_of_a_shrinker(change, words):
    with pytest.raises(InvalidArgument, match=words):
        shrinker(**change)
