"""Patching in place: what is replaced, what stays as it was, and that an error changes nothing."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from bsparse_hf import BlockSparseModelPatcher
from bsparse_torch import BlockSparseLinear


def sparse_names(model):
    return {name for name, module in model.named_modules() if isinstance(module, BlockSparseLinear)}


def test_replaces_what_matches(make, patch):
    model = make("bert")
    report = patch(model, r"encoder\.layer\.\d+\.(intermediate|output)\.dense")
    wanted = {f"encoder.layer.{n}.{part}.dense" for n in (0, 1) for part in ("intermediate", "output")}
    assert sparse_names(model) == wanted == {row.name for row in report.patched}


def test_the_report_is_the_plan(make):
    model, patcher = make("bert"), BlockSparseModelPatcher(fuse_activations=False)
    patcher.add_pattern(r"encoder\..*", density=0.5, block=16)
    plan = patcher.plan(model)
    assert patcher.patch_model(model) == plan


def test_bytes_are_as_planned(make, patch):
    model = make("bert")
    report = patch(model, r"encoder\..*")
    for row in report.patched:
        layer = model.get_submodule(row.name)
        assert row.bytes_after == sum(t.nbytes for t in [*layer.parameters(), *layer.buffers()])


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_full_density_changes_no_output(make, patch, tokens, family):
    model = make(family)
    with torch.no_grad():
        before = model(tokens).last_hidden_state
        patch(model, density=1, force=True)
        after = model(tokens).last_hidden_state
    assert sparse_names(model)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_kept_blocks_are_the_largest_and_unchanged(patch):
    model = nn.Sequential(nn.Linear(64, 64))
    weight = model[0].weight.detach().clone()
    patch(model, density=0.25)
    dense = model[0].to_dense().detach()
    norms = weight.unflatten(0, (4, 16)).unflatten(2, (4, 16)).square().sum((1, 3))
    kept = dense.unflatten(0, (4, 16)).unflatten(2, (4, 16)).abs().sum((1, 3)) > 0
    assert set(norms[kept].tolist()) == set(norms.flatten().topk(4).values.tolist())
    assert torch.equal(dense[dense != 0], weight[dense != 0])


def test_nonzero_blocks_are_kept_exactly(patch):
    model = nn.Sequential(nn.Linear(64, 64))
    with torch.no_grad():
        model[0].weight[:, 20:] = 0
    weight = model[0].weight.detach().clone()
    patch(model, choose="nonzero", density=None)
    assert model[0].pattern.blocks == 4 * 2
    assert torch.equal(model[0].to_dense(), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtype_mode_and_requires_grad_stay(patch, dtype):
    model = nn.Sequential(nn.Linear(64, 64, dtype=dtype), nn.Linear(64, 64, dtype=dtype))
    model[0].weight.requires_grad_(False)
    model[1].eval()
    patch(model)
    assert model[0].values.dtype == model[0].bias.dtype == dtype
    assert (model[0].values.requires_grad, model[0].bias.requires_grad) == (False, True)
    assert (model[0].training, model[1].training) == (True, False)


def test_a_shared_module_is_patched_once_and_stays_shared(patch):
    shared = nn.Linear(64, 64)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    report = patch(model)
    assert len(report.patched) == 1
    assert model["a"] is model["b"][0]
    assert isinstance(model["a"], BlockSparseLinear)


def test_patching_in_two_steps(make, patch):
    model = make("bert")
    patch(model, r".*\.intermediate\.dense")
    patch(model, r".*\.attention\.self\.query", density=0.25)
    assert set(model.config.quantization_config.modules) == sparse_names(model)
    assert len(sparse_names(model)) == 4


def test_a_forced_tied_head_is_untied(make, patch, tokens):
    model = make("llama", "ForCausalLM", tie_word_embeddings=True)
    embeddings = model.get_input_embeddings().weight.detach().clone()
    patch(model, "lm_head", force=True, density=0.25)
    assert sparse_names(model) == {"lm_head"}
    assert not model.config.tie_word_embeddings
    assert torch.equal(model.get_input_embeddings().weight, embeddings)
    model.tie_weights()
    assert model(tokens).logits.shape == (2, 9, 64)


def test_a_head_tied_together_with_others_is_refused(make, patch):
    model = make("t5", "ForConditionalGeneration")
    with pytest.raises(ValueError, match="lm_head: tied to shared.weight by more than tie_word_embeddings: untie it"):
        patch(model, "lm_head", force=True)


def test_options_as_a_mapping(make):
    patcher = BlockSparseModelPatcher()
    patcher.add_pattern("pooler.dense", {"density": 0.5})
    patcher.add_pattern("pooler.dense", {"density": 0.5}, block=16)
    assert [rule.block for rule in patcher.rules] == [(64, 64), (16, 16)]
    with pytest.raises(ValueError, match="option 'density' is given twice"):
        patcher.add_pattern("a", {"density": 0.5}, density=0.25)


def test_unmatched_rules_are_warned_of(make):
    patcher = BlockSparseModelPatcher()
    patcher.add_pattern(r"encoder\..*", density=0.5, block=16)
    patcher.add_pattern(r"decoder\..*", density=0.5, block=16)
    with pytest.warns(UserWarning, match="rule 2 'decoder.*' matches no module"):
        patcher.patch_model(make("bert"))


def test_a_warning_made_an_error_leaves_the_model_as_it_was(make, patch):
    model = make("mixtral")
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="fused experts"):
        warnings.simplefilter("error")
        patch(model, ".*_proj")
    assert not sparse_names(model)


def test_fused_experts_are_warned_of(make, patch):
    with pytest.warns(UserWarning, match="4 stacks of fused experts"):
        patch(make("mixtral"), ".*_proj")


def test_no_rules(make):
    with pytest.raises(ValueError, match="the patcher has no rules: call add_pattern"):
        BlockSparseModelPatcher().patch_model(make("bert"))


def test_nothing_matched(make, patch):
    with pytest.raises(ValueError, match=r"no module would be patched:\n.*part of: encoder.layer.0.output.dense"):
        patch(make("bert"), r"layer\.0\.output\.dense")


def test_everything_that_matched_is_skipped(make, patch):
    with pytest.raises(ValueError, match="lm_head: output head; force=True patches it"):
        patch(make("llama", "ForCausalLM"), "lm_head")


@pytest.mark.parametrize("obstacle", ["hook", "prune", "meta", "dtype"])
def test_a_refusal_leaves_the_model_as_it_was(patch, obstacle):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    words = {"hook": "has hooks", "prune": "has hooks", "meta": "meta device", "dtype": "torch.float8"}[obstacle]
    if obstacle == "hook":
        model[1].register_forward_hook(lambda *_: None)
    elif obstacle == "prune":
        prune.l1_unstructured(model[1], "weight", 0.5)
    elif obstacle == "meta":
        model[1].to("meta")
    else:
        model[1].weight = nn.Parameter(model[1].weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(ValueError, match=f"nothing was patched, for these cannot be:\n  1: .*{words}"):
        patch(model)
    assert not sparse_names(model)


def test_an_error_halfway_leaves_the_model_as_it_was(make, patch, monkeypatch):
    real, calls = BlockSparseLinear.from_linear, []

    def fails_at_the_third(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return real(*args, **kwargs)

    monkeypatch.setattr(BlockSparseLinear, "from_linear", fails_at_the_third)
    model = make("bert")
    with pytest.raises(MemoryError):
        patch(model, r"encoder\..*")
    assert not sparse_names(model)
    assert not hasattr(model.config, "quantization_config")


def test_wrapped_models_are_refused(make, patch):
    with pytest.raises(ValueError, match="compiled; patch it first"):
        patch(torch.compile(make("bert"), backend="eager"))
    with pytest.raises(ValueError, match="wrapped in DataParallel; patch model.module"):
        patch(nn.DataParallel(make("bert")))
    with pytest.raises(TypeError, match="model is a str"):
        patch("bert")


def test_a_quantized_model_is_refused(make, patch):
    model = make("bert")
    model.hf_quantizer, model.quantization_method = object(), "bitsandbytes"
    with pytest.raises(ValueError, match="the model is quantized by bitsandbytes"):
        patch(model)
