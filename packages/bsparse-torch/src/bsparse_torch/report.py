"""What a layer costs and which kernels serve it."""

import math
from typing import Any

import torch
from torch import Tensor

from bsparse_core import BsparseError
from bsparse_torch.gain import WORTHWHILE, dense_from, predicted_gain
from bsparse_torch.pattern import BlockPattern

DENSE = "torch.nn.functional.linear, of the unpacked values"


def report(
    values: Tensor, bias: Tensor | None, pattern: BlockPattern, tokens: int, activation: str | None, backend: str
) -> dict[str, Any]:
    """See BlockSparseLinear.report."""
    element = values.element_size()
    shared = 0 if bias is None else bias.numel() * bias.element_size()
    bias_dtype = None if bias is None else bias.dtype
    indices = 4 * (pattern.grid[0] + 1 + pattern.blocks)
    metadata = 0 if pattern.metadata_shape is None else math.prod(pattern.metadata_shape)
    gain = predicted_gain(pattern, tokens, values.dtype, values.device)
    dense = backend == "dense" or (backend == "auto" and tokens >= dense_from(pattern, values.dtype, values.device))
    return {
        "format": pattern.format,
        "block": pattern.block,
        "blocks": pattern.blocks,
        "density": pattern.density,
        "dtype": str(values.dtype).removeprefix("torch."),
        "device": str(values.device),
        "activation": activation,
        "kernels": {
            "forward": DENSE if dense else _kernel("spmm", values, pattern, tokens, activation or "none", bias_dtype),
            "grad_input": DENSE if dense else _kernel("spmm_t", values, pattern, tokens),
            "grad_weight": DENSE if dense else _kernel("sddmm", values, pattern, tokens),
        },
        "bytes": {
            "dense": pattern.rows * pattern.cols * element + shared,
            "sparse": values.numel() * element + metadata + indices + shared,
        },
        "backend": backend,
        "predicted_gain": gain,
        "dense_path": dense,
        "dense_path_reason": _reason(backend, dense, gain, tokens),
    }


def _kernel(
    op: str,
    values: Tensor,
    pattern: BlockPattern,
    tokens: int,
    epilogue: str = "none",
    bias_dtype: torch.dtype | None = None,
) -> str:
    """The kernel's name, or the sentence that says why there is none."""
    if values.device.type not in ("cpu", "cuda"):
        return f"none: no kernel runs on device {values.device}"
    try:
        return pattern.host.plan(op, values.dtype, values.device, epilogue, bias_dtype).plan.kernel(tokens)
    except BsparseError as error:
        return f"none: {error}"


def _reason(backend: str, dense: bool, gain: float, tokens: int) -> str:
    """Why a dense product is used or not, and whether it would be about as fast."""
    predicted = f"the predicted gain over dense is {gain:.2f}x with {tokens} tokens"
    if backend == "dense":
        return f'backend is "dense"; {predicted}'
    if dense:
        return f'backend is "auto", and {predicted}: the dense product is used, of the same values'
    if gain < WORTHWHILE:
        return f'backend is "{backend}"; {predicted}, below {WORTHWHILE}x: nn.Linear would serve as well'
    return f'backend is "{backend}"; {predicted}'
