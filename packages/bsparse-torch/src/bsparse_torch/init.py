"""First values of a layer, and the padding of its edge blocks."""

import torch
from torch import Tensor

from bsparse_torch import positions
from bsparse_torch.masks import check_generator, tile
from bsparse_torch.pattern import BlockPattern


def uniform(
    values: Tensor,
    bias: Tensor | None,
    pattern: BlockPattern,
    generator: torch.Generator | None,
    metadata: Tensor | None,
) -> None:
    """Draws values and bias as nn.Linear does, uniform within 1/sqrt(fan-in), in place; 2:4 metadata before them.

    Positions are drawn evenly and apart from the values: the largest of drawn weights would be no uniform ones.
    The fan-in is what the pattern leaves to each block row: Kaiming's rule with a = sqrt(5) (He et al., 2015,
    arXiv:1502.01852, section 2.2). A row without any block has a bias as if it read one input.
    """
    check_generator(generator)
    bounds = fan_in(pattern).clamp(min=1).rsqrt()  # float32 [R]
    with torch.no_grad():
        if metadata is not None:
            metadata.copy_(positions.draw(pattern, values.dtype, generator))
        scale = bounds[pattern.row_indices(), None, None] if pattern.format != "semi24" else bounds
        _draw(values, generator).mul_(scale.to(values.dtype))
        zero_padding(values, pattern, metadata)
        if bias is not None:
            by_row = bounds.repeat_interleave(pattern.block[0])[: pattern.rows]  # [out_features]
            _draw(bias, generator).mul_(by_row.to(bias.dtype))


def fan_in(pattern: BlockPattern) -> Tensor:
    """How many inputs each row of a block row reads: float32 [R]."""
    beyond = (pattern.col_indices + 1) * pattern.block[1] - pattern.cols  # int32 [blocks], positive in the last column
    widths = pattern.block[1] - beyond.clamp(min=0)
    counts = torch.zeros(pattern.grid[0], dtype=torch.float32, device=pattern.device)
    kept = 1.0 if pattern.format == "bsr" else 0.5
    return counts.index_add_(0, pattern.row_indices(), kept * widths.to(torch.float32))


def zero_padding(values: Tensor, pattern: BlockPattern, metadata: Tensor | None) -> None:
    """Zeroes, in place, what edge blocks store beyond the matrix."""
    if metadata is not None:
        if pattern.rows % pattern.block[0] or pattern.cols % pattern.block[1]:
            ones = torch.ones(pattern.shape, dtype=torch.uint8, device=values.device)
            inside = tile(ones, pattern.block)[pattern.row_indices(), pattern.col_indices]
            values.detach().masked_fill_(positions.compress(inside, pattern, metadata) == 0, 0)
        return
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
