"""Activations computed inside the layer before them: which ones, with what results, and undone without a trace."""

import copy

import pytest
import tolerances
import torch
from torch import nn
from transformers.activations import GELUActivation, QuickGELUActivation

import bsparse_hf
from bsparse_hf import BlockSparseModelPatcher, fuse_activations, unfuse_activations
from bsparse_hf._transformers import ACTIVATIONS
from bsparse_hf.fusion import Fused
from bsparse_torch import BlockSparseLinear

FEEDS = {
    "bert": ("encoder.layer.{}.intermediate.dense", "gelu"),
    "gpt2": ("h.{}.mlp.c_fc", "gelu_tanh"),
    "llama": ("layers.{}.mlp.gate_proj", "silu"),
}


def layer(**rest):
    return BlockSparseLinear(32, 32, block=16, **rest)


def activations(model):
    return {n: m.activation for n, m in model.named_modules() if isinstance(m, BlockSparseLinear) and m.activation}


def classes(model):
    return {name: type(module) for name, module in model.named_modules()}


class Feed(nn.Module):
    """One layer and what follows it, called as a test says."""

    def __init__(self, act=None, forward=None):
        super().__init__()
        self.dense, self.act, self.how = layer(), act or nn.GELU(), forward

    def forward(self, x):
        return self.how(self, x) if self.how else self.act(self.dense(x))


@pytest.mark.parametrize("family", FEEDS)
def test_what_patching_fuses(make, patch, family):
    model, (name, activation) = make(family), FEEDS[family]
    report = patch(model)
    assert activations(model) == {name.format(n): activation for n in (0, 1)}
    note = f"2 activations are computed inside the layer before them: {activation}"
    assert report.notes[-1] == note
    assert f"note: {note}" in str(report)


@pytest.mark.parametrize("family", FEEDS)
def test_outputs_are_those_of_the_unfused_model(make, patch, tokens, family):
    model = make(family)
    patch(model)
    unfused = copy.deepcopy(model)
    unfuse_activations(unfused)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[0], unfused(tokens)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FEEDS)
