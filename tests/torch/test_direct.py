"""The eager forward that leaves the dispatcher out: only where that makes no difference."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bsparse_torch import BlockSparseLinear, dispatch
from bsparse_torch import functional as F


@pytest.fixture
def layer():
    return BlockSparseLinear(48, 32, block=16).requires_grad_(False)


def direct(layer, x):
    return dispatch.is_direct(x, layer.values, layer.bias)


class Names(TorchDispatchMode):
    """Collects the operators that pass."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_ordinary_tensors(layer):
    x = torch.randn(4, 48)
    assert direct(layer, x)
    with torch.no_grad():
        assert direct(layer, x)
    with torch.inference_mode():
        assert direct(layer, torch.randn(4, 48))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert direct(layer, x)


def test_equals_the_operator(layer):
    x = torch.randn(2, 3, 48)
    pattern = layer.row_offsets, layer.col_indices, layer.pattern.key, 32, 48
    y, _ = torch.ops.bsparse.linear(x, layer.values, layer.bias, *pattern, "none", False)
    assert torch.equal(layer(x), y)


def test_a_dispatch_mode_sees_the_operator(layer):
    with Names() as mode:
        layer(torch.randn(4, 48))
    assert "bsparse.linear.default" in mode.names


def test_the_profiler_sees_the_operator(layer):
    with torch.profiler.profile() as profile:
        layer(torch.randn(4, 48))
    assert "bsparse::linear" in {event.name for event in profile.events()}


def test_a_negated_view(layer):
    x = torch.randn(4, 48, dtype=torch.complex64).conj().imag  # its memory holds the numbers with the other sign
    assert x.is_neg()
    assert not direct(layer, x)
    torch.testing.assert_close(layer(x), layer(x.clone()))


def test_a_subclass(layer):
    class Named(torch.Tensor):
        pass

    assert not direct(layer, torch.randn(4, 48).as_subclass(Named))
    assert isinstance(layer(torch.randn(4, 48).as_subclass(Named)), Named)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
def test_a_tensor_with_a_tangent(layer):
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.randn(4, 48), torch.ones(4, 48))
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            layer(x)


def test_fake_tensors(layer):
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = torch.randn(4, 48)
        values, bias = mode.from_tensor(layer.values), mode.from_tensor(layer.bias)
        assert F.block_sparse_linear(x, values, layer.pattern, bias).shape == (4, 32)


def test_batched_tensors_are_left_to_the_dispatcher(layer):
    seen = []
    torch.func.vmap(lambda x: (seen.append(direct(layer, x)), x)[1])(torch.randn(4, 48))
    assert seen == [False]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_traced(layer):
    x = torch.randn(4, 48)
    traced = torch.jit.trace(layer, x, check_trace=False)
    assert "bsparse::linear" in str(traced.inlined_graph)


PRIVATE = ("_C._dispatch_keys", "_C._dispatch_tls_local_include_set", "_C._autograd._profiler_enabled")
PRIVATE += ("_C.DispatchKeySet", "_C.DispatchKey.AutocastCUDA", "autograd.forward_ad._current_level")


@pytest.mark.parametrize("name", PRIVATE)
def test_a_torch_without_one_of_its_private_names_is_never_passed_by(layer, monkeypatch, name):
    x = torch.randn(4, 48)
    expected = layer(x)
    monkeypatch.delattr(f"torch.{name}")
    is_direct = dispatch.make_test()
    monkeypatch.undo()
    assert not is_direct(x, layer.values, layer.bias)
    monkeypatch.setattr(dispatch, "is_direct", is_direct)
    assert torch.equal(layer(x), expected)
