"""state_dict: its keys, loading it into another pattern, moving between devices, and what is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

from bsparse_torch import BlockPattern, BlockSparseLinear, InvalidArgument

SHAPE = {"in_features": 45, "out_features": 70, "block": 16}


def make(density=0.5, **rest):
    return BlockSparseLinear(**SHAPE, density=density, pattern="random", **rest)


def test_keys_and_extra_state():
    layer = make()
    state = layer.state_dict()
    assert list(state) == ["values", "bias", "row_offsets", "col_indices", "_extra_state"]
    assert state["_extra_state"] == {
        "version": 1,
        "format": "bsr",
        "block": [16, 16],
        "in_features": 45,
        "out_features": 70,
    }
    assert state["row_offsets"].data_ptr() == layer.row_offsets.data_ptr()


def test_through_a_file_with_weights_only(tmp_path):
    layer, other = make(), make(density=0.2)
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))


def test_a_whole_module_through_a_file(tmp_path):
    layer = make()
    torch.save(layer, tmp_path / "layer.pt")
    other = torch.load(tmp_path / "layer.pt", weights_only=False)
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))
    assert other.pattern == layer.pattern


@pytest.mark.parametrize("density", [0.5, 0.2, 1.0], ids=["same count", "more blocks", "fewer blocks"])
def test_loading_takes_the_pattern_into_the_same_parameter(density):
    layer, other = make(), make(density)
    parameter = other.values
    other.values.grad = torch.ones_like(other.values)
    other.load_state_dict(layer.state_dict())
    assert other.values is parameter
    assert other.pattern == layer.pattern
    assert other.row_offsets is other.pattern.row_offsets
    assert other.values.shape == layer.values.shape
    assert other.values.grad is None or other.values.grad.shape == layer.values.shape
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))
    other(x).sum().backward()
    assert layer.values.grad is None


def test_loading_keeps_dtype_and_requires_grad():
    layer, other = make(), make(0.2, dtype=torch.bfloat16)
    other.values.requires_grad_(False)
    other.load_state_dict(layer.state_dict())
    assert (other.values.dtype, other.values.requires_grad) == (torch.bfloat16, False)
    torch.testing.assert_close(other.values, layer.values.bfloat16())


def test_loading_with_assign():
    layer, other = make(), make(0.2)
    state = copy.deepcopy(layer.state_dict())
    other.load_state_dict(state, assign=True)
    assert other.values.data_ptr() == state["values"].data_ptr()
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))


def test_loading_inside_a_model():
    def model():
        return nn.Sequential(nn.Linear(8, 45), make(), nn.ReLU(), nn.Linear(70, 2))

    one, two = model(), model()
    assert one[1].pattern != two[1].pattern
    two.load_state_dict(one.state_dict())
    x = torch.randn(3, 8)
    assert torch.equal(two(x), one(x))


def test_the_checkpoint_stays_apart():
    layer, other = make(), make(0.2)
    state = layer.state_dict()
    other.load_state_dict(state)
    other.row_offsets.zero_()
    assert layer.row_offsets.any()


def test_meta_device_then_to_empty_then_load():
    layer = make()
    with torch.device("meta"):
        other = make(0.2)
    assert {other.values.device.type, other.row_offsets.device.type} == {"meta"}
    other.to_empty(device="cpu")
    assert other.row_offsets.tolist() == other.pattern.row_offsets.tolist()
    assert other.pattern == BlockPattern(other.row_offsets, other.col_indices, (70, 45), 16)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))


def test_meta_device_then_assign():
    layer, other = make(), make(0.2, device="meta")
    other.load_state_dict(layer.state_dict(), assign=True)
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))
    assert isinstance(other.values, nn.Parameter)


def test_meta_device_then_reset_parameters():
    layer = make(device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(torch.randn(3, 45)).isfinite().all()


def test_to_empty_of_a_live_layer_keeps_its_pattern():
    layer = make()
    mask = layer.pattern.mask()
    layer.to_empty(device="cpu")
    assert torch.equal(BlockPattern(layer.row_offsets, layer.col_indices, (70, 45), 16).mask(), mask)


def test_an_empty_layer_is_completed_by_loading():
    layer = make()
    other = BlockSparseLinear.empty(45, 70, 3, 16, device="meta")
    assert "no pattern yet" in repr(other)
    other.load_state_dict(layer.state_dict(), assign=True)
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))


def test_an_empty_layer_is_completed_by_setting_its_tensors():
    layer = make()
    other = BlockSparseLinear.empty(45, 70, layer.values.shape[0], 16, device="meta")
    for name in ("values", "bias", "row_offsets", "col_indices"):
        setattr(other, name, getattr(layer, name))
    assert other.refresh_pattern() == layer.pattern
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))


def test_an_empty_layer_has_no_pattern():
    with pytest.raises(InvalidArgument, match="row_offsets"):
        BlockSparseLinear.empty(45, 70, 3, 16)(torch.randn(3, 45))


def test_buffers_set_from_outside_are_read_again():
    layer, other = make(), make()
    other.values.data = layer.values.detach()
    other.bias = layer.bias
    other.row_offsets, other.col_indices = layer.row_offsets, layer.col_indices
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))
    assert other.pattern == layer.pattern


def test_buffers_written_from_outside_need_a_refresh():
    layer, other = make(), make()
    with torch.no_grad():
        for name, tensor in layer.named_parameters():
            getattr(other, name).copy_(tensor)
        for name, tensor in layer.named_buffers():
            getattr(other, name).copy_(tensor)
    other.refresh_pattern()
    x = torch.randn(3, 45)
    assert torch.equal(other(x), layer(x))


def write(layer, other):
    """Writes one layer's tensors into another's, as DistributedDataParallel does."""
    with torch.no_grad():
        for name, tensor in other.state_dict().items():
            if name != "_extra_state":
                layer.state_dict()[name].copy_(tensor)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copied_layer_notices_the_first_writing_too(copied):
    layer, other, x = make(), make(), torch.randn(3, 45)
    layer(x)
    layer = copied(layer)
    layer(x)
    write(layer, other)
    assert torch.equal(layer(x), other(x))


def test_a_layer_that_was_written_to_is_copied_as_written():
    layer, other, x = make(), make(), torch.randn(3, 45)
    layer(x)
    write(layer, other)
    assert torch.equal(copy.deepcopy(layer)(x), other(x))


def test_layers_of_one_pattern_have_buffers_of_their_own():
    pattern = BlockPattern.random((70, 45), 0.5, 16)
    model = nn.Sequential(BlockSparseLinear(45, 70, pattern=pattern), BlockSparseLinear(45, 70, block=16))
    model[1].set_pattern(pattern)
    addresses = {buffer.data_ptr() for buffer in [*model.buffers(), pattern.row_offsets, pattern.col_indices]}
    assert len(addresses) == 6


@pytest.mark.parametrize("make_optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizer_state_that_no_longer_fits_raises_with_the_cure(make_optimizer):
    layer = make()
    momentum = {"momentum": 0.9} if make_optimizer is torch.optim.SGD else {}
    optimizer = make_optimizer(layer.parameters(), lr=0.1, **momentum)
    layer(torch.randn(3, 45)).sum().backward()
    optimizer.step()
    layer.load_state_dict(make(0.2).state_dict())
    layer(torch.randn(3, 45)).sum().backward()
    with pytest.raises(RuntimeError, match="optimizer state .* pass optimizer= to set_pattern"):
        optimizer.step()
    optimizer.state.pop(layer.values)
    optimizer.step()


def test_a_checkpoint_with_its_optimizer_goes_on_as_before():
    def step(layer, optimizer):
        layer(torch.ones(3, 45)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    layer, other = make(), make(0.2)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (layer, other)]
    for each, optimizer in zip((layer, other), optimizers, strict=True):
        step(each, optimizer)
    other.load_state_dict(layer.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for each, optimizer in zip((layer, other), optimizers, strict=True):
        step(each, optimizer)
    assert torch.equal(layer.values, other.values)


def edited(**changes):
    state = copy.deepcopy(make().state_dict())
    for name, change in changes.items():
        if change is None:
            del state[name]
        else:
            state[name] = change(state[name])
    return state


def written(position, value):
    def change(tensor):
        tensor[position] = value
        return tensor

    return change


EDITS = {
    "column beyond": ({"col_indices": written(-1, 3)}, "col_indices.*is 3"),
    "column negative": ({"col_indices": written(0, -1)}, "col_indices.*is -1"),
    "offsets decrease": ({"row_offsets": written(1, 99)}, "row_offsets"),
    "offsets short": ({"row_offsets": lambda t: t[:-1]}, "row_offsets has 5 entries.*need 6"),
    "columns short": ({"col_indices": lambda t: t[:-1]}, "row_offsets.*|blocks"),
    "values short": ({"values": lambda t: t[:-1]}, r"values has shape \[7, 16, 16\]; .* need \[8, 16, 16\]"),
    "another block": ({"values": lambda t: t[:, :8]}, r"values has shape \[8, 8, 16\]; .* need \[8, 16, 16\]"),
    "integer values": ({"values": lambda t: t.int()}, "values has dtype torch.int32; it must be torch.float32"),
    "float columns": ({"col_indices": lambda t: t.float()}, "col_indices has dtype torch.float32"),
    "no tensor": ({"values": lambda t: "values"}, "values is a str; it must be a tensor"),
    "no values": ({"values": None}, "values missing beside row_offsets, col_indices: they load together"),
    "no columns": ({"col_indices": None}, "col_indices missing beside values, row_offsets"),
    "values of 8 bits": (
        {"values": lambda t: t.to(torch.float8_e4m3fn)},
        "values has dtype torch.float8_e4m3fn; it must",
    ),
    "integer bias": ({"bias": lambda t: t.int()}, "bias has dtype torch.int32; it must be torch.float32"),
    "no bias tensor": ({"bias": lambda t: [1.0]}, r"bias is a list; it must be a tensor \[70\]"),
    "bias short": ({"bias": lambda t: t[:-1]}, r"bias has shape \[69\]; the layer's is \[70\]"),
    "version": ({"_extra_state": lambda e: {**e, "version": 2}}, "version is 2; this bsparse_torch reads version 1"),
    "format": (
        {"_extra_state": lambda e: {**e, "format": "bsr24"}},
        "format is 'bsr24' in the checkpoint and 'bsr' in",
    ),
    "unknown format": ({"_extra_state": lambda e: {**e, "format": "coo"}}, "format is 'coo'"),
    "block": (
        {"_extra_state": lambda e: {**e, "block": [8, 32]}},
        r"block is \[8, 32\] in the checkpoint and \[16, 16\]",
    ),
    "in_features": ({"_extra_state": lambda e: {**e, "in_features": 46}}, "in_features is 46 in the checkpoint and 45"),
    "extra key": (
        {"_extra_state": lambda e: {**e, "code": 1}},
        "extra state is .*code.*; it must hold version, format",
    ),
    "extra kind": ({"_extra_state": lambda e: b"state"}, "extra state is b'state'"),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("strict", [True, False])
def test_edited_and_truncated_checkpoints_change_nothing(name, strict):
    changes, message = EDITS[name]
    layer = make(0.2)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match=f"(?s)BlockSparseLinear.*{message}"):
        layer.load_state_dict(edited(**changes), strict=strict)
    after = layer.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before if key != "_extra_state")
    assert torch.equal(layer.pattern.col_indices, before["col_indices"])


def test_the_report_names_the_layer():
    model = nn.Sequential(make())
    with pytest.raises(RuntimeError, match="\n\t0: values has shape"):
        model.load_state_dict({f"0.{key}": value for key, value in edited(values=lambda t: t[:-1]).items()})


def test_a_missing_bias_is_reported_when_strict():
    with pytest.raises(RuntimeError, match='Missing key.*"bias"'):
        make().load_state_dict(edited(bias=None))
    assert make().load_state_dict(edited(bias=None), strict=False).missing_keys == ["bias"]


def test_extra_state_may_be_absent():
    layer, other = make(), make(0.2)
    layer.load_state_dict({key: tensor for key, tensor in other.state_dict().items() if key != "_extra_state"})
    assert layer.pattern == other.pattern and torch.equal(layer.values, other.values)


def test_a_bias_may_load_alone():
    layer, bias = make(), torch.randn(70)
    layer.load_state_dict({"bias": bias}, strict=False)
    assert torch.equal(layer.bias, bias)


def test_a_dense_checkpoint_is_refused_with_the_cure():
    with pytest.raises(RuntimeError, match="the checkpoint holds a dense weight: load it into nn.Linear, then"):
        make().load_state_dict(nn.Linear(45, 70).state_dict())
