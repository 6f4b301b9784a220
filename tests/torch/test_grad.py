"""Gradients: by gradcheck in float64, only where they are asked for, and once."""

import threading

import pytest
import torch
from cases import SMALL, SMALL_24, case_id, named
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from bsparse_torch import BlockPattern
from bsparse_torch import functional as F

ACTIVATIONS = {
    None: lambda y: y,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def draw(pattern, tokens=(3,), dtype=torch.float64, metadata=None):
    """x, values and bias that want gradients; the values' padding is zero."""
    values = F.pack(torch.randn(pattern.shape, dtype=dtype), pattern, metadata)
    x, bias = torch.randn(*tokens, pattern.cols, dtype=dtype), torch.randn(pattern.rows)
    return x.requires_grad_(), values.requires_grad_(), bias.to(dtype).requires_grad_()


def grad_free(pattern, metadata=None):
    """What the operators would see without a gradient: the stored elements, padding left out."""
    return F.pack(torch.ones(pattern.shape, dtype=torch.float64), pattern, metadata)


@pytest.mark.parametrize("case", SMALL + SMALL_24, ids=case_id)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck(operands, case, activation):
    data = operands(case, "f64")
    pattern, metadata = data.pattern, data.metadata
    x, values, bias = draw(pattern, (min(case.tokens, 3),), metadata=metadata)
    stored = grad_free(pattern, metadata)  # padding is no parameter: its gradient is zero by definition

    def run(x, values, bias):
        return F.block_sparse_linear(x, values * stored, pattern, bias, activation, metadata=metadata)

    assert gradcheck(run, (x, values, bias), fast_mode=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("apart", [(), ("cpu",)], ids=["fused", "apart"])
def test_equals_the_gradients_of_the_dense_layer(monkeypatch, activation, apart):
    monkeypatch.setattr(F, "_ACTIVATIONS_APART", apart)
    pattern = BlockPattern.random((50, 70), 0.4, (16, 8))
    x, values, bias = draw(pattern, (2, 5))
    y = F.block_sparse_linear(x, values, pattern, bias, activation)
    dense = ACTIVATIONS[activation](torch.nn.functional.linear(x, F.unpack(values, pattern), bias))
    torch.testing.assert_close(y, dense)
    dy = torch.randn_like(y)
    sparse_grads = torch.autograd.grad(y, (x, values, bias), dy)
    dense_grads = torch.autograd.grad(dense, (x, values, bias), dy)
    torch.testing.assert_close(sparse_grads, dense_grads)


def test_padding_gets_zero_gradient():
    pattern = BlockPattern.from_mask(torch.ones(2, 2, dtype=torch.bool), 16, (20, 30))
    x, values, bias = draw(pattern)
    F.block_sparse_linear(x, values, pattern, bias).square().sum().backward()
    assert not values.grad[grad_free(pattern) == 0].any()
    assert values.grad[grad_free(pattern) == 1].all()


class Calls(TorchDispatchMode):
    """Names of our operators that ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "bsparse":
            self.names.append(func.name().removeprefix("bsparse::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("wanted", "ran"),
    [("x", ["linear", "grad_input"]), ("values", ["linear", "grad_values"]), ("bias", ["linear"])],
)
def test_only_the_gradients_asked_for_are_computed(wanted, ran):
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    tensors = dict(zip(("x", "values", "bias"), (t.detach() for t in draw(pattern)), strict=True))
    tensors[wanted].requires_grad_()
    with Calls() as calls:
        F.block_sparse_linear(tensors["x"], tensors["values"], pattern, tensors["bias"]).sum().backward()
    assert calls.names == ran
    assert [name for name, tensor in tensors.items() if tensor.grad is not None] == [wanted]


def test_only_what_the_gradients_need_is_saved():
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    x, values, bias = draw(pattern, (64,))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.data_ptr()), lambda _: None):
        F.block_sparse_linear(x.detach(), values, pattern, bias)
    assert x.data_ptr() in saved
    assert values.data_ptr() not in saved


def test_no_grad_and_no_requires_grad():
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    x, values, bias = draw(pattern)
    with torch.no_grad():
        assert not F.block_sparse_linear(x, values, pattern, bias, "gelu").requires_grad
    assert not F.block_sparse_linear(x.detach(), values.detach(), pattern, bias.detach(), "gelu").requires_grad


@pytest.mark.parametrize(("wanted", "activation"), [("x", None), ("values", None), ("x", "relu"), ("values", "silu")])
@pytest.mark.parametrize("loss", [torch.sum, lambda y: y.square().sum()], ids=["sum", "squares"])
def test_double_backward_raises(wanted, activation, loss):
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    x, values, bias = draw(pattern)
    y = F.block_sparse_linear(x, values, pattern, bias, activation)
    (grad,) = torch.autograd.grad(loss(y), x if wanted == "x" else values, create_graph=True)
    with pytest.raises(NotImplementedError, match="no double backward.*to_linear"):
        grad.sum().backward()


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh"])
def test_second_derivative_by_bias_alone(activation):
    """It needs no operator's second derivative, so it is served where torch has the activation's (silu: it raises)."""
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    x, values, bias = (tensor.detach() for tensor in draw(pattern))
    bias.requires_grad_()

    def second(y):
        (grad,) = torch.autograd.grad(y.square().sum(), bias, create_graph=True)
        return torch.autograd.grad(grad.sum(), bias)

    dense = torch.nn.functional.linear(x, F.unpack(values, pattern), bias)
    sparse = F.block_sparse_linear(x, values, pattern, bias, activation)
    torch.testing.assert_close(second(sparse), second(ACTIVATIONS[activation](dense)))


def forward_mode(f, x):
    with torch.autograd.forward_ad.dual_level():
        f(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize(
    "derive", [lambda f, x: torch.func.jvp(f, (x,), (x,)), lambda f, x: torch.func.jacfwd(f)(x), forward_mode]
)
def test_forward_mode_raises(derive, activation):
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    x, values, bias = draw(pattern)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative.*use backward.*to_linear"):
        derive(lambda x: F.block_sparse_linear(x, values, pattern, bias, activation), x.detach())


@pytest.mark.parametrize("derive", [torch.func.grad, torch.func.jacrev])
def test_functional_gradients_raise(derive):
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    x, values, bias = draw(pattern)
    with pytest.raises(NotImplementedError, match="no gradients inside torch.func.*use backward.*to_linear"):
        derive(lambda x: F.block_sparse_linear(x, values, pattern, bias).sum())(x.detach())


def test_expanded_and_transposed_gradients():
    pattern = BlockPattern.balanced((32, 48), 0.5, 16)
    x, values, bias = draw(pattern, (4, 3))
    y = F.block_sparse_linear(x, values, pattern, bias)
    dense = torch.nn.functional.linear(x, F.unpack(values, pattern), bias)
    for reduce in (lambda y: y.sum(), lambda y: y.transpose(0, 2).flatten().cumsum(0).sum()):
        sparse_grads = torch.autograd.grad(reduce(y), (x, values, bias), retain_graph=True)
        torch.testing.assert_close(
            sparse_grads, torch.autograd.grad(reduce(dense), (x, values, bias), retain_graph=True)
        )


def test_activation_without_aux_cannot_be_differentiated(operands):
    data = operands(named("ragged"), "f32")
    with pytest.raises(RuntimeError, match="keep_aux is False with activation 'relu'.*pass keep_aux=True"):
        torch.ops.bsparse.linear(data.x, data.values.requires_grad_(), None, *data.arguments, "relu", False)


def test_backward_in_another_thread():
    pattern = BlockPattern.balanced((32, 32), 0.5, 16)
    x, values, bias = draw(pattern)
    y = F.block_sparse_linear(x, values, pattern, bias).sum()
    worker = threading.Thread(target=y.backward)
    worker.start()
    worker.join()
    assert values.grad is not None
