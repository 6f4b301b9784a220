"""compat's BlockSparseLinear: the old signature and attributes; each old fault has a test named for it."""

import copy
import io
import math
import pickle
import warnings

import pytest
import torch
from torch import nn

import bsparse_torch
from bsparse_torch.compat import CompatibilityWarning
from bsparse_torch.compat import pytorch_block_sparse as pbs

pytestmark = pytest.mark.filterwarnings("ignore::bsparse_torch.compat.CompatibilityWarning")


def dense_of(layer):
    """The nn.Linear that the layer stands for."""
    return layer.to_linear()


def test_positional_arguments_and_attributes():
    layer = pbs.BlockSparseLinear(96, 64, True, 0.5, None, False, (16, 32))
    assert (layer.in_features, layer.out_features, layer.block_shape, layer.block_count) == (96, 64, (16, 32), 8)
    assert isinstance(layer, bsparse_torch.BlockSparseLinear)
    assert isinstance(layer.weight, pbs.BlockSparseMatrix)
    assert layer.weight.shape == (64, 96)
    assert layer.bias.shape == (64,)


def test_weight_shows_the_layers_own_values():
    layer = pbs.BlockSparseLinear(64, 64, density=0.5)
    assert layer.weight.get_differentiable_data() is layer.values
    layer.weight.multiply_(0.0)
    assert not layer.values.any()


def test_old_fault_a_layer_cannot_be_given_a_pattern():
    layer = pbs.BlockSparseLinear(64, 96)
    dense = torch.randn(96, 64)
    layer.weight = pbs.BlockSparseMatrix.from_dense(dense, block_shape=(32, 16), blocks=[(2, 1), (0, 3)])
    assert layer.weight.layer is layer
    assert layer.weight.block_positions().tolist() == [[0, 3], [2, 1]]
    expected = dense * (layer.weight.to_dense() != 0)
    torch.testing.assert_close(layer(torch.eye(64)), expected.T + layer.bias)


@pytest.mark.parametrize("weight", [torch.ones(64, 64), pbs.BlockSparseMatrix.zeros((64, 96))], ids=type)
def test_another_weight_is_refused(weight):
    with pytest.raises(ValueError, match=r"weight is a .*; it must be a BlockSparseMatrix \(64, 64\)"):
        pbs.BlockSparseLinear(64, 64).weight = weight


def test_weight_is_in_the_module_tree_and_adds_no_tensors():
    model = nn.Sequential(pbs.BlockSparseLinear(64, 64))
    assert [name for name, module in model.named_modules() if isinstance(module, pbs.BlockSparseMatrix)] == ["0.weight"]
    assert list(model[0].state_dict()) == list(bsparse_torch.BlockSparseLinear(64, 64, block=32).state_dict())
    assert [name for name, _ in model.named_parameters()] == ["0.values", "0.bias"]


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.deepcopy,
        lambda layer: pickle.loads(pickle.dumps(layer)),
        lambda layer: layer.from_linear(layer.to_linear()),
    ],
    ids=["deepcopy", "pickle", "from_linear"],
)
def test_a_duplicates_weight_shows_the_duplicate(duplicate):
    layer = pbs.BlockSparseLinear(64, 64)
    twin = duplicate(layer)
    assert twin.weight.layer is twin
    assert twin.weight.get_differentiable_data() is twin.values


def test_every_layer_has_verbose():
    assert pbs.BlockSparseLinear(64, 64, verbose=True).verbose is True
    assert pbs.BlockSparseLinear.from_linear(nn.Linear(64, 64)).verbose is False


def test_forward_and_gradients_agree_with_dense():
    layer = pbs.BlockSparseLinear(96, 64, density=0.5).double()
    dense = dense_of(layer)
    x = torch.randn(2, 5, 96, dtype=torch.float64, requires_grad=True)
    y, expected = layer(x), dense(x)
    grads = torch.autograd.grad(y.square().sum(), [x, layer.values, layer.bias])
    exact = torch.autograd.grad(expected.square().sum(), [x, dense.weight, dense.bias])
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(grads[0], exact[0])
    torch.testing.assert_close(layer.weight.to_dense(grads[1]), exact[1] * (dense.weight != 0))
    torch.testing.assert_close(grads[2], exact[2])


def test_the_old_function_is_callable_with_the_old_data():
    layer = pbs.BlockSparseLinear(64, 32, bias=False)
    x = torch.randn(3, 64)
    for data in (layer.weight.data, layer.weight.get_differentiable_data()):
        assert torch.equal(pbs.BlockSparseLinearFunction.apply(x, data, layer.weight), layer(x))


