"""BlockSparseMatrix keeps the old methods, without the old library's limits."""

import copy

import pytest
import torch

from bsparse_torch.compat import CompatibilityWarning
from bsparse_torch.compat.pytorch_block_sparse import BlockSparseMatrix, BlockSparseMatrixEmulator

SHAPE = (128, 96)
F64 = {"rtol": 1e-12, "atol": 1e-12}  # sums of at most 128 products of standard normal numbers, in float64


def tiles(dense, block):
    return dense.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0])).transpose(1, 2)


@pytest.fixture
def matrix():
    """[128, 96], 5 blocks of 32x32, float64."""
    torch.manual_seed(0)
    return BlockSparseMatrix.randn(SHAPE, blocks=[(0, 0), (0, 2), (1, 1), (3, 0), (3, 2)]).double()


def test_n_blocks_are_stored_at_random():
    matrix = BlockSparseMatrix.zeros(SHAPE, 5)
    assert matrix.nnz_block_count() == 5
    assert matrix.block_mask_build(None).sum() == 5
    assert matrix.blocks_count() == (4, 3)


def test_old_fault_patterns_ignore_torchs_seed():
    masks = []
    for _ in range(2):
        torch.manual_seed(3)
        masks.append(BlockSparseMatrix.zeros((512, 512), 50).block_mask_build())
    assert torch.equal(*masks)


def test_without_n_blocks_and_blocks_all_are_stored():
    assert torch.equal(BlockSparseMatrix.ones(SHAPE).to_dense(), torch.ones(SHAPE))


def test_ones_in_named_blocks():
    matrix = BlockSparseMatrix.ones(SHAPE, blocks=[(2, 1)], block_shape=(32, 32))
    expected = torch.zeros(SHAPE)
    expected[64:96, 32:64] = 1
    assert torch.equal(matrix.to_dense(), expected)


def test_randn_positive():
    assert (BlockSparseMatrix.randn(SHAPE, 5, positive=True).data >= 0).all()


def test_old_fault_zero_blocks_crash():
    matrix = BlockSparseMatrix.zeros(SHAPE, 0)
    assert torch.equal(matrix.to_dense(), torch.zeros(SHAPE))
    assert torch.equal(matrix.reverse_matmul(torch.ones(2, 96)), torch.zeros(2, 128))


@pytest.mark.parametrize("block", [(32, 32), (64, 32), (16, 48), (8, 4), (1, 3)], ids=str)
def test_old_fault_blocks_other_than_32x32_give_wrong_results(block):
    torch.manual_seed(0)
    matrix = BlockSparseMatrix.randn(SHAPE, 4, block_shape=block).double()
    x = torch.randn(5, 96, dtype=torch.float64)
    torch.testing.assert_close(matrix.reverse_matmul(x, transpose=True), x @ matrix.to_dense().T, **F64)


def test_from_dense_keeps_named_blocks_exactly():
    dense = torch.randn(SHAPE)
    places = [(0, 1), (2, 2)]
    matrix = BlockSparseMatrix.from_dense(dense, blocks=places)
    kept = torch.zeros(4, 3, dtype=torch.bool)
    kept[[0, 2], [1, 2]] = True
    expected = dense * kept.repeat_interleave(32, 0).repeat_interleave(32, 1)
    assert torch.equal(matrix.to_dense(), expected)


def test_old_fault_from_dense_scrambles_values():
    dense = torch.randn(SHAPE)
    matrix = BlockSparseMatrix.from_dense(dense, (32, 32), 4)
    norms = tiles(dense, (32, 32)).flatten(2).norm(dim=2)
    assert torch.equal(matrix.block_mask_build(), norms >= norms.flatten().topk(4).values[-1])
    matrix.check_with_dense(dense * (matrix.to_dense() != 0))


