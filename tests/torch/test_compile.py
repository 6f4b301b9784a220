"""torch.compile(fullgraph=True): the same results, gradients included, for any number of tokens."""

import pytest
import torch
from torch import nn

from bsparse_torch import BlockPattern, BlockSparseLinear
from bsparse_torch import functional as F

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # inductor's own


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


class Net(nn.Module):
    """Two layers of different patterns, one with an activation, and the functional with another."""

    def __init__(self):
        super().__init__()
        self.first = BlockSparseLinear(45, 70, block=16)
        self.second = BlockSparseLinear(70, 24, block=8, bias=False, activation="silu")
        self.pattern = BlockPattern.balanced((24, 24), 0.5, 8)
        self.values = nn.Parameter(torch.randn(self.pattern.values_shape))

    def forward(self, x):
        x = self.second(torch.tanh(self.first(x)))
        return F.block_sparse_linear(x, self.values, self.pattern, activation="gelu")


def run(model, x):
    """The output and all gradients."""
    x = x.detach().requires_grad_()
    y = model(x)
    grads = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
    return [y.detach(), *grads]


def compiled(model, backend, **rest):
    return torch.compile(model, backend=backend, fullgraph=True, **rest)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_forward_and_backward(backend):
    model, x = Net(), torch.randn(3, 5, 45)
    torch.testing.assert_close(run(compiled(model, backend), x), run(model, x))


def test_without_gradients():
    model, x = Net(), torch.randn(3, 45)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, "inductor")(x), model(x))


def test_an_activation_left_to_the_compiler(monkeypatch):
    """As on CUDA."""
    monkeypatch.setattr(F, "_ACTIVATIONS_APART", ("cpu",))
    model, x = Net(), torch.randn(3, 45)
    graphs = torch._dynamo.testing.AotEagerAndRecordGraphs()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=graphs, fullgraph=True)(x), model(x))
    (graph,) = graphs.graphs
    assert all("none" in node.args for node in graph.graph.nodes if "bsparse" in str(node.target))


def test_dynamic_token_counts_compile_once():
    model = Net()
    graphs = torch._dynamo.testing.CompileCounter()
    count = compiled(model, graphs, dynamic=True)
    fast = compiled(model, "inductor", dynamic=True)
    for tokens in (2, 5, 9, 33):
        x = torch.randn(tokens, 45)
        count(x)
        torch.testing.assert_close(run(fast, x), run(model, x))
    assert graphs.frame_count == 1


def test_token_counts_become_dynamic_by_themselves():
    model = Net()
    fast = compiled(model, "aot_eager")
    for tokens in (1, 2, 4, 0, 7):
        x = torch.randn(tokens, 45)
        torch.testing.assert_close(run(fast, x), run(model, x))


def test_non_contiguous_input():
    model = Net()
    x = torch.randn(45, 6).t()
    torch.testing.assert_close(run(compiled(model, "inductor"), x), run(model, x))


def test_autocast_inside_and_outside():
    layer, x = BlockSparseLinear(48, 32, block=16), torch.randn(4, 48)

    def inside(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    y = compiled(inside, "aot_eager")(x)
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y, inside(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(layer, "aot_eager")(x), y)


class Peeks(nn.Module):
    """Casts its input to the weight's dtype, as T5 does, and at will computes with the weight."""

    def __init__(self, computes=False):
        super().__init__()
        self.layer, self.computes = BlockSparseLinear(48, 32, block=16), computes

    def forward(self, x):
        weight = self.layer.weight
        return torch.nn.functional.linear(x, weight) if self.computes else self.layer(x.to(weight.dtype))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_layers_compiled_one_by_one_share_a_compilation(backend):
    """As a model's repeated layers are: the second tells torch that patterns differ, the others reuse what it made."""
    graphs = torch._dynamo.testing.CompileCounterWithBackend(backend)
    x = torch.randn(3, 45)
    for _ in range(5):
        model = Net()
        expected = run(model, x)
        model.compile(backend=graphs, fullgraph=True)
        torch.testing.assert_close(run(model, x), expected)
    assert graphs.frame_count == 2


def test_code_may_peek_at_the_weight():
    model, x = Peeks(), torch.randn(4, 48, dtype=torch.float64)
    torch.testing.assert_close(compiled(model, "aot_eager")(x), model(x))
    with pytest.raises(RuntimeError, match="meta"):
        compiled(Peeks(computes=True), "aot_eager")(x.float())


def test_a_new_pattern_is_followed():
    layer, x = BlockSparseLinear(48, 32, block=16, pattern="random"), torch.randn(4, 48)
    fast = compiled(layer, "aot_eager")
    torch.testing.assert_close(fast(x), layer(x))
    layer.set_pattern(layer.pattern.mask().logical_not(), fill=0.5)
    torch.testing.assert_close(fast(x), layer(x))
    layer.load_state_dict(BlockSparseLinear(48, 32, block=16, density=0.25).state_dict())
    torch.testing.assert_close(fast(x), layer(x))


def test_an_optimizer_step_in_the_graph():
    def train(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            step(model).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    x = torch.randn(5, 45)

    def loss(model):
        return model(x).square().mean()

    torch.manual_seed(1)
    one = Net()
    torch.manual_seed(1)
    two = Net()
    torch.testing.assert_close(train(one, compiled(loss, "aot_eager")), train(two, loss))


def test_graphs_hold_the_digest_and_nothing_of_this_process():
    layer, seen = BlockSparseLinear(48, 32, block=16), []

    def keep(graph, inputs):
        seen.extend(node for node in graph.graph.nodes if "bsparse" in str(node.target))
        return graph.forward

    torch.compile(layer, backend=keep, fullgraph=True)(torch.randn(2, 48))
    (node,) = seen
    plain = [argument for argument in node.args if not isinstance(argument, torch.fx.Node)]
    assert plain == [layer.pattern.key, 32, 48, "none", False]
