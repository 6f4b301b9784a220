"""MiniLM with a linear head that tells praise from blame, and what of it becomes block-sparse."""

import json
from pathlib import Path

from torch import nn
from transformers import BertForSequenceClassification, PreTrainedModel
from transformers.utils import logging

import bsparse_hf
from bsparse_hf import BlockSparseModelPatcher, PatchReport
from bsparse_torch import BlockSparseLinear

EMBEDDINGS = "bert.embeddings"
ENCODER = "bert.encoder."
ENCODER_LINEARS = r"bert\.encoder\.layer\.\d+\..*"  # 6 layers x (query, key, value, attention output, two of the MLP)


def quiet() -> None:
    """No word from transformers about weights that it loads or, for the new head, draws."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def load_pretrained(folder: Path, dropout: float = 0.0) -> BertForSequenceClassification:
    """The pretrained encoder in float32 under a new head with two outputs."""
    model = BertForSequenceClassification.from_pretrained(
        folder, num_labels=2, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, dtype="float32"
    )
    assert isinstance(model, BertForSequenceClassification)
    return model


def load_saved(folder: Path) -> PreTrainedModel:
    """A dense or block-sparse classifier that save_pretrained wrote."""
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        return bsparse_hf.load(folder)
    model = BertForSequenceClassification.from_pretrained(folder)
    assert isinstance(model, PreTrainedModel)
    return model


def encoder_linears(model: nn.Module) -> list[nn.Linear]:
    """The 36 dense layers of the encoder."""
    return [
        module for name, module in model.named_modules() if name.startswith(ENCODER) and isinstance(module, nn.Linear)
    ]


def sparse_layers(model: nn.Module) -> list[BlockSparseLinear]:
    """The block-sparse layers of a patched model."""
    return [module for module in model.modules() if isinstance(module, BlockSparseLinear)]


def make_sparse(model: nn.Module, block: tuple[int, int], density: float | None = None) -> PatchReport:
    """Patches the encoder in place: its blocks of largest norm, or without a density its blocks that are not zero."""
    patcher = BlockSparseModelPatcher()
    choose = "nonzero" if density is None else "magnitude"
    patcher.add_pattern(ENCODER_LINEARS, density=density, block=block, choose=choose)
    return patcher.patch_model(model)