def test_pseudo_layer_computes_the_same():
    layer = pbs.BlockSparseLinear(64, 96, density=0.5).double()
    pseudo = pbs.PseudoBlockSparseLinear(layer)
    x = torch.randn(3, 64, dtype=torch.float64)
    torch.testing.assert_close(pseudo(x), layer(x))
    assert (pseudo.density, pseudo.in_features, pseudo.out_features) == (0.5, 64, 96)
    assert list(pseudo.state_dict()) == ["weight", "bias", "mask"]


def test_a_fresh_layer_says_that_it_is_initialised_otherwise():
    with pytest.warns(CompatibilityWarning, match="fan-in") as caught:
        pbs.BlockSparseLinear(64, 64)
    assert caught[0].filename == __file__


def test_conversion_says_that_it_keeps_weights():
    with pytest.warns(CompatibilityWarning, match="keeps the blocks of largest norm") as caught:
        pbs.BlockSparseLinear(0, 0, False, torch_nn_linear=nn.Linear(64, 64))
    assert caught[0].filename == __file__


def test_a_loop_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            pbs.BlockSparseLinear(0, 0, False, torch_nn_linear=nn.Linear(64, 64))
    assert len(caught) == 1


def test_old_fault_from_linear_scrambles_weights():
    linear = nn.Linear(128, 96)
    layer = pbs.BlockSparseLinear(0, 0, False, torch_nn_linear=linear, density=0.5)
    kept = layer.weight.to_dense(torch.ones_like(layer.weight.data)) == 1
    assert torch.equal(layer.weight.to_dense(), linear.weight * kept)
    assert torch.equal(layer.bias, linear.bias)


def test_old_fault_from_linear_destroys_a_block_pruned_layer():
    linear = nn.Linear(128, 64)
    with torch.no_grad():
        linear.weight[:32, :64] = 0
        linear.weight[32:, 64:] = 0
    layer = pbs.BlockSparseLinear(0, 0, False, torch_nn_linear=linear, density=0.5)
    assert torch.equal(layer.weight.to_dense(), linear.weight)


def test_old_fault_from_linear_drops_dtype_and_requires_grad():
    linear = nn.Linear(64, 64, dtype=torch.bfloat16).requires_grad_(False).eval()
    layer = pbs.BlockSparseLinear(0, 0, False, torch_nn_linear=linear)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert not layer.training


def test_legacy_scramble_on_request():
    linear = nn.Linear(64, 64)
    layer = pbs.BlockSparseLinear(0, 0, False, 0.25, linear, init="legacy_scramble")
    first = layer.weight.to_dense()[layer.weight.to_dense() != 0]
    assert layer.block_count == 1
    torch.testing.assert_close(first.sort().values, 2 * linear.weight.flatten()[:1024].sort().values)
    assert torch.equal(layer.bias, linear.bias)


def test_legacy_scramble_checks_its_arguments():
    with pytest.raises(ValueError, match=r"density is 1\.5; it must be in \(0, 1\]"):
        pbs.BlockSparseLinear(0, 0, False, 1.5, nn.Linear(64, 64), init="legacy_scramble")
    with pytest.raises(ValueError, match=r"shape is \(50, 64\); it must be a multiple of block_shape"):
        pbs.BlockSparseLinear(0, 0, False, 0.5, nn.Linear(64, 50), init="legacy_scramble")


@pytest.mark.parametrize(("init", "linear"), [("xavier", nn.Linear(64, 64)), ("legacy_scramble", None)])
def test_an_unknown_init_is_refused(init, linear):
    with pytest.raises(ValueError, match=f'init is "{init}"; it must be "fan_in"'):
        pbs.BlockSparseLinear(64, 64, torch_nn_linear=linear, init=init)


def test_another_object_as_linear_is_refused():
    with pytest.raises(TypeError, match=r"torch_nn_linear is a float; it must be an nn\.Linear"):
        pbs.BlockSparseLinear(64, 64, True, 0.5, 0.5)


def test_old_fault_init_ignores_fan_in():
    layer = pbs.BlockSparseLinear(1024, 1024, density=0.25)
    bound = 1 / math.sqrt(256)  # a row reads a quarter of 1024 inputs; uniform in +-bound, as nn.Linear
    assert layer.values.abs().max() <= bound
    assert layer.values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_old_fault_block_rows_may_be_empty():
    layer = pbs.BlockSparseLinear(1024, 1024, density=1 / 32)
    assert layer.weight.block_mask_build(None).any(1).all()


def test_old_fault_patterns_ignore_torchs_seed():
    layers = []
    for _ in range(2):
        torch.manual_seed(5)
        layers.append(pbs.BlockSparseLinear(512, 512, density=0.1))
    assert torch.equal(layers[0].weight.to_dense(), layers[1].weight.to_dense())


