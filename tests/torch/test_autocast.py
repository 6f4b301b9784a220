"""torch.autocast on the CPU."""

import pytest
import torch

from bsparse_torch import BlockSparseLinear

LOW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", LOW)
def test_forward_and_backward(dtype):
    layer = BlockSparseLinear(48, 32, block=16)
    x = torch.randn(4, 48, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
    y.float().square().sum().backward()
    assert y.dtype is dtype
    assert {x.grad.dtype, layer.values.grad.dtype, layer.bias.grad.dtype} == {torch.float32}
    linear = layer.to_linear()
    other = x.detach().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        dense = linear(other)
    dense.float().square().sum().backward()
    torch.testing.assert_close(y, dense, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(x.grad, other.grad, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", LOW)
def test_input_of_the_autocast_dtype(dtype):
    layer = BlockSparseLinear(48, 32, block=16)
    with torch.autocast("cpu", dtype=dtype):
        assert layer(torch.randn(4, 48, dtype=dtype)).dtype is dtype


def test_a_layer_of_the_other_low_dtype_is_cast():
    layer = BlockSparseLinear(48, 32, block=16, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(4, 48)).dtype is torch.bfloat16


def test_float64_is_left_alone():
    layer = BlockSparseLinear(48, 32, block=16, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(4, 48, dtype=torch.float64)).dtype is torch.float64


def test_switched_off():
    layer = BlockSparseLinear(48, 32, block=16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        assert layer(torch.randn(4, 48)).dtype is torch.float32
