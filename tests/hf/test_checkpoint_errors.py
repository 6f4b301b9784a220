"""Damaged, edited and foreign checkpoints: each refused before anything runs, in a sentence that says what is wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertForSequenceClassification

import bsparse_hf
from bsparse_hf import BlockSparseConfig, CheckpointError

LAYER = "encoder.layer.0.output.dense"
ENTRY = {"format": "bsr", "block": [16, 16], "in_features": 128, "out_features": 64, "blocks": 16, "bias": True}


@pytest.fixture
def folder(make, patch, tmp_path):
    """A checkpoint with one block-sparse layer: 4 x 8 blocks of 16x16, half of them stored."""
    model = make("bert")
    patch(model, LAYER)
    model.save_pretrained(tmp_path)
    return tmp_path


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder, edit):
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


def both_refuse(folder, words):
    """`load` and AutoModel alike."""
    for load in (bsparse_hf.load, AutoModel.from_pretrained):
        with pytest.raises(CheckpointError, match=words):
            load(folder)


def test_a_truncated_file(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    both_refuse(folder, r"model\.safetensors is truncated or not a safetensors file \(.*\): save or download")


def test_a_truncated_shard(make, patch, tmp_path):
    model = make("bert")
    patch(model, LAYER)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-1])
    both_refuse(tmp_path, f"{shard.name} is truncated")


def test_a_missing_shard(make, patch, tmp_path):
    model = make("bert")
    patch(model, LAYER)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[2]
    shard.unlink()
    both_refuse(tmp_path, f"{shard.name} is missing or cannot be read .*: save or download")


@pytest.mark.parametrize(
    ("tensor", "position", "value", "words"),
    [
        ("col_indices", 3, 8, r"col_indices.*8"),
        ("col_indices", 3, -1, r"col_indices.*-1"),
        ("col_indices", 1, 0, r"col_indices"),
        ("row_offsets", 1, 17, r"row_offsets"),
        ("row_offsets", 0, 1, r"row_offsets"),
        ("row_offsets", 4, 15, r"row_offsets"),
        ("row_offsets", 2, -(2**31), r"row_offsets"),
    ],
)
def test_an_edited_index(folder, tensor, position, value, words):
    def edit(tensors):
        tensors[f"{LAYER}.{tensor}"][position] = value

    edit_tensors(folder, edit)
    both_refuse(folder, rf"model\.safetensors: {LAYER}: .*{words}.*; save or download the checkpoint again")


@pytest.mark.parametrize("tensor", ["values", "row_offsets", "col_indices", "bias"])
def test_a_missing_tensor(folder, tensor):
    edit_tensors(folder, lambda tensors: tensors.pop(f"{LAYER}.{tensor}"))
    both_refuse(folder, f"tensor {LAYER}.{tensor} is missing: save or download")


@pytest.mark.parametrize("tensor", ["values", "row_offsets", "col_indices", "bias"])
def test_a_wrong_shape(folder, tensor):
    def edit(tensors):
        tensors[f"{LAYER}.{tensor}"] = tensors[f"{LAYER}.{tensor}"][1:].clone()

    edit_tensors(folder, edit)
    both_refuse(folder, rf"model\.safetensors: tensor {LAYER}.{tensor} has shape \[.*; the config makes it \[")


def test_a_wrong_shape_elsewhere(folder):
    def edit(tensors):
        tensors["pooler.dense.weight"] = tensors["pooler.dense.weight"][1:].clone()

    edit_tensors(folder, edit)
    both_refuse(folder, r"tensor pooler.dense.weight has shape \[63, 64\]; the config makes it \[64, 64\]")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_indices_of_another_dtype(folder, dtype):
    def edit(tensors):
        tensors[f"{LAYER}.col_indices"] = tensors[f"{LAYER}.col_indices"].to(dtype)

    edit_tensors(folder, edit)
    both_refuse(folder, rf"tensor {LAYER}.col_indices has dtype .*; it must be I32")


def test_integer_values(folder):
    def edit(tensors):
        tensors[f"{LAYER}.values"] = tensors[f"{LAYER}.values"].to(torch.int32)

    edit_tensors(folder, edit)
    both_refuse(folder, rf"tensor {LAYER}.values has dtype I32; it must be F32 or F16 or BF16 or F64")


def test_load_refuses_missing_and_unexpected_tensors_elsewhere(folder):
    edit_tensors(folder, lambda tensors: tensors.pop("pooler.dense.bias"))
    with pytest.raises(CheckpointError, match="missing keys for BertModel: pooler.dense.bias"):
        bsparse_hf.load(folder)
    edit_tensors(folder, lambda tensors: tensors.update({"pooler.dense.bias": torch.zeros(64), "more": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match="unexpected keys for BertModel: more"):
        bsparse_hf.load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quant_method": "bsparse2"}, "quant_method 'bsparse2', not 'bsparse'"),
        ({"format_version": 2}, "format_version is 2; this bsparse-hf reads 1: install"),
        ({"format_version": True}, "format_version is True"),
        ({"compression": "zip"}, "the unknown key 'compression'; the keys of format version 1 are"),
        ({"fuse_activations": "no"}, "fuse_activations is 'no'; it must be true or false"),
        ({"modules": []}, r"modules is \[\]; it must map"),
        ({"modules": {LAYER: 3}}, rf"modules\['{LAYER}'\] is 3; it must be an object"),
        ({"modules": {LAYER: {**ENTRY, "format": "os.system"}}}, "format is 'os.system'; it must be"),
        ({"modules": {LAYER: {**ENTRY, "format": "semi24"}}}, "semi24 is not served"),
        ({"modules": {LAYER: {**ENTRY, "scale": 1}}}, "has the unknown key 'scale'"),
        ({"modules": {LAYER: {k: v for k, v in ENTRY.items() if k != "bias"}}}, "lacks the key 'bias'"),
        ({"modules": {LAYER: {**ENTRY, "block": 16}}}, r"block is 16; it must be \[rows, columns\]"),
        ({"modules": {LAYER: {**ENTRY, "block": [16, 0]}}}, r"block is \[16, 0\]"),
        ({"modules": {LAYER: {**ENTRY, "block": [16, 2**31]}}}, r"block is \[16, 2147483648\]; .*, 2147483647 at most"),
        ({"modules": {LAYER: {**ENTRY, "block": [2**31 - 1, 2**31 - 1], "blocks": 1}}}, "blocks is 1; .*in no memory"),
        ({"modules": {LAYER: {**ENTRY, "in_features": 2**63}}}, "in_features is 9223372036854775808; it must be"),
        ({"modules": {LAYER: {**ENTRY, "blocks": 33}}}, "blocks is 33; a 16x16 grid has 1 to 32"),
        ({"modules": {LAYER: {**ENTRY, "blocks": 1.5}}}, "blocks is 1.5"),
        ({"modules": {LAYER: {**ENTRY, "bias": 1}}}, "bias is 1; it must be true or false"),
        ({"modules": {LAYER: {**ENTRY, "in_features": "128"}}}, "in_features is '128'; it must be a positive int"),
        ({"modules": {LAYER: {**ENTRY, "in_features": 112}}}, "in_features is 112; in BertModel it is 128"),
        ({"modules": {LAYER: {**ENTRY, "bias": False}}}, "bias is False; in BertModel it is True"),
        ({"modules": {"encoder.layer.9.dense": ENTRY}}, "names 'encoder.layer.9.dense', which BertModel does not have"),
        ({"modules": {"": ENTRY}}, r"modules\[''\] is a BertModel in BertModel; it must be a Linear"),
        ({"modules": {"embeddings.LayerNorm": ENTRY}}, "is a LayerNorm in BertModel; it must be a Linear"),
    ],
    ids=str,
)
def test_an_edited_config(folder, change, words):
    edit_config(folder, lambda config: config["quantization_config"].update(change))
    with pytest.raises(CheckpointError, match=words):
        bsparse_hf.load(folder)


def test_a_config_without_modules(folder):
    edit_config(folder, lambda config: config["quantization_config"].pop("modules"))
    with pytest.raises(CheckpointError, match="quantization_config.modules is None; it must map"):
        bsparse_hf.load(folder)


def test_counts_that_disagree_with_the_file(folder):
    edit_config(folder, lambda config: config["quantization_config"]["modules"][LAYER].update(blocks=15))
    both_refuse(folder, rf"tensor {LAYER}.values has shape \[16, 16, 16\]; the config makes it \[15, 16, 16\]")


def test_a_layer_that_the_config_forgot(folder):
    edit_config(folder, lambda config: config["quantization_config"]["modules"].clear())
    both_refuse(folder, f"holds 1 block-sparse layers, .* config.json names 0; the first in the file is {LAYER}")


def test_a_dense_checkpoint(make, tmp_path):
    make("bert").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="it is no block-sparse checkpoint; load it by AutoModel.from_pretrained"):
        bsparse_hf.load(tmp_path)


@pytest.mark.parametrize(
    "names", [None, [], ["os"], ["PreTrainedConfig"], ["PreTrainedModel"], ["NoSuchModel"], "BertModel"]
)
def test_unknown_architectures(folder, names):
    edit_config(folder, lambda config: config.update(architectures=names))
    with pytest.raises(CheckpointError, match="config.json has architectures .*, which transformers does not export"):
        bsparse_hf.load(folder)


def test_no_folder(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        bsparse_hf.load(tmp_path / "nowhere")


def test_a_tied_layer(make, patch, tmp_path):
    model = make("llama", "ForCausalLM", tie_word_embeddings=True)
    patch(model, "lm_head", force=True)
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, lambda config: config.update(tie_word_embeddings=True))
    with pytest.raises(
        CheckpointError, match="'lm_head'.* is tied in LlamaForCausalLM: set tie_word_embeddings to false"
    ):
        bsparse_hf.load(tmp_path)


def test_a_pickle_in_the_folder_is_not_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pytorch_model.bin is not a safetensors file"):
        AutoModel.from_pretrained(folder)
    with pytest.raises(OSError, match="model.safetensors"):
        bsparse_hf.load(folder)


def test_a_model_of_other_sizes(folder):
    with pytest.raises(CheckpointError, match="in_features is 128; in BertForSequenceClassification it is 256"):
        BertForSequenceClassification.from_pretrained(folder, intermediate_size=256)


def test_a_dense_checkpoint_is_not_patched_while_loading(make, tmp_path):
    make("bert").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a dense checkpoint is not patched while it loads"):
        AutoModel.from_pretrained(tmp_path, quantization_config=BlockSparseConfig(modules={}))
