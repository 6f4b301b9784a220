"""The old model patchers: prefix matching and hooks as before; each old fault has a test named for it."""

import pytest
import torch
from torch import nn

import bsparse_hf
from bsparse_hf.compat import pytorch_block_sparse as pbs

pytestmark = pytest.mark.filterwarnings("ignore::bsparse_torch.compat.CompatibilityWarning")

OUTPUTS = r"encoder\.layer\.[0-9]+\.output\.dense"


def patcher_of(pattern, **info):
    patcher = pbs.BlockSparseModelPatcher()
    patcher.add_pattern(pattern, info or {"density": 0.5})
    return patcher


def linears(count):
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(count)))


def test_a_model_is_patched_in_place(make, tokens):
    model = make("bert")
    report = patcher_of(OUTPUTS).patch_model(model)
    layer = model.encoder.layer[1].output.dense
    assert isinstance(layer, pbs.BlockSparseLinear)
    assert layer.density == 0.5
    assert [row.name for row in report.patched] == [f"encoder.layer.{i}.output.dense" for i in range(2)]
    assert model(tokens).last_hidden_state.isfinite().all()


def test_the_report_counts_as_true_and_prints():
    report = patcher_of("0").patch_model(linears(1))
    assert report
    assert "1 of 1 modules block-sparse" in str(report)
    assert report.to_dict()["modules"][0]["density"] == 0.5


@pytest.mark.parametrize("name", ["patch_info", "pattern_info"])
def test_both_names_of_the_second_argument(name):
    patcher = pbs.BlockSparseModelPatcher()
    patcher.add_pattern("0", **{name: {"density": 0.5}})
    assert len(patcher.patch_model(linears(1)).patched) == 1


@pytest.mark.parametrize("info", [{}, {"patch_info": {"density": 0.5}, "pattern_info": {"density": 0.5}}])
def test_one_of_both_names_is_needed(info):
    with pytest.raises(TypeError, match="of patch_info and pattern_info are given; pass one"):
        pbs.BlockSparseModelPatcher().add_pattern("0", **info)


def test_patterns_match_the_beginning_of_a_name():
    model = linears(12)
    patcher_of("1").patch_model(model)
    assert [i for i, module in enumerate(model) if isinstance(module, pbs.BlockSparseLinear)] == [1, 10, 11]


def test_the_first_pattern_wins():
    patcher = patcher_of("0$", density=0.25)
    patcher.add_pattern("[01]", {"density": 1.0})
    model = linears(2)
    report = patcher.patch_model(model)
    assert [row.density for row in report.modules] == [0.25, 1.0]
    assert [row.rule for row in report.modules] == [1, 2]


def test_get_patchable_layers_lists_linears_by_escaped_name(make):
    model = make("bert")
    found = pbs.BlockSparseModelPatcher().get_patchable_layers(model)
    assert {"regexp": r"encoder\.layer\.0\.output\.dense", "layer": model.encoder.layer[0].output.dense} in found
    assert all(isinstance(entry["layer"], nn.Linear) for entry in found)


def test_pseudo_layers():
    model = linears(1)
    report = patcher_of("0", density=0.5, pseudo_linear=True).patch_model(model)
    assert isinstance(model[0], pbs.PseudoBlockSparseLinear)
    assert report.modules[0].reason == "replaced by a PseudoBlockSparseLinear"


def test_hooks_can_be_overridden():
    class Patcher(pbs.ModelPatcher):
        def is_patchable(self, module_name, module, raiseError):
            return isinstance(module, nn.ReLU)

        def new_child_module(self, child_module_name, child_module, patch_info):
            return patch_info if child_module_name == "1" else None

    model = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Linear(2, 2))
    patcher, new = Patcher(), nn.GELU()
    patcher.add_pattern("", new)
    patcher.patch_model(model)
    assert model[1] is new
    assert isinstance(model[0], nn.ReLU)


def test_replace_module_can_be_overridden():
    class Patcher(pbs.BlockSparseModelPatcher):
        def replace_module(self, father, child_module_name, child_name, child_module, patch_info):
            super().replace_module(father, child_module_name, child_name, child_module, patch_info)
            setattr(father, child_name, nn.Sequential(getattr(father, child_name)))

    patcher, model = Patcher(), linears(1)
    patcher.add_pattern("0", {"density": 0.5})
    patcher.patch_model(model)
    assert isinstance(model[0][0], pbs.BlockSparseLinear)