def test_from_dense_into_another_matrix(matrix):
    dense = torch.randn(SHAPE, dtype=torch.float64)
    assert BlockSparseMatrix.from_dense(dense, out=matrix) is matrix
    assert torch.equal(matrix.to_dense()[:32, :32], dense[:32, :32])
    assert matrix.nnz_block_count() == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_old_fault_from_dense_turns_everything_into_float32(dtype):
    matrix = BlockSparseMatrix.from_dense(torch.randn(SHAPE).to(dtype))
    assert matrix.dtype is dtype
    assert matrix.data.dtype is dtype


def test_the_constructor_takes_blocks_as_they_stand_and_says_so(matrix):
    with pytest.warns(CompatibilityWarning, match="takes each block of data as it stands"):
        again = BlockSparseMatrix(matrix.shape, matrix.block_mask_build(None), matrix.data, matrix.block_shape)
    assert torch.equal(again.to_dense(), matrix.to_dense())
    assert again.shape == SHAPE


def test_data_is_a_view_that_can_be_changed(matrix):
    before = matrix.to_dense().detach()
    with torch.no_grad():
        matrix.data *= 2
        matrix.data.mul_(2)
    matrix.multiply_(0.5)
    assert matrix.data.shape == (5 * 32, 32)
    assert torch.equal(matrix.to_dense(), 2 * before)


def test_data_can_be_penalised(matrix):
    matrix.data.abs().sum().backward()
    assert torch.equal(matrix.get_differentiable_data().grad, matrix.data.sign().detach().view(5, 32, 32))


def test_block_norm(matrix):
    rows, cols = matrix.build_coo_block_index()
    expected = tiles(matrix.to_dense(), (32, 32))[rows, cols].flatten(1).norm(p=3, dim=1)
    torch.testing.assert_close(matrix.block_norm(3), expected, **F64)


def test_block_mask_of_given_positions(matrix):
    mask = matrix.block_mask_build(torch.tensor([[1, 3], [2, 0]]))
    assert mask.nonzero().tolist() == [[1, 2], [3, 0]]


def test_to_sparse_has_the_blocks(matrix):
    sparse = matrix.to_sparse()
    assert torch.equal(sparse.indices(), matrix.build_coo_block_index())
    assert torch.equal(sparse.to_dense(), tiles(matrix.to_dense(), (32, 32)))


def test_to_dense_of_other_data(matrix):
    marked = matrix.to_dense(data_replace=torch.ones_like(matrix.data))
    assert torch.equal(marked != 0, matrix.to_dense() != 0)


def test_products_agree_with_the_dense_matrix(matrix):
    dense = matrix.to_dense().detach()
    x, dy = torch.randn(2, 3, 96, dtype=torch.float64), torch.randn(2, 3, 128, dtype=torch.float64)
    torch.testing.assert_close(matrix.reverse_matmul(x, transpose=True), x @ dense.T, **F64)
    torch.testing.assert_close(matrix.reverse_matmul(dy, transpose=False), dy @ dense, **F64)


def test_product_with_output_on_the_pattern(matrix):
    a, b = torch.randn(7, 128, dtype=torch.float64), torch.randn(7, 96, dtype=torch.float64)
    expected = (a.T @ b) * (matrix.to_dense() != 0)
    result = matrix.matmul_with_output_sparse_support(a, b)
    assert result.shape == matrix.data.shape
    torch.testing.assert_close(matrix.to_dense(result), expected, **F64)
    matrix.matmul_with_output_sparse_support(a, b, overwrite_data=True)
    torch.testing.assert_close(matrix.to_dense(), expected, **F64)


def test_old_fault_results_are_not_contiguous(matrix):
    x = torch.randn(96, 6, dtype=torch.float64).t()  # nor is this
    assert matrix.reverse_matmul(x).is_contiguous()
    torch.testing.assert_close(matrix.reverse_matmul(x), x @ matrix.to_dense().T, **F64)


