"""Layers of the 2:4 formats as others handle them: state_dict, copies, autocast, torch.compile, torch.export."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from bsparse_torch import BlockPattern, BlockSparseLinear, InvalidArgument

FORMATS = {"semi24": {"format": "semi24"}, "bsr24": {"format": "bsr24", "block": 16, "pattern": "random"}}
every_format = pytest.mark.parametrize("rest", FORMATS.values(), ids=FORMATS)
# A ragged matrix where the format has such; 8 blocks of 15 in bsr24.
X = torch.randn(3, 48, generator=torch.Generator().manual_seed(7))


def make(rest, **more):
    return BlockSparseLinear(48, 70, **{**rest, **more})


def other(rest):
    """A layer of another pattern, where there is one."""
    return make(rest, **({"density": 0.2} if "block" in rest else {}))


@every_format
def test_keys(rest):
    layer = make(rest)
    state = layer.state_dict()
    assert list(state) == ["values", "bias", "row_offsets", "col_indices", "metadata", "_extra_state"]
    assert state["_extra_state"] == {
        "version": 1,
        "format": layer.format,
        "block": list(layer.block),
        "in_features": 48,
        "out_features": 70,
    }


@every_format
@pytest.mark.parametrize("assign", [False, True])
def test_through_a_file(rest, assign):
    layer, loaded, file = make(rest), other(rest), io.BytesIO()
    parameter, pattern = loaded.values, loaded.pattern
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True), assign=assign)
    assert torch.equal(loaded(X), layer(X)) and torch.equal(loaded.metadata, layer.metadata)
    assert (loaded.values is parameter) is not assign
    assert loaded.pattern == layer.pattern and (loaded.pattern != pattern or layer.format == "semi24")
    assert loaded.metadata.data_ptr() != layer.metadata.data_ptr()
    loaded(X).sum().backward()


@every_format
def test_without_extra_state_and_in_another_dtype(rest):
    layer, loaded = make(rest), other(rest).bfloat16()
    state = {name: tensor for name, tensor in layer.state_dict().items() if name != "_extra_state"}
    loaded.load_state_dict(state)
    assert loaded.values.dtype is torch.bfloat16 and loaded.metadata.dtype is torch.uint8
    torch.testing.assert_close(loaded.to_dense(), layer.to_dense().bfloat16())


@every_format
def test_an_empty_layer_is_completed(rest):
    layer = make(rest)
    blocks = layer.pattern.blocks
    for assign, device in ((True, "meta"), (False, "cpu")):
        loaded = BlockSparseLinear.empty(
            48, 70, blocks, rest.get("block", (64, 64)), device=device, format=layer.format
        )
        loaded.load_state_dict(layer.state_dict(), assign=assign)
        assert torch.equal(loaded(X), layer(X))
    loaded = BlockSparseLinear.empty(48, 70, blocks, layer.block, device="meta", format=layer.format)
    for name in ("values", "bias", "row_offsets", "col_indices", "metadata"):
        setattr(loaded, name, getattr(layer, name))
    assert torch.equal(loaded(X), layer(X))


@every_format
def test_copies_are_independent(rest):
    layer = make(rest)
    expected = layer(X)
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    layer.reprune(torch.randn(70, 48))
    for each in copies:
        assert torch.equal(each(X), expected)


def test_layers_pickled_before_there_was_metadata():
    layer = BlockSparseLinear(48, 70, block=16)
    del layer._buffers["metadata"]
    loaded = pickle.loads(pickle.dumps(layer))
    assert loaded.metadata is None and loaded(X).shape == (3, 70)


@every_format
def test_meta_device(rest):
    with torch.device("meta"):
        layer = make(rest)
    assert layer.metadata.is_meta and layer(X.to("meta")).shape == (3, 70)
    layer.to_empty(device="cpu").reset_parameters()
    torch.testing.assert_close(layer(X), layer.to_linear()(X))
    positions = layer.metadata.clone()
    layer.to_empty(device="cpu")
    assert torch.equal(layer.metadata, positions)


@every_format
def test_dtypes(rest):
    layer = make(rest)
    y = layer(X)
    torch.testing.assert_close(layer.double()(X.double()).float(), y)
    assert layer.bfloat16()(X.bfloat16()).dtype is torch.bfloat16
    assert layer.metadata.dtype is torch.uint8


@every_format
def test_metadata_set_from_outside_is_checked(rest):
    layer, good = make(rest), other(rest)
    layer.metadata = torch.full_like(layer.metadata, 0x44)
    torch.testing.assert_close(layer(X), layer.to_linear()(X))
    layer.metadata = torch.zeros_like(layer.metadata)
    with pytest.raises(InvalidArgument, match=r"metadata\[0\] is 0x00"):
        layer(X)
    good.metadata.fill_(0x40)  # written to, which nothing watches: the CPU finds it at every call
    with pytest.raises(InvalidArgument, match=r"metadata\[0\] is 0x40"):
        good(X)
    with pytest.raises(InvalidArgument, match=r"metadata\[0\] is 0x40"):
        good.refresh_pattern()


EDITS = {
    "missing": (lambda m: None, "metadata missing beside values, row_offsets, col_indices"),
    "no tensor": (lambda m: 3, "metadata is a int; it must be a tensor"),
    "dtype": (lambda m: m.float(), "metadata has dtype torch.float32; it must be torch.uint8"),
    "short": (lambda m: m[..., 1:], "metadata has shape .*; a pattern of format .* needs"),
    "meta": (lambda m: m.to("meta"), "metadata is on the meta device and holds no positions"),
    "equal": (lambda m: written(m, 0x54), r"metadata\[0\] is 0x54"),
    "descending": (lambda m: written(m, 0x14), r"metadata\[0\] is 0x14"),
    "all bits": (lambda m: written(m, 0xFF), r"metadata\[0\] is 0xff"),
}


def written(metadata, byte):
    metadata = metadata.clone()
    metadata.view(-1)[0] = byte
    return metadata


@every_format
@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("assign", [False, True])
def test_malformed_checkpoints_change_nothing(rest, name, assign):
    change, message = EDITS[name]
    layer, loaded = make(rest), other(rest)
    state, before = copy.deepcopy(layer.state_dict()), copy.deepcopy(loaded.state_dict())
    state["metadata"] = change(state["metadata"])
    if state["metadata"] is None:
        del state["metadata"]
    with pytest.raises(RuntimeError, match=f"(?s)BlockSparseLinear.*{message}"):
        loaded.load_state_dict(state, strict=False, assign=assign)
    after = loaded.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before if key != "_extra_state")


def test_checkpoints_of_another_format():
    """Also without extra state, where the shapes alone would do."""
    bsr, inside = BlockSparseLinear(48, 70, block=(16, 8)), make(FORMATS["bsr24"])
    bsr.set_pattern(torch.rand(5, 6).argsort(1) < 2)
    inside.set_pattern(torch.rand(5, 3).argsort(1) < 2)
    assert bsr.values.shape == inside.values.shape
    for one, two in ((bsr, inside), (inside, bsr)):
        with pytest.raises(RuntimeError, match="block is|format is"):
            two.load_state_dict(one.state_dict())
        state = {name: tensor for name, tensor in one.state_dict().items() if name != "_extra_state"}
        with pytest.raises(RuntimeError, match="col_indices|metadata"):
            two.load_state_dict(state, strict=False)
    state["metadata"] = inside.metadata
    state["col_indices"] = torch.where(bsr.col_indices < 3, bsr.col_indices, 0)
    with pytest.raises(RuntimeError, match="metadata is given, but a pattern of format bsr has none"):
        bsr.load_state_dict({**bsr.state_dict(), "metadata": inside.metadata}, strict=False)


@every_format
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(rest, dtype):
    layer = make(rest)
    with torch.autocast("cpu", dtype=dtype):
        y, dense = layer(X), layer.to_linear()(X)
    y.float().square().sum().backward()
    assert (y.dtype, layer.values.grad.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(y, dense, rtol=2e-2, atol=2e-2)


def net():
    return nn.Sequential(make(FORMATS["bsr24"], activation="gelu"), BlockSparseLinear(70, 16, block=8), nn.ReLU(),
                         BlockSparseLinear(16, 24, format="semi24"))  # fmt: skip


def run(model, x):
    x = x.detach().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(("backend", "dynamic"), [("aot_eager", None), ("aot_eager", True), ("inductor", None)])
def test_compile(backend, dynamic):
    torch.compiler.reset()
    model = net()
    fast = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for tokens in (3, 5):
        x = torch.randn(tokens, 48)
        torch.testing.assert_close(run(fast, x), run(model, x))
    model[0].reprune(torch.randn(70, 48))
    model[0].set_pattern(model[0].pattern.mask().logical_not())
    torch.testing.assert_close(run(fast, x), run(model, x))


def test_the_dense_path_compiles():
    torch.compiler.reset()
    model = net()
    for layer in (model[0], model[3]):
        layer.backend = "dense"
    torch.testing.assert_close(run(torch.compile(model, backend="aot_eager", fullgraph=True), X), run(model, X))


@every_format
def test_layers_compiled_one_by_one_share_compilations(rest):
    torch.compiler.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for _ in range(4):
        layer = make(rest)
        expected = run(layer, X)
        layer.compile(backend=graphs, fullgraph=True)
        torch.testing.assert_close(run(layer, X), expected)
    assert graphs.frame_count <= 2


FRESH = """
import sys, torch, bsparse_torch
from bsparse_torch import plans
program, data = torch.export.load(sys.argv[1]), torch.load(sys.argv[2])
for x, y in zip(data["x"], data["y"]):
  with torch.no_grad():
    torch.testing.assert_close(program.module()(x), y)