def test_old_fault_needs_cuda():
    assert pbs.BlockSparseLinear(128, 64)(torch.ones(2, 128)).device.type == "cpu"


def test_old_fault_density_that_rounds_to_no_block_crashes():
    assert pbs.BlockSparseLinear(64, 64, density=0.001).block_count >= 1
    with pytest.raises(ValueError, match=r"density is 0.*in \(0, 1\]"):
        pbs.BlockSparseLinear(64, 64, density=0)


def test_old_fault_no_density_attribute_and_no_repr():
    layer = pbs.BlockSparseLinear(64, 64, density=0.5)
    assert layer.density == 0.5
    assert "in_features=64" in repr(layer)


def test_old_fault_features_must_be_multiples_of_32():
    layer = pbs.BlockSparseLinear(50, 70, density=1.0).double()
    x = torch.randn(3, 50, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense_of(layer)(x))


@pytest.mark.parametrize("block", [(64, 64), (16, 32), (32, 16), (8, 4)], ids=str)
def test_old_fault_blocks_other_than_32x32_give_wrong_results(block):
    layer = pbs.BlockSparseLinear(128, 128, density=0.5, block_shape=block).double()
    x = torch.randn(3, 128, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense_of(layer)(x))


def test_old_fault_backward_crashes_when_the_input_needs_no_gradient():
    layer = pbs.BlockSparseLinear(64, 64)
    layer(torch.randn(4, 64)).square().mean().backward()
    assert layer.values.grad.any()


def test_old_fault_backward_crashes_when_the_gradient_is_zero():
    layer = pbs.BlockSparseLinear(64, 64)
    (layer(torch.randn(4, 64)) * 0).sum().backward()
    assert not layer.values.grad.any()


def test_old_fault_outputs_are_not_contiguous():
    layer = pbs.BlockSparseLinear(64, 96, bias=False)
    x = torch.randn(64, 2, 3).permute(1, 2, 0)
    assert layer(x).is_contiguous()
    assert layer(x).shape == (2, 3, 96)


def test_old_fault_half_precision_is_read_as_float32():
    layer = pbs.BlockSparseLinear(64, 64).half()
    assert layer(torch.ones(2, 64, dtype=torch.float16)).dtype is torch.float16
    with pytest.raises(ValueError, match=r"x has dtype torch\.float32, values has dtype torch\.float16"):
        layer(torch.ones(2, 64))


def test_old_fault_another_density_does_not_load():
    saved = pbs.BlockSparseLinear(128, 128, density=0.25)
    layer = pbs.BlockSparseLinear(128, 128, density=0.75)
    layer.load_state_dict(saved.state_dict(), strict=True)
    assert torch.equal(layer.weight.to_dense(), saved.weight.to_dense())


def test_old_fault_a_dense_checkpoint_does_not_load():
    linear = nn.Linear(128, 64)
    layer = pbs.BlockSparseLinear(128, 64, density=0.25)
    with pytest.warns(CompatibilityWarning, match="a dense weight was loaded"):
        layer.load_state_dict(linear.state_dict(), strict=True)
    expected = pbs.BlockSparseLinear(0, 0, False, torch_nn_linear=linear, density=0.25)
    assert torch.equal(layer.weight.to_dense(), expected.weight.to_dense())
    assert torch.equal(layer.bias, linear.bias)


def test_a_dense_checkpoint_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"weight has shape \(64, 64\); the layer is \(64, 128\)"):
        pbs.BlockSparseLinear(128, 64).load_state_dict(nn.Linear(64, 64).state_dict())


def test_old_fault_a_saved_layer_needs_pickle():
    file = io.BytesIO()
    layer = pbs.BlockSparseLinear(64, 64)
    torch.save(layer.state_dict(), file)
    file.seek(0)
    pbs.BlockSparseLinear(64, 64).load_state_dict(torch.load(file, weights_only=True), strict=True)


def test_old_fault_star_import_fails():
    names = {}
    exec("from bsparse_torch.compat.pytorch_block_sparse import *", names)
    assert names["BlockSparseLinear"] is pbs.BlockSparseLinear


def test_old_module_paths():
    from bsparse_torch.compat.pytorch_block_sparse.block_sparse import BlockSparseMatrix
    from bsparse_torch.compat.pytorch_block_sparse.block_sparse_linear import BlockSparseLinearFunction
    from bsparse_torch.compat.pytorch_block_sparse.sparse_optimizer import MagnitudeSparseOptimizerStrategy

    assert BlockSparseMatrix is pbs.BlockSparseMatrix
    assert BlockSparseLinearFunction is pbs.BlockSparseLinearFunction
    assert MagnitudeSparseOptimizerStrategy is pbs.MagnitudeSparseOptimizerStrategy
