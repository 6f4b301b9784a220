"""The plan: every Linear and Conv1D, with what will become of it, and nothing changed."""

import json

import pytest
import torch
from torch import nn

from bsparse_hf import BlockSparseModelPatcher


@pytest.fixture
def plan():
    def _plan(model, *rules):
        patcher = BlockSparseModelPatcher()
        for pattern, options in rules:
            patcher.add_pattern(pattern, {"density": 0.5, "block": 16, **options})
        return {row.name: row for row in patcher.plan(model).modules}, patcher.plan(model)

    return _plan


def test_lists_every_linear_and_changes_nothing(make, plan):
    model = make("bert")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows, _ = plan(model, (r"encoder\..*", {}))
    assert set(rows) == {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not hasattr(model.config, "quantization_config")


def test_a_patched_row_counts_blocks_and_bytes(make, plan):
    rows, _ = plan(make("bert"), (r"encoder\..*\.intermediate\.dense", {"density": 0.25}))
    row = rows["encoder.layer.0.intermediate.dense"]
    assert (row.shape, row.block, row.blocks, row.grid_blocks, row.density) == ((128, 64), (16, 16), 8, 32, 0.25)
    assert row.bytes_before == 4 * (128 * 64 + 128)
    assert row.bytes_after == 4 * (8 * 16 * 16 + 128) + 4 * (8 + 1) + 4 * 8
    assert row.reason is None


def test_the_first_rule_that_matches_wins(make, plan):
    rows, report = plan(make("bert"), (r".*\.query", {"density": 0.25}), (r"encoder\..*", {}), (r".*\.key", {}))
    assert rows["encoder.layer.0.attention.self.query"].rule == 1
    assert rows["encoder.layer.0.attention.self.key"].rule == 2
    assert any("rule 3 '.*\\\\.key' matches only modules that earlier rules took" in text for text in report.warnings)


def test_no_rule(make, plan):
    rows, _ = plan(make("bert"), (r"encoder\..*", {}))
    assert rows["pooler.dense"].reason == "no rule matches"


def test_output_heads_are_skipped(make, plan):
    rows, _ = plan(make("bert", "ForSequenceClassification", num_labels=64), (".*", {}))
    assert rows["classifier"].reason == "output head, outside bert; force=True patches it"
    rows, _ = plan(make("llama", "ForCausalLM"), (".*", {}))
    assert rows["lm_head"].reason == "output head; force=True patches it"


def test_tied_weights_are_skipped(make, plan):
    rows, _ = plan(make("llama", "ForCausalLM", tie_word_embeddings=True), (".*", {}))
    assert rows["lm_head"].reason == "tied to model.embed_tokens.weight; force=True patches it"


def test_routers_are_skipped(plan):
    model = nn.ModuleDict({"gate": nn.Linear(64, 64), "gate_proj": nn.Linear(64, 64)})
    rows, _ = plan(model, (".*", {}))
    assert rows["gate"].reason == "router; force=True patches it"
    assert rows["gate_proj"].reason is None


def test_force_patches_what_is_skipped(make, plan):
    rows, _ = plan(make("llama", "ForCausalLM"), ("lm_head", {"force": True}))
    assert rows["lm_head"].reason is None


def test_fused_experts_are_listed_and_warned_of(make, plan):
    rows, report = plan(make("mixtral"), (".*", {}))
    row = rows["layers.0.mlp.experts.gate_up_proj"]
    assert (row.kind, row.shape) == ("experts", (4, 128, 64))
    assert row.reason == "fused 3-D experts, which bsparse does not serve yet"
    assert "4 stacks of fused experts, 384.00 KiB, stay dense" in " ".join(report.warnings)


def test_ragged_sizes_are_padded_and_say_what_it_costs(plan):
    model = nn.Sequential(nn.Linear(72, 100, bias=False))
    rows, report = plan(model, ("0", {"density": 1, "block": 64, "force": True}))
    padded, dense = 4 * 128 * 128, 4 * 100 * 72
    assert rows["0"].padding_bytes == padded - dense
    assert "35.88 KiB pad the edges" in str(report).replace("of which ", "")


def test_what_does_not_gain_is_skipped(plan):
    rows, _ = plan(nn.Sequential(nn.Linear(64, 64)), ("0", {"density": 1}))
    assert rows["0"].reason.startswith("no gain: 16 of 16 16x16 blocks take 16.33 KiB, dense takes 16.25 KiB")


def test_what_is_smaller_than_a_block_is_skipped(plan):
    rows, _ = plan(nn.Sequential(nn.Linear(64, 8)), ("0", {}))
    assert rows["0"].reason == "smaller than one 16x16 block: pass a smaller block, or force=True"


def test_an_all_zero_weight_is_skipped(plan):
    model = nn.Sequential(nn.Linear(64, 64))
    nn.init.zeros_(model[0].weight)
    rows, _ = plan(model, ("0", {"choose": "nonzero", "density": None}))
    assert rows["0"].reason.startswith("all of its weights are zero")


def test_subclasses_of_linear_are_skipped(plan):
    rows, _ = plan(nn.MultiheadAttention(64, 4), (".*", {}))
    assert rows["out_proj"].reason.startswith("NonDynamicallyQuantizableLinear, a subclass of Linear")


def test_conv1d_is_shown_as_out_by_in(make, plan):
    rows, _ = plan(make("gpt2"), (".*c_fc", {}))
    assert (rows["h.0.mlp.c_fc"].kind, rows["h.0.mlp.c_fc"].shape) == ("Conv1D", (256, 64))


def test_a_rule_that_matches_no_linear_says_so(make, plan):
    _, report = plan(make("bert"), (r"embeddings\.word_embeddings", {}))
    assert any("matches only modules that are not Linear: 1 Embedding" in text for text in report.warnings)


def test_near_misses_are_named(make, plan):
    _, report = plan(make("bert"), (r"layer\.0\.output\.dense", {}))
    assert any("it matches part of: encoder.layer.0.output.dense" in text for text in report.warnings)
    _, report = plan(make("bert"), (r"pooler\.dence", {}))
    assert any("near misses: pooler.dense" in text for text in report.warnings)


def test_prints_in_120_columns(make, plan):
    model = nn.ModuleDict({"a" * 90: nn.Linear(64, 64), "b": make("mixtral")})
    _, report = plan(model, (r".*_proj", {}), (".*", {}), ("nothing" * 30, {}))
    text = str(report)
    assert max(map(len, text.splitlines())) <= 120
    for word in ("q_proj", "skipped:", "64x64", "16x16", "8/16", "0.500", "rule 1: .*_proj", "9 of 13 modules"):
        assert word in text


def test_as_data(make, plan):
    _, report = plan(make("bert"), (r"encoder\..*", {}))
    data = json.loads(json.dumps(report.to_dict()))
    assert data["modules"][0]["name"] == "encoder.layer.0.attention.self.query"
    assert data["bytes_after"] < data["bytes_before"] < data["parameter_bytes"]
