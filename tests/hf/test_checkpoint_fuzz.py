"""Checkpoints changed at random: loaded whole, or refused by CheckpointError; nothing else."""

import copy
import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bsparse_hf
from bsparse_hf import BlockSparseConfig, CheckpointError

LAYER = "encoder.layer.0.output.dense"
ENTRY = {"format": "bsr", "block": [16, 16], "in_features": 128, "out_features": 64, "blocks": 16, "bias": True}
CONFIG = {"quant_method": "bsparse", "format_version": 1, "modules": {LAYER: ENTRY}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CHANGES = st.sampled_from([(), ("modules",), ("modules", LAYER)])
KEYS = st.sampled_from([*CONFIG, *ENTRY, LAYER, "other"])


@settings(max_examples=300, deadline=None)
@given(path=CHANGES, key=KEYS, value=JSON)
def test_any_config(path, key, value):
    config = copy.deepcopy(CONFIG)
    place = config
    for step in path:
        place = place[step]
    place[key] = value
    try:
        accepted = BlockSparseConfig.from_dict(config).to_dict()
    except CheckpointError:
        return
    assert json.loads(json.dumps(accepted)) == config


@pytest.fixture
def file(make, patch, tmp_path):
    """A checkpoint's tensors, whose bytes are then changed."""
    model = make("bert", num_hidden_layers=1)
    patch(model, LAYER)
    model.save_pretrained(tmp_path)
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "whole")
    return tmp_path / "model.safetensors"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_file(file, tokens, data):
    whole = bytearray((file.parent / "whole").read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    start = data.draw(st.sampled_from([0, 8, header, whole.index(b"col_indices"), len(whole) - 4096]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[start + data.draw(st.integers(0, 4000)) % (len(whole) - start)] = data.draw(st.integers(0, 255))
    file.write_bytes(whole[: data.draw(st.sampled_from([len(whole)] * 4 + [len(whole) - 1, header, 5, 0]))])
    try:
        model = bsparse_hf.load(file.parent)
    except CheckpointError:
        return
    with torch.no_grad():
        assert model(tokens).last_hidden_state.shape == (2, 9, 64)
