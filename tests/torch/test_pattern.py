"""BlockPattern and block masks."""

import copy
import pickle

import pytest
import torch
from cases import CASES, case_id, named
from hypothesis import given
from hypothesis import strategies as st

from bsparse_torch import BlockPattern, InvalidArgument, choose_blocks, masks


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_mask_and_back(case):
    mask = torch.from_numpy(case.mask)
    pattern = BlockPattern.from_mask(mask, case.block, case.shape)
    assert torch.equal(pattern.mask(), mask)
    assert pattern.row_offsets.tolist() == case.row_offsets.tolist()
    assert pattern.col_indices.tolist() == case.col_indices.tolist()
    assert (pattern.blocks, pattern.values_shape) == (case.blocks, (case.blocks, *case.block))
    assert pattern.density == case.blocks / case.mask.size


def test_index_tensors_are_kept_as_they_are():
    row_offsets, col_indices = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    pattern = BlockPattern(row_offsets, col_indices, (8, 8), 4)
    assert pattern.row_offsets.data_ptr() == row_offsets.data_ptr()
    assert pattern.col_indices.data_ptr() == col_indices.data_ptr()


def test_wider_integers_and_lists_become_int32():
    pattern = BlockPattern(torch.tensor([0, 1, 2]), [0, 1], (8, 8), 4)
    assert pattern.row_offsets.dtype is torch.int32
    assert pattern.col_indices.dtype is torch.int32


def test_equal_patterns_are_equal_and_share_their_host_pattern():
    mask = torch.eye(4, dtype=torch.bool)
    first, second = BlockPattern.from_mask(mask, 8), BlockPattern.from_mask(mask, 8)
    assert first == second
    assert hash(first) == hash(second)
    assert first.key == second.key
    assert first.host is second.host
    assert first != BlockPattern.from_mask(mask, 16)
    assert first != "pattern"


def test_a_pattern_is_immutable():
    pattern = BlockPattern.from_mask(torch.eye(4, dtype=torch.bool), 8)
    with pytest.raises(AttributeError, match="rows of a BlockPattern is fixed: make another"):
        pattern.rows = 3


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_pickle_and_copies(device):
    pattern = BlockPattern.random((40, 24), 0.5, 8).to(device)
    for other in (pickle.loads(pickle.dumps(pattern)), copy.deepcopy(pattern)):
        assert other == pattern
        assert other.device.type == device
        assert other.row_offsets is not pattern.row_offsets
    assert copy.copy(pattern) is pattern


def test_moving_to_meta_and_back_keeps_the_indices():
    pattern = BlockPattern.random((40, 24), 0.5, 8)
    assert torch.equal(pattern.to("meta").to("cpu").mask(), pattern.mask())
    assert pattern.to("cpu") is pattern


def test_a_default_device_does_not_disturb():
    with torch.device("meta"):
        pattern = BlockPattern.balanced((40, 24), 0.5, 8)
        assert (pattern.device.type, int(pattern.mask().sum())) == ("cpu", 10)


grids = st.tuples(st.integers(1, 9), st.integers(1, 9))
densities = st.floats(0.001, 1.0)


@given(grids, densities)
def test_balanced_rows_hold_equally_many_and_cover_columns(grid, density):
    mask = masks.balanced(*grid, density)
    kept = max(1, int(density * grid[1] + 0.5))
    assert mask.sum(1).tolist() == [kept] * grid[0]
    assert mask.sum(0).max() - mask.sum(0).min() <= 1
    assert mask.any(0).all() or grid[0] * kept < grid[1]


@given(grids, densities)
def test_random_rounds_in_all(grid, density):
    assert masks.random(*grid, density).sum() == max(1, int(density * grid[0] * grid[1] + 0.5))


@given(grids, densities)
def test_magnitude_keeps_the_largest_blocks(grid, density):
    weight = torch.randn(grid[0] * 3, grid[1] * 2)
    mask = choose_blocks(weight, (3, 2), density)
    norms = masks.tile(weight, (3, 2)).norm(dim=(2, 3))
    assert mask.sum() == max(1, int(density * mask.numel() + 0.5))
    assert mask.all() or norms[mask].min() >= norms[~mask].max()


def test_magnitude_ties_go_to_the_first_blocks():
    mask = choose_blocks(torch.ones(8, 8), 4, 0.5)
    assert mask.tolist() == [[True, True], [False, False]]


def test_magnitude_of_ragged_edges_counts_what_is_there():
    weight = torch.zeros(5, 5)
    weight[4, 4] = 1.0
    assert choose_blocks(weight, 4, 0.25).tolist() == [[False, False], [False, True]]


def test_nonzero_takes_minus_zero_for_zero_and_nan_for_a_number():
    weight = torch.zeros(4, 6)
    weight[0, 0], weight[3, 5] = -0.0, torch.nan
    assert choose_blocks(weight, (4, 2), None, "nonzero").tolist() == [[False, False, True]]


def test_generators_repeat():
    first, again, other = (torch.Generator().manual_seed(seed) for seed in (1, 1, 2))
    masks_drawn = [masks.balanced(16, 16, 0.5, generator=generator) for generator in (first, again, other)]
    assert torch.equal(masks_drawn[0], masks_drawn[1])
    assert not torch.equal(masks_drawn[0], masks_drawn[2])


