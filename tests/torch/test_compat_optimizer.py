"""compat's SparseOptimizer moves blocks between steps of any optimizer; each old fault has a test named for it."""

import pytest
import torch

import bsparse_torch
from bsparse_torch.compat import CompatibilityWarning
from bsparse_torch.compat import pytorch_block_sparse as pbs

pytestmark = pytest.mark.filterwarnings("ignore::bsparse_torch.compat.CompatibilityWarning")

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return pbs.BlockSparseLinear(256, 256, True, 0.5)


def train(layer, optimizer):
    optimizer.zero_grad()
    layer(torch.randn(8, layer.in_features)).square().mean().backward()
    optimizer.step()


def fresh_blocks(before, after):
    """bool [blocks]: the blocks of the mask `after` that `before` does not have."""
    return ~before[after]


def test_a_fraction_of_the_blocks_moves():
    matrix = pbs.BlockSparseMatrix.randn((256, 256), 32)
    before, mask = matrix.to_dense().detach(), matrix.block_mask_build(None)
    pbs.SparseOptimizer([matrix], lr=0.1).step()
    moved = (matrix.to_dense() != before).sum() / 32**2
    assert moved == 2 * int(0.1 * 32)  # places left and places taken
    assert (matrix.block_mask_build(None) & mask).sum() == 32 - 3


def test_the_smallest_blocks_go():
    matrix = pbs.BlockSparseMatrix.randn((256, 256), 32)
    smallest = matrix.block_positions()[matrix.block_norm().argsort()[:3]]
    pbs.MagnitudeSparseOptimizerStrategy(0.1).run(matrix)
    assert not matrix.block_mask_build(None)[smallest[:, 0], smallest[:, 1]].any()


