"""`load`: a block-sparse checkpoint, whole or not at all."""

import os
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from bsparse_hf import _transformers as hf
from bsparse_hf.config import METHOD, CheckpointError

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")


def load(path: str | os.PathLike[str], *, dtype: torch.dtype | str = "auto", **kwargs: Any) -> PreTrainedModel:
    """The model that `save_pretrained` wrote, as the class that wrote it.

    path: a folder, or a name on the hub.
    dtype: of values and parameters; "auto" is as saved. Indices stay int32.
    kwargs: as in `PreTrainedModel.from_pretrained`: device_map, attn_implementation, revision, ...

    This is the way to load: `AutoModel.from_pretrained` gives the same only after `import bsparse_hf`, and without it
    returns randomly initialised layers. Raises CheckpointError when the checkpoint is not a block-sparse one, lacks a
    tensor, holds one too many, or is damaged; the message names file, tensor or field.
    """
    folder = os.fspath(path)
    config = hf.saved_config(folder, **{key: kwargs[key] for key in HUB_OPTIONS if key in kwargs})
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict) or quantization.get("quant_method") != METHOD:
        found = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise CheckpointError(
            f"{folder}: config.json has quantization_config.quant_method {found!r}, not {METHOD!r}: "
            "it is no block-sparse checkpoint; load it by AutoModel.from_pretrained"
        )
    names = config.get("architectures") or [None]
    model_class = hf.architecture(str(names[0]))
    if model_class is None:
        raise CheckpointError(
            f"{folder}: config.json has architectures {config.get('architectures')!r}, which transformers does not "
            "export: load it by its own class's from_pretrained"
        )
    options: dict[str, Any] = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True, **kwargs}
    model, loading = cast(tuple[PreTrainedModel, dict[str, Any]], model_class.from_pretrained(folder, **options))
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if loading[key]:
            tensors = ", ".join(sorted(map(str, loading[key]))[:5])
            raise CheckpointError(f"{folder}: {key.replace('_', ' ')} for {names[0]}: {tensors}")
    return model