def test_gradients_are_those_of_the_unfused_model(make, patch, tokens, family):
    model = make(family)
    patch(model)
    unfused = copy.deepcopy(model)
    unfuse_activations(unfused)
    for each in (model, unfused):
        each(tokens)[0].square().mean().backward()
    for (name, one), other in zip(model.named_parameters(), unfused.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_bfloat16_rounds_once(make, patch):
    model = make("bert").bfloat16()
    patch(model)
    block, exact = model.encoder.layer[0].intermediate, copy.deepcopy(model).double().encoder.layer[0].intermediate
    x = torch.randn(2, 9, 64, dtype=torch.bfloat16)
    torch.testing.assert_close(block(x).double(), exact(x.double()), rtol=tolerances.STORE["bf16"], atol=1e-5)


def test_patching_without_fusion(make):
    model, patcher = make("bert"), BlockSparseModelPatcher(fuse_activations=False)
    patcher.add_pattern(".*", density=0.5, block=16)
    report = patcher.patch_model(model)
    assert not activations(model)
    assert "activation" not in str(report.notes)


def test_patching_twice_fuses_what_is_new(make, patch):
    model = make("bert")
    patch(model, r"encoder\.layer\.0\..*")
    report = patch(model, r"encoder\.layer\.1\..*")
    assert len(activations(model)) == 2
    assert report.notes[-1] == "1 activation is computed inside the layer before it: gelu"


def test_fusing_again_changes_nothing():
    model = Feed()
    assert fuse_activations(model) == {"dense": "gelu"}
    assert fuse_activations(model) == {}


def test_unfusing_restores_the_very_modules(make, patch):
    model = make("bert")
    before, act = classes(model), model.encoder.layer[0].intermediate.intermediate_act_fn
    patch(model, "encoder.*intermediate.dense")
    unfuse_activations(model)
    assert model.encoder.layer[0].intermediate.intermediate_act_fn is act
    changed = {name for name, kind in classes(model).items() if kind is not before[name]}
    assert changed == {f"encoder.layer.{n}.intermediate.dense" for n in (0, 1)}
    assert not activations(model)


def test_says_who_computes_it():
    model = Feed(nn.ReLU())
    fuse_activations(model)
    assert repr(model.act) == "Fused(\n  by='dense'\n  (original): ReLU()\n)"
    assert "activation='relu'" in repr(model.dense)


FORWARDS = {
    "output used twice": lambda m, x: (lambda y: m.act(y) + y)(m.dense(x)),
    "output returned, too": lambda m, x: (lambda y: (y, m.act(y)))(m.dense(x)),
    "layer called twice": lambda m, x: m.act(m.dense(m.dense(x))),
    "activation called twice": lambda m, x: m.act(m.act(m.dense(x))),
    "something between": lambda m, x: m.act(m.dense(x) + 1),
    "not in evaluation": lambda m, x: m.act(m.dense(x)) if m.training else m.dense(x),
    "not traceable": lambda m, x: m.act(m.dense(x)) if x.sum() > 0 else x,
    "another function after": lambda m, x: torch.tanh(m.dense(x)),
    "output kept": lambda m, x: (lambda y: (setattr(m, "kept", y), m.act(y))[1])(m.dense(x)),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_not_fused(name):
    model = Feed(forward=FORWARDS[name]).eval()
    assert fuse_activations(model) == {}
    assert not hasattr(model, "kept")  # tracing leaves nothing in the model


class TwoArguments(Feed):
    def forward(self, x, skip=None):
        y = self.dense(x)
        return self.act(y) if skip is not None else y


def test_not_fused_where_an_argument_could_change_it():
    assert fuse_activations(TwoArguments()) == {}


@pytest.mark.parametrize("act", [nn.Tanh(), nn.ReLU6(), QuickGELUActivation(), nn.Sequential(nn.GELU())], ids=str)
def test_other_activations_are_not_fused(act):
    assert fuse_activations(Feed(act)) == {}


KNOWN = [kind() for kind in ACTIVATIONS] + [
    nn.GELU("tanh"),
    nn.ReLU(inplace=True),
    GELUActivation(use_gelu_python=True),
]


@pytest.mark.parametrize("act", KNOWN, ids=str)
def test_known_activations_are_computed_exactly(act):
    model, x = Feed(act).double(), torch.randn(5, 32, dtype=torch.float64)
    expected = model(x)
    assert fuse_activations(model)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("child", ["dense", "act"])
def test_not_fused_where_hooks_would_see_it(child):
    model = Feed()
    model.get_submodule(child).register_forward_hook(lambda *_: None)
    assert fuse_activations(model) == {}


def test_a_layer_in_two_places_is_not_fused():
    first, second = Feed(), Feed()
    second.dense = first.dense
    assert fuse_activations(nn.Sequential(first, second)) == {}


def test_a_shared_activation_is_replaced_where_it_is_fused_only():
    act = nn.GELU()
    model = nn.Sequential(Feed(act), Feed(act, lambda m, x: m.act(m.act(m.dense(x)))))
    assert fuse_activations(model) == {"0.dense": "gelu"}
    assert isinstance(model[0].act, Fused)
    assert model[1].act is act


def test_an_activation_of_two_names_stays_under_the_other():
    model = Feed(forward=lambda m, x: m.same(m.act(m.dense(x))))
    model.same, x = model.act, torch.randn(3, 32)
    expected = model(x)
    assert fuse_activations(model) == {"dense": "gelu"}
    torch.testing.assert_close(model(x), expected)


def test_forwards_that_read_tensors_are_traced():
    model = Feed(forward=lambda m, x: m.scale * m.act(m.dense(x)) + m.shift.add_(1))
    model.scale, model.shift = nn.Parameter(torch.ones(32)), nn.Buffer(torch.zeros(32))
    assert fuse_activations(model) == {"dense": "gelu"}
    assert not model.shift.any()  # tracing changes nothing


def test_a_shared_block_is_fused_once():
    block = Feed()
    model, x = nn.Sequential(block, block), torch.randn(3, 32)
    expected = model(x)
    assert len(fuse_activations(model)) == 1
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("family", FEEDS)
def test_loading_fuses(make, patch, tokens, tmp_path, family):
    model = make(family)
    patch(model)
    model.save_pretrained(tmp_path)
    loaded = bsparse_hf.load(tmp_path)
    assert activations(loaded) == activations(model) != {}
    with torch.no_grad():
        assert torch.equal(loaded(tokens)[0], model(tokens)[0])


@pytest.mark.parametrize("family", FEEDS)
@pytest.mark.parametrize("when", ["patching", "later"])
def test_what_is_not_fused_is_loaded_so(make, tokens, tmp_path, family, when):
    model, patcher = make(family), BlockSparseModelPatcher(fuse_activations=when == "later")
    patcher.add_pattern(".*", density=0.5, block=16)
    patcher.patch_model(model)
    unfuse_activations(model)
    for folder in ("first", "second"):
        model.save_pretrained(tmp_path / folder)
        model = bsparse_hf.load(tmp_path / folder)
        assert model.config.quantization_config.to_dict()["fuse_activations"] is False
        assert not activations(model)
    fuse_activations(model)
    model.save_pretrained(tmp_path)
    assert activations(bsparse_hf.load(tmp_path)) == activations(model) != {}


def test_an_unfused_model_with_hooks_stays_unfused(make, tmp_path):
    model, patcher = make("bert"), BlockSparseModelPatcher(fuse_activations=False)
    patcher.add_pattern(".*", density=0.5, block=16)
    patcher.patch_model(model)
    for module in model.modules():
        module.register_forward_hook(lambda *_: None)  # as layers that get offloaded have
    model.save_pretrained(tmp_path)
    assert not activations(bsparse_hf.load(tmp_path))


def test_dequantize_leaves_none_fused(make, patch):
    model = make("bert")
    before = classes(model)
    patch(model)
    assert classes(model.dequantize()) == before


def test_an_activation_set_by_hand_is_never_lost(make, patch, tmp_path):
    model = make("bert")
    patch(model)
    model.pooler.dense.activation = "relu"
    for call in (lambda: model.save_pretrained(tmp_path), model.dequantize):
        with pytest.raises(ValueError, match="pooler.dense.activation is 'relu', which no module .* set it to None"):
            call()
    assert activations(model)["encoder.layer.0.intermediate.dense"] == "gelu"


def test_a_fused_block_compiles_as_one_graph(make, patch):
    model = make("bert")
    patch(model)
    block, x = model.encoder.layer[0].intermediate, torch.randn(2, 9, 64)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), block(x))


def test_only_in_modules_of_transformers_where_asked():
    """As patching and loading ask."""
    assert fuse_activations(nn.ModuleList([Feed()]), only_transformers=True) == {}


def test_a_sequence_is_not_fused():
    """Its parts may be called one by one."""
    assert fuse_activations(nn.Sequential(layer(), nn.GELU())) == {}


def test_a_layer_replaced_while_fused_is_named():
    model = Feed()
    fuse_activations(model)
    model.dense = nn.Sequential(model.dense)
    with pytest.raises(ValueError, match="put that layer back, call unfuse_activations"):
        unfuse_activations(model)
    assert isinstance(model.act, Fused)