def test_run_returns_what_was_kept():
    matrix = pbs.BlockSparseMatrix.randn((256, 256), 32)
    before = matrix.block_mask_build(None)
    kept = pbs.MagnitudeSparseOptimizerStrategy(0.25).run(matrix)
    assert kept.shape == matrix.data.shape
    blocks = kept.view(32, -1)
    assert torch.equal(blocks.amin(1), blocks.amax(1))
    assert torch.equal(blocks[:, 0] == 0, fresh_blocks(before, matrix.block_mask_build(None)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_old_fault_only_adam_is_supported(layer, name):
    optimizer = OPTIMIZERS[name](layer.parameters())
    sparse = pbs.SparseOptimizer(pbs.SparseOptimizer.sparse_objects(layer), lr=0.25)
    sparse.attach_optimizer(optimizer)
    train(layer, optimizer)
    before = layer.weight.block_mask_build(None)
    sparse.step()
    fresh = fresh_blocks(before, layer.weight.block_mask_build(None))
    for entry in optimizer.state[layer.values].values():
        if isinstance(entry, torch.Tensor) and entry.dim() == 3:
            assert not entry[fresh].any()
            assert entry[~fresh].flatten(1).any(1).all()
    train(layer, optimizer)


def test_old_fault_uniform_is_a_constant():
    matrix = pbs.BlockSparseMatrix.randn((256, 256), 32)
    std = matrix.data.detach().std().item()
    fresh = torch.empty(100, 32, 32)
    pbs.MagnitudeSparseOptimizerStrategy(0.1, "uniform", 0.1).initialize_new_blocks(matrix.data.detach(), fresh)
    assert fresh.abs().max() <= 0.1 * std * 1.001
    assert fresh.std().item() == pytest.approx(0.1 * std / 3**0.5, rel=0.02)
    assert abs(fresh.mean().item()) < 0.01 * std


def test_gaussian_scales_mean_and_std():
    data, fresh = torch.randn(100, 100) + 3, torch.empty(200, 200)
    pbs.MagnitudeSparseOptimizerStrategy(0.1, "gaussian", 0.5).initialize_new_blocks(data, fresh)
    assert fresh.mean().item() == pytest.approx(1.5, rel=0.02)
    assert fresh.std().item() == pytest.approx(0.5, rel=0.02)


def test_moves_follow_torchs_seed():
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        matrix = pbs.BlockSparseMatrix.randn((256, 256), 32)
        pbs.SparseOptimizer([matrix], lr=0.5).step()
        results.append(matrix.to_dense())
    assert torch.equal(*results)


def test_old_fault_more_moves_than_free_places_crash():
    matrix = pbs.BlockSparseMatrix.randn((128, 128), 15)
    pbs.SparseOptimizer([matrix], lr=1.0).step()
    assert matrix.nnz_block_count() == 15
    full = pbs.BlockSparseMatrix.ones((64, 64))
    pbs.SparseOptimizer([full], lr=1.0).step()
    assert torch.equal(full.to_dense(), torch.ones(64, 64))


def test_new_blocks_leave_the_padding_zero():
    layer = pbs.BlockSparseLinear(250, 250, density=0.5)
    pbs.SparseOptimizer([layer.weight], lr=1.0).step()
    assert torch.equal(bsparse_torch.functional.pack(layer.to_dense(), layer.pattern), layer.values)


def test_the_parameter_stays_the_same(layer):
    before = layer.values
    pbs.SparseOptimizer([layer.weight], lr=0.5).step()
    assert layer.values is before
    assert layer.weight.get_differentiable_data() is before


def test_sparse_objects_finds_matrices_and_plain_layers(layer):
    plain = bsparse_torch.BlockSparseLinear(64, 64)
    own = pbs.BlockSparseMatrix.zeros((64, 64), 2)
    found = pbs.SparseOptimizer.sparse_objects(torch.nn.ModuleList([layer, plain, own]))
    assert found[0] is layer.weight
    assert found[1] is own
    assert found[2].get_differentiable_data() is plain.values
    assert len(found) == 3


def test_groups_have_settings_of_their_own():
    first, second = pbs.BlockSparseMatrix.randn((128, 128), 8), pbs.BlockSparseMatrix.randn((128, 128), 8)
    sparse = pbs.SparseOptimizer(first, lr=0.5)
    sparse.add_param_group({"sparse_objects": second, "lr": 0.25, "new_coefficients_distribution": "gaussian"})
    before = [first.block_mask_build(), second.block_mask_build()]
    sparse.step()
    kept = [int((mask & matrix.block_mask_build()).sum()) for mask, matrix in zip(before, (first, second), strict=True)]
    assert kept == [4, 6]


def test_a_scheduler_sets_the_fraction():
    matrix = pbs.BlockSparseMatrix.randn((128, 128), 8)
    sparse = pbs.SparseOptimizer([matrix], lr=0.5)
    torch.optim.lr_scheduler.LambdaLR(sparse, lambda step: 0.0)
    before = matrix.to_dense()
    sparse.step()
    assert torch.equal(matrix.to_dense(), before)


def test_step_returns_the_closures_loss():
    sparse = pbs.SparseOptimizer([pbs.BlockSparseMatrix.randn((128, 128), 8)])
    assert sparse.step(lambda: 3.0) == 3.0


def test_a_missing_optimizer_is_mentioned():
    sparse = pbs.SparseOptimizer([pbs.BlockSparseMatrix.randn((128, 128), 8)])
    with pytest.warns(CompatibilityWarning, match="no attached optimizer") as caught:
        sparse.step()
    assert caught[0].filename == __file__


def test_an_optimizer_of_other_parameters_is_refused(layer):
    sparse = pbs.SparseOptimizer([layer.weight])
    sparse.attach_optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))
    with pytest.raises(ValueError, match="is trained by none of the 1 attached optimizers; attach the one"):
        sparse.step()


MATRIX = pbs.BlockSparseMatrix.zeros((64, 64), 2)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: pbs.SparseOptimizer([MATRIX], lr=0), r"lr is 0; it must be in \(0, 1\]"),
        (lambda: pbs.SparseOptimizer([MATRIX], method="l0"), 'method is "l0"; it must be one of magnitude'),
        (lambda: pbs.SparseOptimizer([MATRIX], new_coefficients_distribution="x"), "must be one of uniform, gaussian"),
        (lambda: pbs.SparseOptimizer([MATRIX, MATRIX]), "holds a matrix twice"),
        (lambda: pbs.MagnitudeSparseOptimizerStrategy(1.5), r"cleanup_ratio is 1.5; it must be in \(0, 1\]"),
        (lambda: pbs.SparseOptimizer(MATRIX).add_param_group({"ratio": 1}), "ratio is no setting of SparseOptimizer"),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"holds a Linear; .* pass SparseOptimizer.sparse_objects\(model\)"):
        pbs.SparseOptimizer([torch.nn.Linear(2, 2)])
