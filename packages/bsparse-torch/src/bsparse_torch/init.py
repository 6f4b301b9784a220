"""First values of a layer, and the padding of its edge blocks."""

import torch
from torch import Tensor

from bsparse_torch.masks import check_generator
from bsparse_torch.pattern import BlockPattern


def uniform(values: Tensor, bias: Tensor | None, pattern: BlockPattern, generator: torch.Generator | None) -> None:
    """Draws values and bias as nn.Linear does, uniform within 1/sqrt(fan-in), in place.

    The fan-in is what the pattern leaves to each block row: Kaiming's rule with a = sqrt(5) (He et al., 2015,
    arXiv:1502.01852, section 2.2). A row without any block has a bias as if it read one input.
    """
    check_generator(generator)
    bounds = fan_in(pattern).clamp(min=1).rsqrt()  # float32 [R]
    with torch.no_grad():
        _draw(values, generator).mul_(bounds[pattern.row_indices(), None, None].to(values.dtype))
        zero_padding(values, pattern)
        if bias is not None:
            by_row = bounds.repeat_interleave(pattern.block[0])[: pattern.rows]  # [out_features]
            _draw(bias, generator).mul_(by_row.to(bias.dtype))


def fan_in(pattern: BlockPattern) -> Tensor:
    """How many inputs each block row reads: float32 [R]."""
    beyond = (pattern.col_indices + 1) * pattern.block[1] - pattern.cols  # int32 [blocks], positive in the last column
    widths = pattern.block[1] - beyond.clamp(min=0)
    counts = torch.zeros(pattern.grid[0], dtype=torch.float32, device=pattern.device)
    return counts.index_add_(0, pattern.row_indices(), widths.to(torch.float32))


def zero_padding(values: Tensor, pattern: BlockPattern) -> None:
    """Zeroes, in place, what edge blocks store beyond the matrix."""
    for size, step, dimension, indices in (
        (pattern.rows, pattern.block[0], 1, pattern.row_indices()),
        (pattern.cols, pattern.block[1], 2, pattern.col_indices),
    ):
        used = (size - 1) % step + 1
        edge = (indices == (size - 1) // step).nonzero().flatten()
        values.detach().narrow(dimension, used, step - used).index_fill_(0, edge, 0)


def _draw(tensor: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform in [-1, 1), in place; drawn on the generator's device."""
    if generator is None or generator.device == tensor.device:
        return tensor.uniform_(-1, 1, generator=generator)
    return tensor.copy_(torch.empty(tensor.shape, device=generator.device).uniform_(-1, 1, generator=generator))