INDICES = {
    "decreasing": ([0, 2, 1], [0, 1], "row_offsets"),
    "not from 0": ([1, 1, 2], [0, 1], "row_offsets"),
    "too few offsets": ([0, 2], [0, 1], "row_offsets has 2 entries.*need 3"),
    "counts disagree": ([0, 1, 3], [0, 1], "3.*2|2.*3"),
    "column beyond": ([0, 1, 2], [0, 9], "col_indices.*9"),
    "column negative": ([0, 1, 2], [0, -1], "col_indices.*-1"),
    "unsorted": ([0, 2, 2], [1, 0], "col_indices.*must ascend.*sort them"),
    "repeated": ([0, 2, 2], [1, 1], "col_indices.*repeated.*keep one"),
    "floats": ([0, 1, 2], [0.0, 1.0], "col_indices has dtype torch.float32; it must be torch.int32"),
    "bools": ([0, 1, 2], [True, False], "col_indices has dtype torch.bool"),
    "2-D": ([[0, 1, 2]], [0, 1], r"row_offsets has shape \[1, 3\]; it must be 1-D"),
    "overflow": ([0, 1, 2], [0, 2**40], f"col_indices holds {2**40}; it must fit in 32 bits"),
}


@pytest.mark.parametrize("name", INDICES)
def test_index_arrays_from_outside_are_validated(name):
    row_offsets, col_indices, message = INDICES[name]
    with pytest.raises(InvalidArgument, match=message):
        BlockPattern(row_offsets, col_indices, (8, 8), 4)


@given(st.lists(st.integers(-2, 4), max_size=5), st.lists(st.integers(-2, 4), max_size=5))
def test_any_index_arrays_give_a_pattern_or_an_invalid_argument(row_offsets, col_indices):
    try:
        pattern = BlockPattern(row_offsets, col_indices, (8, 12), 4)
    except InvalidArgument:
        return
    assert BlockPattern.from_mask(pattern.mask(), 4) == pattern


def test_index_tensors_without_data_are_refused():
    pattern = BlockPattern.from_mask(torch.eye(2, dtype=torch.bool), 4).to("meta")
    with pytest.raises(InvalidArgument, match="row_offsets is on the meta device and holds no indices"):
        BlockPattern(pattern.row_offsets, pattern.col_indices, (8, 8), 4)
    with pytest.raises(InvalidArgument, match="row_offsets is on cpu, col_indices on meta"):
        BlockPattern(torch.zeros(3, dtype=torch.int32), torch.empty(0, dtype=torch.int32, device="meta"), (8, 8), 4)


def test_an_empty_pattern():
    pattern = BlockPattern([0, 0, 0], [], (8, 8), 4)
    assert (pattern.blocks, pattern.density, named("empty").blocks) == (0, 0.0, 0)
    assert torch.equal(pattern.mask(), torch.zeros(2, 2, dtype=torch.bool))


@pytest.mark.parametrize("density", [0, 0.0, -0.5, 1.5, float("nan"), True, "0.5"])
def test_density_out_of_range_is_named_with_the_cure(density):
    for make in (masks.random, masks.balanced):
        with pytest.raises(InvalidArgument, match=r"density is .*; it must be in \(0, 1\]: pass 0.25 to keep"):
            make(4, 4, density)


@pytest.mark.parametrize("block", [0, -1, 1.5, (4,), (4, 0), "16", None, True])
def test_block_out_of_range_is_named(block):
    with pytest.raises(InvalidArgument, match="block is .*; it must be a positive int or two of them"):
        BlockPattern.random((8, 8), 0.5, block)


def test_masks_that_do_not_fit_are_named():
    with pytest.raises(InvalidArgument, match=r"mask has shape \[2, 2\]; a weight of 8 x 9 .* needs \[2, 3\]"):
        BlockPattern.from_mask(torch.eye(2, dtype=torch.bool), 4, (8, 9))
    with pytest.raises(InvalidArgument, match=r"mask is torch.float32 with shape \[2, 2\]; it must be bool.*mask.bool"):
        BlockPattern.from_mask(torch.eye(2), 4)
    with pytest.raises(InvalidArgument, match=r"mask is torch.bool with shape \[2\]"):
        BlockPattern.from_mask([True, False], 4)
    with pytest.raises(InvalidArgument, match="mask is a dict; it must be a 2-D bool tensor"):
        BlockPattern.from_mask({}, 4)


def test_masks_may_be_lists_and_numpy_arrays(operands):
    case = named("ragged")
    pattern = operands(case, "f32").pattern
    assert BlockPattern.from_mask(case.mask, case.block, case.shape) == pattern
    assert BlockPattern.from_mask(case.mask.tolist(), case.block, case.shape) == pattern


def test_choices_that_do_not_fit_are_named():
    weight = torch.ones(4, 4)
    with pytest.raises(InvalidArgument, match="choose is 'largest'; it must be one of magnitude, nonzero"):
        choose_blocks(weight, 2, 0.5, "largest")
    with pytest.raises(InvalidArgument, match='density is 0.5; choose="nonzero" derives it.*leave it out'):
        choose_blocks(weight, 2, 0.5, "nonzero")
    with pytest.raises(InvalidArgument, match=r"weight has shape \[4\]; it must be \[out_features, in_features\]"):
        choose_blocks(torch.ones(4), 2, 0.5)
