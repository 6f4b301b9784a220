"""Wrong arguments: each names the argument, its value, the rule and the cure. State and patterns have their own."""

import pytest
import torch
from torch import nn

from bsparse_torch import BlockPattern, BlockSparseLinear, BsparseError, InvalidArgument, Unsupported
from bsparse_torch import functional as F

PATTERN = BlockPattern.from_mask(torch.tensor([[True, False, True], [False, True, False]]), 8)


def make(**rest):
    return BlockSparseLinear(24, 16, pattern=PATTERN, **rest)


INPUTS = {
    "features": (lambda: torch.randn(5, 23), r"x has shape \[5, 23\]; its last dimension must be in_features = 24"),
    "no dimension": (lambda: torch.tensor(1.0), r"x has shape \[\]; its last dimension must be in_features = 24"),
    "float64": (lambda: torch.randn(5, 24).double(), "x has dtype torch.float64, values has dtype torch.float32.*cast"),
    "bfloat16": (lambda: torch.randn(5, 24).bfloat16(), "x has dtype torch.bfloat16.*run under torch.autocast"),
    "int": (lambda: torch.ones(5, 24, dtype=torch.int64), "x has dtype torch.int64, values has dtype torch.float32"),
    "complex": (lambda: torch.ones(5, 24, dtype=torch.cfloat), "x has dtype torch.complex64"),
    "meta": (lambda: torch.ones(5, 24, device="meta"), "x is on meta, values is on cpu; both must be on one device"),
    "sparse": (
        lambda: torch.eye(24).to_sparse(),
        r"x has layout torch.sparse_coo; it must be strided: pass x.to_dense",
    ),
    "list": (lambda: [1.0] * 24, "x is a list; it must be a tensor"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_wrong_input(name):
    make_x, message = INPUTS[name]
    with pytest.raises(InvalidArgument, match=message):
        make()(make_x())


VALUES = {
    "int8": (lambda v: v.to(torch.int8), "values has dtype torch.int8; it must be one of torch.float32, float16"),
    "complex": (lambda v: v.to(torch.cfloat), "values has dtype torch.complex64"),
    "flat": (lambda v: v.flatten(), r"values has shape \[192\]; this pattern needs \[3, 8, 8\]"),
    "other count": (lambda v: v[:2], r"values has shape \[2, 8, 8\]; this pattern needs \[3, 8, 8\].*belong to it"),
    "other block": (lambda v: v[:, :4], r"values has shape \[3, 4, 8\]; this pattern needs \[3, 8, 8\]"),
    "meta": (lambda v: v.to("meta"), "x is on cpu, values is on meta"),
    "list": (lambda v: v.tolist(), "values is a list; it must be a tensor"),
}


@pytest.mark.parametrize("name", VALUES)
def test_wrong_values(name):
    change, message = VALUES[name]
    values = change(torch.ones(PATTERN.values_shape))
    x = torch.ones(2, 24, dtype=getattr(values, "dtype", torch.float32))
    with pytest.raises(InvalidArgument, match=message):
        F.block_sparse_linear(x, values, PATTERN)


BIASES = {
    "length": (torch.ones(15), r"bias has shape \[15\]; it must be \[out_features\] = \[16\]"),
    "dimensions": (torch.ones(1, 16), r"bias has shape \[1, 16\]"),
    "dtype": (torch.ones(16).half(), "bias has dtype torch.float16, values has dtype torch.float32; .*torch.float32"),
    "device": (torch.ones(16, device="meta"), "bias is on meta, values is on cpu"),
    "number": (3, "bias is a int; it must be a tensor"),
}


@pytest.mark.parametrize("name", BIASES)
def test_wrong_bias(name):
    bias, message = BIASES[name]
    with pytest.raises(InvalidArgument, match=message):
        F.block_sparse_linear(torch.ones(2, 24), torch.ones(PATTERN.values_shape), PATTERN, bias)


def test_float32_bias_of_a_float64_layer():
    values = torch.ones(PATTERN.values_shape).double()
    with pytest.raises(InvalidArgument, match="bias has dtype torch.float32, values has dtype torch.float64"):
        F.block_sparse_linear(torch.ones(2, 24).double(), values, PATTERN, torch.ones(16))


def test_wrong_activation():
    with pytest.raises(InvalidArgument, match='activation is \'swish\'; it must be None, "relu", "gelu", .* or "silu"'):
        F.block_sparse_linear(torch.ones(2, 24), torch.ones(PATTERN.values_shape), PATTERN, activation="swish")


def test_an_activation_set_later_is_checked_when_it_is_used():
    layer = make()
    layer.activation = "swish"
    with pytest.raises(InvalidArgument, match="activation is 'swish'"):
        layer(torch.ones(2, 24))


def test_wrong_pattern():
    with pytest.raises(InvalidArgument, match="pattern is a Tensor; it must be a BlockPattern"):
        F.block_sparse_linear(torch.ones(2, 24), torch.ones(PATTERN.values_shape), PATTERN.mask())


@pytest.mark.parametrize(
    ("dy", "x", "message"),
    [
        (torch.ones(3, 15), torch.ones(3, 24), r"dy has shape \[3, 15\]; its last dimension must be out_features = 16"),
        (torch.ones(3, 16), torch.ones(4, 24), r"x has shape \[4, 24\]; with dy \[3, 16\] it must be \[3, 24\]"),
        (torch.ones(3, 16), torch.ones(3, 24).half(), "dy has dtype torch.float32, x has dtype torch.float16"),
        (torch.ones(3, 16).int(), torch.ones(3, 24).int(), "x has dtype torch.int32; it must be one of torch.float32"),
    ],
)
def test_wrong_operands_of_grad_values(dy, x, message):
    arguments = PATTERN.row_offsets, PATTERN.col_indices, PATTERN.key, 16, 24, 8, 8
    with pytest.raises(InvalidArgument, match=message):
        torch.ops.bsparse.grad_values(dy, x, *arguments)


def test_the_fakes_refuse_the_same():
    layer = make(device="meta")
    with pytest.raises(InvalidArgument, match="its last dimension must be in_features = 24"):
        layer(torch.empty(5, 23, device="meta"))
    assert layer(torch.empty(5, 24, device="meta")).shape == (5, 16)


CONSTRUCTORS = {
    "density 0": ({"density": 0}, r"density is 0; it must be in \(0, 1\]: pass 0.25 to keep a quarter of the blocks"),
    "density 1.5": ({"density": 1.5}, r"density is 1.5; it must be in \(0, 1\]"),
    "density random": ({"density": -1.0, "pattern": "random"}, "density is -1.0"),
    "block": ({"block": 0}, "block is 0; it must be a positive int or two of them"),
    "pattern": ({"pattern": "banded"}, 'pattern is \'banded\'; it must be "balanced", "random", a bool block mask or'),
    "mask": (
        {"pattern": torch.ones(2, 2, dtype=torch.bool), "block": 8},
        r"mask has shape \[2, 2\]; .* needs \[2, 3\], one entry",
    ),
    "other pattern": ({"pattern": BlockPattern.random((24, 16), 0.5, 8)}, "pattern has shape .*; the layer is"),
    "dtype": ({"dtype": torch.int8}, "dtype is torch.int8; it must be torch.float32, float16, bfloat16 or float64"),
    "generator": ({"generator": 3}, r"generator is 3; it must be a torch.Generator or None: pass torch.Generator\(\)"),
    "generator of values": ({"generator": 3, "pattern": PATTERN}, "generator is 3"),
    "format": ({"format": "csr"}, 'format is \'csr\'; it must be one of "bsr", "bsr24", "semi24"'),
    "activation": ({"activation": "tanh"}, 'activation is \'tanh\'; it must be None, "relu", "gelu", .* or "silu"'),
    "in_features": ({"in_features": 0}, "in_features is 0; it must be a positive int"),
    "out_features": ({"out_features": 1.5}, "out_features is 1.5; it must be a positive int"),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_wrong_constructor_arguments(name):
    arguments, message = CONSTRUCTORS[name]
    with pytest.raises(InvalidArgument, match=message):
        BlockSparseLinear(**{"in_features": 24, "out_features": 16, **arguments})


def test_a_format_of_later_versions():
    with pytest.raises(Unsupported, match='bitmap is not served by this version: pass format="bsr", "bsr24", "semi24"'):
        BlockSparseLinear(64, 64, format="bitmap")
    with pytest.raises(Unsupported, match="bitmap is not served"):
        BlockSparseLinear.from_linear(nn.Linear(64, 64), format="bitmap")


@pytest.mark.parametrize("module", [nn.Conv2d(4, 4, 1), nn.Embedding(24, 16), nn.Identity(), torch.ones(16, 24)])
def test_from_what_is_no_linear(module):
    with pytest.raises(InvalidArgument, match=f"linear is a {type(module).__name__}; it must be an nn.Linear: copy"):
        BlockSparseLinear.from_linear(module)


def test_from_a_linear_with_a_wrong_activation():
    with pytest.raises(InvalidArgument, match="activation is 'tanh'"):
        BlockSparseLinear.from_linear(nn.Linear(24, 16), block=8, activation="tanh")


def test_from_a_linear_without_values():
    with pytest.raises(InvalidArgument, match="linear.weight is on the meta device and holds no values: load it"):
        BlockSparseLinear.from_linear(nn.Linear(24, 16, device="meta"))


def test_a_dense_layer_of_another_dtype():
    linear = nn.Linear(24, 16, dtype=torch.complex64)
    with pytest.raises(InvalidArgument, match="dtype is torch.complex64; it must be torch.float32"):
        BlockSparseLinear.from_linear(linear, mask=PATTERN.mask(), block=8)


def test_errors_have_one_base():
    assert issubclass(InvalidArgument, BsparseError)
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(Unsupported, BsparseError)
    assert issubclass(Unsupported, NotImplementedError)