def test_block_replace_moves_values_and_returns_the_new_numbers():
    matrix = BlockSparseMatrix.randn((128, 64), blocks=[(0, 0), (0, 1), (1, 0), (2, 0)])
    before = tiles(matrix.to_dense().detach(), (32, 32))
    numbers = matrix.block_replace(torch.tensor([(3, 1, 0), (2, 1, 2), (1, 1, 1)]))
    assert matrix.block_positions().tolist() == [[1, 1], [2, 0], [2, 1], [3, 1]]
    assert numbers.tolist() == [3, 0, 2, 1]
    after = tiles(matrix.to_dense().detach(), (32, 32))
    for old, new in (((0, 0), (3, 1)), ((0, 1), (1, 1)), ((1, 0), (2, 1)), ((2, 0), (2, 0))):
        assert torch.equal(after[new], before[old])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([(0, 2, 0)], r"moves a block to \(0, 2\), which has one; choose each place once"),
        ([(1, 0, 0), (1, 0, 1)], r"moves a block to \(1, 0\), which has one"),
        ([(1, 0, 0), (1, 2, 0)], "moves a block twice"),
        ([(4, 0, 0)], r"has block row 4; it must be in \[0, 4\)"),
        ([(0, -1, 0)], r"has block column -1; it must be in \[0, 3\)"),
        ([(1, 0, 5)], r"has block number 5; it must be in \[0, 5\)"),
        ([(1, 0)], r"is torch.int64 \[1, 2\]; it must be integers \[any, 3\]"),
    ],
)
def test_block_replace_refuses(matrix, rows, sentence):
    before = matrix.to_dense().detach()
    with pytest.raises(ValueError, match=sentence):
        matrix.block_replace(torch.tensor(rows))
    assert torch.equal(matrix.to_dense(), before)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: BlockSparseMatrix.zeros((100, 96)), r"shape is \(100, 96\); it must be a multiple of block_shape"),
        (lambda: BlockSparseMatrix.zeros(SHAPE, 13), r"n_blocks is 13; it must be in \[0, 12\]"),
        (
            lambda: BlockSparseMatrix.zeros(SHAPE, 1, [(0, 0), (1, 1)]),
            "n_blocks is 1 but blocks names 2; pass only one",
        ),
        (lambda: BlockSparseMatrix.zeros(SHAPE, blocks=[(0, 3)]), r"blocks names \(0, 3\); it must be below \(4, 3\)"),
        (lambda: BlockSparseMatrix.zeros(SHAPE, blocks=[(0, 0), (0, 0)]), r"blocks names \(0, 0\) twice"),
        (
            lambda: BlockSparseMatrix.from_dense(torch.ones(SHAPE), block_count=0),
            r"block_count is 0; it must be in \[1, 12\]",
        ),
        (
            lambda: setattr(BlockSparseMatrix.zeros(SHAPE, 2), "data", torch.ones(3, 3)),
            r"data has shape \(3, 3\); it must be",
        ),
        (lambda: BlockSparseMatrix.zeros(SHAPE, 2).check_with_dense(torch.ones(SHAPE)), "differs from to_dense"),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_the_emulator_is_the_same_matrix():
    matrix = BlockSparseMatrixEmulator.randn((6, 4), 3, block_shape=(2, 2), device="cpu")
    assert isinstance(matrix, BlockSparseMatrixEmulator)
    assert matrix.to_dense().count_nonzero() == 12


def test_old_fault_the_emulator_has_more_parameters_than_dense():
    matrix = BlockSparseMatrixEmulator.randn((64, 64), 2, block_shape=(16, 16))
    assert sum(parameter.numel() for parameter in matrix.parameters()) == 2 * 16 * 16


def test_a_matrix_can_be_copied_saved_and_loaded(matrix):
    twin = copy.deepcopy(matrix)
    other = BlockSparseMatrix.zeros(SHAPE, 1).double()
    other.load_state_dict(matrix.state_dict(), strict=True)
    assert torch.equal(other.to_dense(), matrix.to_dense())
    assert torch.equal(twin.to_dense(), matrix.to_dense())
