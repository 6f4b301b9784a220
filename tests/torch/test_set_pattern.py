"""set_pattern: common blocks keep their values, and optimizer state moves with them."""

import pytest
import torch

from bsparse_torch import BlockPattern, BlockSparseLinear, InvalidArgument
from bsparse_torch import functional as F

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}
OLD = torch.tensor([[True, True, False], [False, True, True]])
NEW = torch.tensor([[False, True, True], [True, True, True]])


def make():
    return BlockSparseLinear(24, 16, block=8, pattern=OLD)


def step(layer, optimizer):
    layer(torch.randn(5, 24)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("new", [NEW, OLD, OLD.logical_not(), torch.zeros_like(OLD), torch.ones_like(OLD)])
def test_common_blocks_keep_their_values(new):
    layer = make()
    parameter, before = layer.values, layer.to_dense().detach()
    layer.set_pattern(BlockPattern.from_mask(new, 8), fill=2.0)
    common, added = ((mask.repeat_interleave(8, 0).repeat_interleave(8, 1)) for mask in (OLD & new, new & ~OLD))
    expected = before.where(common, 0).where(~added, 2.0)
    assert layer.values is parameter
    assert torch.equal(layer.to_dense(), expected)
    assert torch.equal(layer.pattern.mask(), new)
    x = torch.randn(4, 24)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, expected, layer.bias))


def test_a_mask_will_do():
    layer = make()
    layer.set_pattern(NEW)
    assert torch.equal(layer.pattern.mask(), NEW)
    assert not layer.to_dense()[8:, :8].any()


def test_padding_stays_zero():
    layer = BlockSparseLinear(20, 12, block=8, density=0.2)
    layer.set_pattern(torch.ones(2, 3, dtype=torch.bool), fill=3.0)
    assert not layer.values.detach()[F.pack(torch.ones(12, 20), layer.pattern) == 0].any()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_moves_with_the_blocks(name):
    layer = make()
    optimizer = OPTIMIZERS[name](layer.parameters())
    step(layer, optimizer)
    before = {
        key: F.unpack(entry, layer.pattern) for key, entry in optimizer.state[layer.values].items() if is_block(entry)
    }
    layer.set_pattern(NEW, optimizer=optimizer)
    kept = (OLD & NEW).repeat_interleave(8, 0).repeat_interleave(8, 1)
    for key, dense in before.items():
        moved = optimizer.state[layer.values][key]
        assert moved.shape == layer.values.shape
        assert torch.equal(F.unpack(moved, layer.pattern), dense.where(kept, 0))
    step(layer, optimizer)


def is_block(entry):
    return isinstance(entry, torch.Tensor) and entry.dim() == 3


def test_training_goes_on_as_if_the_pattern_had_been_there():
    """Dropping blocks and their state equals training the kept blocks alone."""
    small = BlockSparseLinear(24, 16, bias=False, block=8, pattern=OLD & NEW)
    large = BlockSparseLinear(24, 16, bias=False, block=8, pattern=OLD)
    kept = torch.tensor([False, True, True, True])
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01) for layer in (small, large)]
    grad = torch.randn(4, 8, 8)
    with torch.no_grad():
        small.values.copy_(large.values[kept])
    large.values.grad, small.values.grad = grad, grad[kept].clone()
    for optimizer in optimizers:
        optimizer.step()
    large.set_pattern(OLD & NEW, optimizer=optimizers[1])
    for layer in (small, large):
        layer.values.grad = grad[kept].clone()
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(large.values, small.values)


def test_the_gradient_is_dropped():
    layer = make()
    layer(torch.randn(5, 24)).sum().backward()
    layer.set_pattern(NEW)
    assert layer.values.grad is None


@pytest.mark.parametrize("new", [NEW, OLD & NEW], ids=["more blocks", "fewer blocks"])
def test_the_last_loss_may_still_be_held(new):
    layer, hooked = make(), []
    layer.values.register_post_accumulate_grad_hook(hooked.append)
    loss = layer(torch.randn(5, 24)).sum()
    loss.backward()
    layer.set_pattern(new)
    loss = layer(torch.randn(5, 24)).sum()
    loss.backward()
    assert layer.values.grad.shape == layer.values.shape
    assert len(hooked) == 2


def test_without_the_optimizer_its_next_step_raises():
    layer = make()
    optimizer = OPTIMIZERS["adam"](layer.parameters())
    step(layer, optimizer)
    layer.set_pattern(NEW)
    with pytest.raises(
        RuntimeError, match=r"state 'exp_avg' has shape \[4, 8, 8\].* have shape \[5, 8, 8\].*set_pattern"
    ):
        step(layer, optimizer)


def test_without_the_optimizer_the_next_step_of_adafactor_raises():
    """Its state has a number for each row and each column of a block."""
    layer = make()
    optimizer = torch.optim.Adafactor(layer.parameters())
    step(layer, optimizer)
    layer.set_pattern(NEW)
    with pytest.raises(RuntimeError, match=r"state 'row_var' has shape \[4, 8, 1\].*have shape \[5, 8, 8\]"):
        step(layer, optimizer)
    optimizer.state.pop(layer.values)
    step(layer, optimizer)


def test_an_optimizer_that_does_not_hold_the_values_is_refused():
    layer = make()
    with pytest.raises(InvalidArgument, match=r"optimizer \(SGD\) does not hold this layer's values"):
        layer.set_pattern(NEW, optimizer=torch.optim.SGD([layer.bias], lr=0.1))
    assert torch.equal(layer.pattern.mask(), OLD)


@pytest.mark.parametrize(
    "state", [torch.zeros(4, 8), torch.zeros(4, 8, 8, dtype=torch.uint8)], ids=["factored", "quantized"]
)
def test_state_that_cannot_move_is_refused_with_the_cure(state):
    layer = make()
    optimizer = OPTIMIZERS["sgd"](layer.parameters())
    optimizer.state[layer.values]["second"] = state
    with pytest.raises(InvalidArgument, match=r"state 'second' is torch..*can move with its blocks: drop it by"):
        layer.set_pattern(NEW, optimizer=optimizer)
    assert torch.equal(layer.pattern.mask(), OLD)


@pytest.mark.parametrize(
    "pattern",
    [BlockPattern.random((16, 24), 0.5, (8, 4)), BlockPattern.random((24, 16), 0.5, 8)],
    ids=["block", "shape"],
)
def test_a_pattern_of_another_layer_is_refused(pattern):
    with pytest.raises(InvalidArgument, match=r"pattern has shape .*; the layer is \(16, 24\) in blocks of \(8, 8\)"):
        make().set_pattern(pattern)


def test_what_is_no_pattern_is_refused():
    with pytest.raises(InvalidArgument, match="mask is a str; it must be a 2-D bool tensor"):
        make().set_pattern("random")