def test_a_patched_model_is_saved_and_loaded_by_bsparse_hf(make, tokens, tmp_path):
    model = make("bert")
    patcher_of(OUTPUTS).patch_model(model)
    model.save_pretrained(tmp_path)
    loaded = bsparse_hf.load(tmp_path).eval()
    assert torch.equal(loaded(tokens).last_hidden_state, model(tokens).last_hidden_state)
    assert len(pbs.SparseOptimizer.sparse_objects(loaded)) == 2


def test_old_fault_conversion_scrambles_weights():
    model = linears(1)
    weight = model[0].weight.detach().clone()
    patcher_of("0", density=1.0).patch_model(model)
    assert torch.equal(model[0].weight.to_dense(), weight)


def test_old_fault_block_shape_cannot_be_passed():
    model = linears(1)
    patcher_of("0", density=0.5, block_shape=(16, 32)).patch_model(model)
    assert model[0].block_shape == (16, 32)


def test_old_fault_patching_prints(capsys):
    patcher_of("0").patch_model(linears(1))
    patcher_of("nothing").patch_model(linears(1))
    assert capsys.readouterr().out == ""


def test_old_fault_nothing_matched_is_only_printed():
    with pytest.warns(pbs.CompatibilityWarning, match="no module was patched; get_patchable_layers"):
        report = patcher_of("nothing").patch_model(linears(1))
    assert report
    assert not report.patched


def test_old_fault_tied_weights_are_untied():
    model = linears(2)
    model[1].weight = model[0].weight
    with pytest.warns(pbs.CompatibilityWarning, match=r"0 was left as it is: tied to 1\.weight"):
        report = patcher_of("[01]").patch_model(model)
    assert model[1].weight is model[0].weight
    assert not report.patched


def test_old_fault_a_shared_module_is_replaced_once():
    shared = nn.Linear(64, 64)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    patcher_of("0").patch_model(model)
    assert isinstance(model[0], pbs.BlockSparseLinear)
    assert model[2] is model[0]


def test_old_fault_dtype_requires_grad_and_mode_are_lost():
    model = linears(1).to(torch.bfloat16).requires_grad_(False).eval()
    patcher_of("0").patch_model(model)
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {(torch.bfloat16, False)}
    assert not model[0].training


def test_a_pseudo_layer_keeps_requires_grad_and_mode():
    model = linears(1).requires_grad_(False).eval()
    patcher_of("0", density=0.5, pseudo_linear=True).patch_model(model)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model[0].training


def test_old_fault_hooks_are_lost():
    model = linears(1)
    model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="Cannot patch 0: it has hooks"):
        patcher_of("0").patch_model(model)


def test_old_fault_an_error_leaves_a_half_patched_model():
    patcher = patcher_of("0", density=0.5)
    patcher.add_pattern("1", {"density": 7})
    model = linears(2)
    before = list(model)
    with pytest.raises(ValueError, match=r"density is 7; it must be in \(0, 1\]"):
        patcher.patch_model(model)
    assert list(model) == before


def test_other_modules_are_refused_with_the_cure(make):
    with pytest.raises(ValueError, match=r"Cannot patch encoder\.layer: it is a ModuleList, not a Linear.*end it with"):
        patcher_of(r"encoder\.layer").patch_model(make("bert"))


def test_a_missing_density_names_the_cure():
    with pytest.raises(ValueError, match=r"patch_info of 0 has no density; .* pass \{\"density\": 0.5\}"):
        patcher_of("0", pseudo_linear=False).patch_model(linears(1))


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="patch_info of 0 has 'block'; it may have density"):
        patcher_of("0", density=0.5, block=32).patch_model(linears(1))


def test_old_paths_and_names():
    from bsparse_hf.compat.pytorch_block_sparse.util import BlockSparseModelPatcher, ModelPatcher
    from bsparse_torch.compat import pytorch_block_sparse as torch_names

    assert issubclass(BlockSparseModelPatcher, ModelPatcher)
    assert set(torch_names.__all__) | {"BlockSparseModelPatcher", "ModelPatcher"} == set(pbs.__all__)
