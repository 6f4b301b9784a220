"""transformers' Trainer on a patched model: it learns, resumes, and what it saves loads."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

import bsparse_hf

LABELS = 2


class Parity(torch.utils.data.Dataset):
    """Six tokens, labelled by whether the first is an even number."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(3, 64, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens[0] % 2}


@pytest.fixture
def trainer(make, patch, tmp_path):
    """trainer(steps): a Trainer of a half-sparse classifier that saves every four steps."""

    def _trainer(steps, model=None, **arguments):
        if model is None:
            model = make("bert", "ForSequenceClassification", num_labels=LABELS)
            patch(model)
        common = {"learning_rate": 5e-3, "per_device_train_batch_size": 16, "save_steps": 4, "logging_steps": 1}
        quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
        settings = TrainingArguments(tmp_path, max_steps=steps, **{**common, **quiet, **arguments})
        return Trainer(model, settings, train_dataset=Parity())

    return _trainer


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_learns_within_its_pattern(trainer):
    run = trainer(40)
    layer = run.model.bert.encoder.layer[0].output.dense
    values, pattern = layer.values.detach().clone(), layer.pattern
    run.train()
    assert sum(losses(run)[-4:]) < 0.7 * sum(losses(run)[:4])
    assert layer.pattern == pattern
    assert not torch.equal(layer.values, values)


def test_what_it_saves_loads(trainer, tmp_path, tokens):
    run = trainer(4)
    run.train()
    run.save_model(tmp_path / "final")
    loaded = bsparse_hf.load(tmp_path / "final")
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, run.model.eval()(tokens).logits)


def test_resumes_where_it_stopped(trainer, tmp_path, caplog):
    whole = trainer(8)
    whole.train()
    again = trainer(8)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses(again)[-4:] == pytest.approx(losses(whole)[-4:], rel=1e-5)
    assert "missing keys" not in caplog.text


def test_a_loaded_model_trains_on(trainer, tmp_path):
    trainer(4).train()
    model = bsparse_hf.load(tmp_path / "checkpoint-4")
    run = trainer(4, model=model)
    run.train()
    assert len(losses(run)) == 4


@pytest.mark.parametrize("arguments", [{"gradient_checkpointing": True}, {"bf16": True}], ids=str)
def test_ways_of_training(trainer, arguments):
    run = trainer(20, **arguments)
    run.train()
    assert sum(losses(run)[-4:]) < sum(losses(run)[:4])
