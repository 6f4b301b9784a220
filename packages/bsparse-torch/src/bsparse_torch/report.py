"""What a layer costs and which kernels serve it."""

from typing import Any

import torch
from torch import Tensor

from bsparse_core import BsparseError
from bsparse_torch.pattern import BlockPattern

WORTHWHILE = 1.05  # a predicted gain over dense below this is not worth a block-sparse layer


def report(
    values: Tensor, bias: Tensor | None, pattern: BlockPattern, tokens: int, activation: str | None
) -> dict[str, Any]:
    """See BlockSparseLinear.report."""
    element = values.element_size()
    shared = 0 if bias is None else bias.numel() * bias.element_size()
    bias_dtype = None if bias is None else bias.dtype
    indices = 4 * (pattern.grid[0] + 1 + pattern.blocks)
    return {
        "format": pattern.format,
        "block": pattern.block,
        "blocks": pattern.blocks,
        "density": pattern.density,
        "dtype": str(values.dtype).removeprefix("torch."),
        "device": str(values.device),
        "activation": activation,
        "kernels": {
            "forward": _kernel("spmm", values, pattern, tokens, activation or "none", bias_dtype),
            "grad_input": _kernel("spmm_t", values, pattern, tokens),
            "grad_weight": _kernel("sddmm", values, pattern, tokens),
        },
        "bytes": {
            "dense": pattern.rows * pattern.cols * element + shared,
            "sparse": values.numel() * element + indices + shared,
        },
        "dense_path": False,
        "dense_path_reason": _reason(pattern),
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


def _reason(pattern: BlockPattern) -> str:
    """Why a dense product is not used, and whether it would be about as fast."""
    reason = "this version multiplies the stored blocks always"
    work = pattern.blocks * pattern.block[0] * pattern.block[1]  # multiplications a token, padding included
    gain = pattern.rows * pattern.cols / max(work, 1)
    if gain < WORTHWHILE:
        reason += f"; the predicted gain over dense is {gain:.2f}x, below {WORTHWHILE}x: nn.Linear would serve as well"
    return reason
