"""torch.export: in this process, and in a fresh one that must rebuild the plans from the index tensors."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from bsparse_torch import BlockSparseLinear, gain

FRESH = """
import sys, torch, bsparse_torch
from bsparse_torch import plans
program = torch.export.load(sys.argv[1])
data = torch.load(sys.argv[2])
assert not plans._hosts
for x, y in zip(data["x"], data["y"]):
    torch.testing.assert_close(program.module()(x), y)
assert len(plans._rebuilt) == 2
"""


def make():
    return nn.Sequential(BlockSparseLinear(45, 70, block=16), nn.GELU(), BlockSparseLinear(70, 24, block=8, bias=False))


def export(model):
    tokens = torch.export.Dim("tokens", min=1, max=1024)
    with torch.no_grad():
        return torch.export.export(model, (torch.randn(5, 45),), dynamic_shapes=({0: tokens},))


def test_an_exported_program_takes_any_number_of_tokens():
    model = make()
    program = export(model)
    for tokens in (1, 2, 33):
        x = torch.randn(tokens, 45)
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize(("most", "runs"), [(100, "bsparse.linear.default"), (1024, "aten.linear.default")])
@pytest.mark.parametrize("strict", [False, True])
def test_auto_decides_once_for_all_tokens(monkeypatch, most, runs, strict):
    """The dense product, where tokens may be so many that it is faster."""
    monkeypatch.setitem(gain.MACHINES, "cpu", gain.MACHINES["cpu"]._replace(break_even=((1, 0.87),)))
    layer = BlockSparseLinear(48, 64, block=16, density=1.0, backend="auto")
    assert 100 < gain.dense_from(layer.pattern, torch.float32, torch.device("cpu")) < 1024
    shapes = ({0: torch.export.Dim("tokens", min=1, max=most)},)
    program = torch.export.export(layer, (torch.randn(5, 48),), dynamic_shapes=shapes, strict=strict)
    assert runs in {str(node.target) for node in program.graph.nodes}
    for tokens in (1, most):
        x = torch.randn(tokens, 48)
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("strict", [False, True])
def test_auto_where_dense_is_never_faster(strict):
    layer = BlockSparseLinear(48, 64, block=16, density=0.25, backend="auto")
    assert gain.dense_from(layer.pattern, torch.float32, torch.device("cpu")) == gain.NEVER
    shapes = ({0: torch.export.Dim("tokens")},)
    program = torch.export.export(layer, (torch.randn(5, 48),), dynamic_shapes=shapes, strict=strict)
    assert "bsparse.linear.default" in {str(node.target) for node in program.graph.nodes}


def test_the_index_tensors_are_buffers_of_the_program():
    program = export(make())
    assert set(program.graph_signature.buffers) == {
        f"{layer}.{name}" for layer in (0, 2) for name in ("row_offsets", "col_indices")
    }
    assert set(program.graph_signature.parameters) == {"0.values", "0.bias", "2.values"}


def test_the_program_in_a_fresh_process(tmp_path):
    model = make()
    torch.export.save(export(model), tmp_path / "program.pt2")
    inputs = [torch.randn(tokens, 45) for tokens in (1, 7, 64)]
    torch.save({"x": inputs, "y": [model(x).detach() for x in inputs]}, tmp_path / "data.pt")
    command = [sys.executable, "-c", FRESH, str(tmp_path / "program.pt2"), str(tmp_path / "data.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_export_for_training():
    model = make()
    program = torch.export.export(model, (torch.randn(5, 45),))
    x = torch.randn(5, 45)
    trained = program.module()
    trained(x).sum().backward()
    model(x).sum().backward()
    torch.testing.assert_close(trained.get_parameter("0.values").grad, model[0].values.grad)
