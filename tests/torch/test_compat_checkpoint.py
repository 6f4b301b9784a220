"""Old pytorch_block_sparse checkpoints, built here by their layout, give the outputs of the dense matrix they hold."""

import runpy
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bsparse_torch import BlockSparseLinear
from bsparse_torch.compat import pytorch_block_sparse as pbs

pytestmark = pytest.mark.filterwarnings("ignore::bsparse_torch.compat.CompatibilityWarning")

BLOCKS = [(32, 32), (16, 32), (32, 16), (8, 4)]
GRID = (3, 5)  # block rows, block columns


def old_layer(prefix="fc.", block=(32, 32), block_mask=False, seed=0):
    """A state dict of the old library and the dense weight [out, in] that it stands for; data is in permuted order."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(GRID, generator=generator) < 0.5
    mask[0, 0] = True
    rows, cols = mask.nonzero().unbind(1)
    order = torch.randperm(len(rows), generator=generator)  # where data has each block
    height, width = block
    dense = torch.randn(GRID[0] * height, GRID[1] * width, generator=generator)
    dense *= mask.repeat_interleave(height, 0).repeat_interleave(width, 1)
    data, blocks = torch.empty(len(rows) * height, width), torch.empty(len(rows), 2, dtype=torch.int32)
    index = torch.zeros(GRID, dtype=torch.int64)
    for row, col, i in zip(rows.tolist(), cols.tolist(), order.tolist(), strict=True):
        tile = dense[row * height : (row + 1) * height, col * width : (col + 1) * width]
        data[i * height : (i + 1) * height] = tile.t().reshape(height, width)
        blocks[i] = torch.tensor([col, row])
        index[row, col] = i
    by_col = mask.t().nonzero()  # block column, block row
    offsets = {axis: torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(axis).cumsum(0)]).int() for axis in (0, 1)}
    matrix = {
        "data": data,
        "cols_a": torch.stack([cols, order], 1).int(),
        "row_start_ends_a": offsets[1],
        "rows_b": torch.stack([by_col[:, 1], index[by_col[:, 1], by_col[:, 0]]], 1).int(),
        "col_start_ends_b": offsets[0],
        "blocks": blocks.flatten(),
    }
    if block_mask:
        matrix["block_mask"] = mask
    state = {f"{prefix}weight.{name}": tensor for name, tensor in matrix.items()}
    state[prefix + "bias"] = torch.randn(dense.shape[0], generator=generator)
    return state, dense


def outputs_agree(layer, dense, bias):
    x = torch.randn(7, dense.shape[1], dtype=torch.float64)  # float64 holds the float32 weights exactly
    torch.testing.assert_close(layer.double()(x), torch.nn.functional.linear(x, dense.double(), bias.double()))


def one_layer(layer):
    return torch.nn.ModuleDict({"fc": layer})


@pytest.mark.parametrize("block_mask", [False, True], ids=["head", "pypi-0.1.2"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_converted_checkpoint_gives_the_outputs_of_its_dense_matrix(block, block_mask):
    state, dense = old_layer(block=block, block_mask=block_mask)
    model = one_layer(BlockSparseLinear(dense.shape[1], dense.shape[0], block=block, density=0.2))
    model.load_state_dict(pbs.convert_checkpoint(state), strict=True)
    torch.testing.assert_close(model["fc"].to_dense(), dense, rtol=0, atol=0)
    outputs_agree(model["fc"], dense, state["fc.bias"])


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_an_old_checkpoint_loads_into_a_compat_layer_as_it_is(block):
    state, dense = old_layer(block=block, block_mask=True)
    model = one_layer(pbs.BlockSparseLinear(dense.shape[1], dense.shape[0], block_shape=block))
    model.load_state_dict(state, strict=True)
    outputs_agree(model["fc"], dense, state["fc.bias"])


def test_an_old_checkpoint_loads_into_a_compat_matrix():
    state, dense = old_layer()
    del state["fc.bias"]
    custom = torch.nn.ModuleDict({"fc": torch.nn.Module()})
    custom["fc"].weight = pbs.BlockSparseMatrix.zeros(dense.shape, 2)
    custom.load_state_dict(state, strict=True)
    torch.testing.assert_close(custom["fc"].weight.to_dense(), dense, rtol=0, atol=0)


def test_an_emulated_layer_is_read_from_its_dense_weight():
    state, dense = old_layer(block=(8, 4))
    state["fc.weight._dense"] = dense.clone()
    state["fc.weight.data"].fill_(99.0)  # stale since the first training step
    layer = BlockSparseLinear(dense.shape[1], dense.shape[0], block=(8, 4))
    one_layer(layer).load_state_dict(pbs.convert_checkpoint(state), strict=True)
    torch.testing.assert_close(layer.to_dense(), dense, rtol=0, atol=0)


def test_a_pseudo_layer_is_read_from_weight_and_mask():
    _, dense = old_layer()
    state = {"fc.weight": dense + 1, "fc.mask": dense != 0, "fc.bias": torch.ones(dense.shape[0])}
    layer = BlockSparseLinear(dense.shape[1], dense.shape[0], block=32)
    one_layer(layer).load_state_dict(pbs.convert_checkpoint(state), strict=True)
    outputs_agree(layer, (dense + 1) * (dense != 0), state["fc.bias"])


def test_a_layer_at_the_root_and_without_bias():
    state, dense = old_layer(prefix="")
    del state["bias"]
    layer = BlockSparseLinear(dense.shape[1], dense.shape[0], bias=False, block=32)
    layer.load_state_dict(pbs.convert_checkpoint(state), strict=True)
    torch.testing.assert_close(layer.to_dense(), dense, rtol=0, atol=0)


def test_other_keys_are_kept_and_the_input_is_not_changed():
    state, _ = old_layer()
    state["norm.weight"] = torch.ones(3)
    before = dict(state)
    converted = pbs.convert_checkpoint(state)
    assert converted["norm.weight"] is state["norm.weight"]
    assert converted["fc.bias"] is state["fc.bias"]
    assert state == before


def test_a_converted_checkpoint_stays_as_it_is():
    converted = pbs.convert_checkpoint(old_layer()[0])
    assert pbs.convert_checkpoint(converted) == converted


def test_converting_draws_no_random_numbers():
    state, _ = old_layer()
    before = torch.get_rng_state()
    pbs.convert_checkpoint(state)
    assert torch.equal(torch.get_rng_state(), before)


def replaced(key, change):
    return lambda state: state.__setitem__(key, change(state[key]))


def set_entry(key, position, number):
    def edit(state):
        state[key] = state[key].clone()
        state[key][position] = number

    return edit


MALFORMED = {
    "missing": (lambda state: state.pop("fc.weight.data"), r"fc\.weight\.data is missing.*save the state_dict"),
    "missing index": (lambda state: state.pop("fc.weight.cols_a"), r"fc\.weight\.cols_a is missing"),
    "no tensor": (replaced("fc.weight.cols_a", list), r"fc\.weight\.cols_a is a list"),
    "float index": (replaced("fc.weight.cols_a", torch.Tensor.float), r"fc\.weight\.cols_a has dtype torch\.float32"),
    "integer data": (replaced("fc.weight.data", torch.Tensor.int), r"fc\.weight\.data has dtype torch\.int32"),
    "flat data": (
        replaced("fc.weight.data", torch.Tensor.flatten),
        r"fc\.weight\.data has shape .* must be \[any, any\]",
    ),
    "truncated data": (
        replaced("fc.weight.data", lambda t: t[:-1]),
        r"fc\.weight\.data has shape .* multiple of the blocks",
    ),
    "no blocks": (replaced("fc.weight.cols_a", lambda t: t[:0]), r"fc\.weight\.data has shape .* for 0 blocks"),
    "blocks disagree": (replaced("fc.weight.blocks", lambda t: t[:-2]), r"fc\.weight\.blocks has shape"),
    "column too large": (set_entry("fc.weight.cols_a", (0, 0), 9), r"fc\.weight\.cols_a\[0, 0\] is 9; .* in \[0, 5\)"),
    "column negative": (set_entry("fc.weight.cols_a", (0, 0), -1), r"fc\.weight\.cols_a\[0, 0\] is -1"),
    "block repeated": (set_entry("fc.weight.cols_a", (1, 0), 0), r"cols_a\[1, 0\] is 0 after 0 in block row 0"),
    "no permutation": (set_entry("fc.weight.cols_a", (0, 1), 1), r"cols_a\[:, 1\] is .* permutation of 0 to"),
    "offsets short": (replaced("fc.weight.row_start_ends_a", lambda t: t[:1]), r"row_start_ends_a has 1 entries"),
    "offsets fall": (set_entry("fc.weight.row_start_ends_a", 1, 99), r"row_start_ends_a\[2\] is .* below 99"),
    "offsets end": (set_entry("fc.weight.row_start_ends_a", -1, 99), r"row_start_ends_a runs from 0 to 99"),
    "twin": (set_entry("fc.weight.rows_b", (0, 0), 2), r"fc\.weight\.rows_b\[0, 0\] is 2; it must be 0 to agree"),
    "mask": (lambda state: state.update({"fc.weight.block_mask": torch.ones(GRID, dtype=torch.bool)}), r"block_mask\["),
    "mask shape": (
        lambda state: state.update({"fc.weight.block_mask": torch.ones(2, 2, dtype=torch.bool)}),
        r"block_mask has",
    ),
    "dense shape": (lambda state: state.update({"fc.weight._dense": torch.ones(2, 2)}), r"_dense has shape \[2, 2\]"),
    "bias shape": (replaced("fc.bias", lambda t: t[:-1]), r"fc\.bias has shape \[95\]; it must be \[96\]"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_checkpoint_is_refused_by_key(name):
    edit, sentence = MALFORMED[name]
    state, _ = old_layer()
    edit(state)
    with pytest.raises(ValueError, match=sentence):
        pbs.convert_checkpoint(state)


@given(st.data())
def test_any_changed_index_is_refused(data):
    state, _ = old_layer(block=(2, 2))
    names = ["cols_a", "row_start_ends_a", "rows_b", "col_start_ends_b", "blocks"]
    tensor = state["fc.weight." + data.draw(st.sampled_from(names))].view(-1)
    position = data.draw(st.integers(0, len(tensor) - 1))
    number = data.draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 8))
    if number == tensor[position]:
        return
    tensor[position] = number
    with pytest.raises(ValueError, match="fc.weight"):
        pbs.convert_checkpoint(state)


def test_a_pseudo_mask_with_half_a_block_names_the_cure():
    mask = torch.ones(64, 64, dtype=torch.bool)
    mask[0, 0] = False
    with pytest.raises(ValueError, match=r"fc\.mask keeps a part of block \[0, 0\].*pass the block_shape"):
        pbs.convert_checkpoint({"fc.weight": torch.ones(64, 64), "fc.mask": mask})


def test_a_pseudo_mask_of_another_block_size_names_the_cure():
    state = {"fc.weight": torch.ones(24, 16), "fc.mask": torch.ones(24, 16, dtype=torch.bool)}
    with pytest.raises(ValueError, match=r"fc\.mask has shape \[24, 16\].*pseudo_block = \(32, 32\)"):
        pbs.convert_checkpoint(state)
    assert pbs.convert_checkpoint(state, pseudo_block=(8, 16))["fc.values"].shape == (3, 8, 16)


def test_the_command_converts_a_file(tmp_path, monkeypatch, capsys):
    state, dense = old_layer()
    torch.save(state, tmp_path / "old.pt")
    monkeypatch.setattr(sys, "argv", ["convert", str(tmp_path / "old.pt"), str(tmp_path / "new.pt")])
    runpy.run_module("bsparse_torch.compat.pytorch_block_sparse", run_name="__main__")
    assert capsys.readouterr().out.startswith("converted 1 layer")
    layer = BlockSparseLinear(dense.shape[1], dense.shape[0], block=32)
    one_layer(layer).load_state_dict(torch.load(tmp_path / "new.pt", weights_only=True), strict=True)
    outputs_agree(layer, dense, state["fc.bias"])


def test_the_command_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["convert", str(tmp_path / "absent.pt"), str(tmp_path / "new.pt")])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("bsparse_torch.compat.pytorch_block_sparse", run_name="__main__")
    assert stop.value.code == 1
    assert "absent.pt" in capsys.readouterr().err


def test_a_pickled_module_is_refused_and_not_run(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(ValueError, match=r"module\.pt holds pickled objects.*save model\.state_dict"):
        pbs.convert_file(tmp_path / "module.pt", tmp_path / "new.pt")
    assert not (tmp_path / "new.pt").exists()


def test_a_file_without_old_layers_is_refused(tmp_path):
    torch.save({"model": old_layer()[0]}, tmp_path / "nested.pt")
    with pytest.raises(ValueError, match=r"no pytorch_block_sparse layer among its keys \(model"):
        pbs.convert_file(tmp_path / "nested.pt", tmp_path / "new.pt")
