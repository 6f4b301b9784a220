"""Layers and checkpoints of random shape: the same as the dense layer, or an error of ours."""

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st

from bsparse_torch import BlockPattern, BlockSparseLinear, InvalidArgument
from bsparse_torch import functional as F

sizes = st.integers(1, 40)
blocks = st.tuples(st.integers(1, 17), st.integers(1, 17))
tokens = st.lists(st.integers(0, 5), max_size=3)
seeds = st.integers(0, 2**32 - 1)


def activate(y, activation):
    return {None: y, "relu": y.relu(), "silu": torch.nn.functional.silu(y)}[activation]


@given(sizes, sizes, blocks, st.floats(0.01, 1.0), tokens, st.sampled_from([None, "relu", "silu"]), seeds)
def test_equals_the_dense_layer(rows, cols, block, density, tokens, activation, seed):
    torch.manual_seed(seed)
    pattern = BlockPattern.random((rows, cols), density, block)
    leaves = torch.randn(rows, cols).double(), torch.randn(*tokens, cols).double(), torch.randn(rows).double()
    dense, x, bias = (leaf.requires_grad_() for leaf in leaves)
    y = F.block_sparse_linear(x, F.pack(dense, pattern), pattern, bias, activation)
    kept = F.unpack(F.pack(torch.ones_like(dense), pattern), pattern)
    expected = activate(torch.nn.functional.linear(x, dense * kept, bias), activation)
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, leaves, dy))


@given(sizes, st.integers(1, 5), st.booleans(), st.integers(1, 9), tokens, st.sampled_from([None, "silu"]), seeds)
def test_2_of_4_equals_the_dense_layer(rows, eighths, whole, height, tokens, activation, seed):
    torch.manual_seed(seed)
    if whole:
        pattern = BlockPattern.semi24((rows, 8 * eighths))
    else:
        cols = int(torch.randint(8 * eighths - 7, 8 * eighths + 1, ()))
        pattern = BlockPattern.random((rows, cols), 0.5, (height, 8), format="bsr24")
    leaves = [torch.randn(*shape).double() for shape in (pattern.shape, (*tokens, pattern.cols), (rows,))]
    dense, x, bias = (leaf.requires_grad_() for leaf in leaves)
    metadata = F.choose_positions(dense, pattern)
    y = F.block_sparse_linear(x, F.pack(dense, pattern, metadata), pattern, bias, activation, metadata=metadata)
    kept = F.unpack(F.pack(torch.ones_like(dense), pattern, metadata), pattern, metadata)
    expected = activate(torch.nn.functional.linear(x, dense * kept, bias), activation)
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, leaves, dy))


@given(sizes, sizes, blocks, st.floats(0.01, 1.0), st.floats(0.01, 1.0), seeds)
def test_patterns_change_and_keep_what_is_common(rows, cols, block, density, other, seed):
    torch.manual_seed(seed)
    layer = BlockSparseLinear(cols, rows, block=block, density=density, pattern="random")
    before, new = layer.to_dense().detach(), BlockPattern.random((rows, cols), other, block)
    layer.set_pattern(new)
    assert torch.equal(layer.to_dense(), F.unpack(F.pack(before, new), new))


@given(st.data(), st.sampled_from(["row_offsets", "col_indices"]), st.integers(-(2**31), 2**31 - 1))
def test_a_changed_index_is_refused_or_is_another_pattern(data, name, value):
    layer = BlockSparseLinear(24, 40, block=8, pattern="random")
    state = copy.deepcopy(layer.state_dict())
    state[name][data.draw(st.integers(0, len(state[name]) - 1))] = value
    try:
        layer.load_state_dict(state)
    except RuntimeError as error:
        assert name in str(error)
        return
    x = torch.randn(2, 24)
    torch.testing.assert_close(layer(x), layer.to_linear()(x))


@given(st.data(), st.integers(0, 255))
def test_a_changed_byte_of_metadata_is_refused_or_keeps_other_numbers(data, byte):
    layer = BlockSparseLinear(24, 40, block=8, pattern="random", format="bsr24")
    state = copy.deepcopy(layer.state_dict())
    state["metadata"].view(-1)[data.draw(st.integers(0, layer.metadata.numel() - 1))] = byte
    valid = {low | high << 2 for high in range(4) for low in range(high)}
    try:
        layer.load_state_dict(state)
    except RuntimeError as error:
        assert "metadata" in str(error) and not {byte & 15, byte >> 4} <= valid
        return
    assert {byte & 15, byte >> 4} <= valid
    x = torch.randn(2, 24)
    torch.testing.assert_close(layer(x), layer.to_linear()(x))


@given(st.lists(st.lists(st.booleans(), max_size=3), max_size=3))
def test_any_mask_is_a_pattern_or_an_invalid_argument(mask):
    try:
        pattern = BlockPattern.from_mask(mask, 4)
    except InvalidArgument:
        return
    assert pattern.mask().tolist() == mask