assert len(plans._rebuilt) == 3
"""


def test_export_and_the_program_in_a_fresh_process(tmp_path):
    model = net()
    shapes = ({0: torch.export.Dim("tokens", min=1, max=1024)},)
    with torch.no_grad():
        program = torch.export.export(model, (X,), dynamic_shapes=shapes)
    names = {"row_offsets", "col_indices"}
    expected = {f"{layer}.{name}" for layer in (0, 1, 3) for name in names} | {"0.metadata", "3.metadata"}
    assert set(program.graph_signature.buffers) == expected
    torch.export.save(program, tmp_path / "program.pt2")
    inputs = [torch.randn(tokens, 48) for tokens in (1, 7, 64)]
    torch.save({"x": inputs, "y": [model(x).detach() for x in inputs]}, tmp_path / "data.pt")
    command = [sys.executable, "-c", FRESH, str(tmp_path / "program.pt2"), str(tmp_path / "data.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@every_format
def test_functional_call_checkpointing_and_inference_mode(rest):
    layer = make(rest)
    doubled = {name: 2 * parameter.detach() for name, parameter in layer.named_parameters()}
    torch.testing.assert_close(torch.func.functional_call(layer, doubled, (X,)), 2 * layer(X))
    y = torch.utils.checkpoint.checkpoint(layer, X, use_reentrant=False)
    (grad,) = torch.autograd.grad(y.sum(), layer.values)
    torch.testing.assert_close(grad, torch.autograd.grad(layer(X).sum(), layer.values)[0])
    with torch.inference_mode():
        assert torch.equal(layer(X), y)
        assert make(rest)(X).is_inference()


@every_format
def test_written_by_another_process(rest):
    """As DistributedDataParallel does when it is made."""
    layer, twin = make(rest), make(rest)
    layer(X)
    with torch.no_grad():
        for name, tensor in twin.state_dict().items():
            if name != "_extra_state":
                layer.state_dict()[name].copy_(tensor)
    assert torch.equal(layer(X), twin(X))
    assert layer.pattern == twin.pattern


def test_the_pattern_of_an_empty_bsr24_layer():
    layer = BlockSparseLinear.empty(48, 70, 2, 16, format="bsr24")
    layer.row_offsets, layer.col_indices = torch.tensor([0, 2, 2, 2, 2, 2]).int(), torch.tensor([0, 2]).int()
    assert layer.pattern == BlockPattern([0, 2, 2, 2, 2, 2], [0, 2], (70, 48), 16, "bsr24")
