"""Tiny random models of several families; no test here reaches the network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub when it is first imported

import pytest
import torch
import transformers

from bsparse_hf import BlockSparseModelPatcher

WORDS = 64
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
FAMILIES = {
    "bert": ("Bert", {**SIZES, "intermediate_size": 128}),
    "albert": ("Albert", {**SIZES, "intermediate_size": 128, "embedding_size": 32}),
    "llama": ("Llama", {**SIZES, "intermediate_size": 128, "num_key_value_heads": 2}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "mixtral": ("Mixtral", {**SIZES, "intermediate_size": 64, "num_key_value_heads": 2, "num_local_experts": 4}),
    "t5": ("T5", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}),
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture
def make():
    """make("bert", "ForSequenceClassification", num_labels=3): a tiny random model in evaluation mode."""

    def _make(family, head="Model", **changes):
        name, sizes = FAMILIES[family]
        config = getattr(transformers, f"{name}Config")(**{"vocab_size": WORDS, **SPECIAL, **sizes, **changes})
        torch.manual_seed(0)
        return getattr(transformers, name + head)(config).eval()

    return _make


@pytest.fixture
def patch():
    """patch(model, pattern, **options) -> report; by default, half of the 16x16 blocks of every Linear stay."""

    def _patch(model, pattern=".*", **options):
        patcher = BlockSparseModelPatcher()
        patcher.add_pattern(pattern, {"density": 0.5, "block": 16, **options})
        return patcher.patch_model(model)

    return _patch


@pytest.fixture
def tokens():
    """int64 [2, 9]."""
    return torch.randint(3, WORDS, (2, 9), generator=torch.Generator().manual_seed(1))
