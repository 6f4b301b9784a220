"""What BlockSparseLinear.from_linear keeps of a dense weight."""

from typing import Any

import torch
from torch import Tensor

from bsparse_core import InvalidArgument
from bsparse_torch import masks, positions
from bsparse_torch.pattern import BlockPattern, check_semi24


def choose(
    weight: Tensor, density: float | None, block: Any, choose: str, mask: Any, format: str
) -> tuple[BlockPattern, Tensor | None, Tensor]:
    """The pattern, the metadata of a 2:4 format, and what to pack: [out_features, in_features].

    See BlockSparseLinear.from_linear for the arguments and errors.
    """
    shape = weight.shape[0], weight.shape[1]
    if mask is not None and (density is not None or choose != "magnitude"):
        raise InvalidArgument(f"mask is given beside density = {density} and choose = {choose!r}: pass only one")
    if format == "bsr":
        pair = masks.block_pair(block)
        mask = masks.choose_blocks(weight, pair, density, choose) if mask is None else mask
        return BlockPattern.from_mask(mask, pair, shape, weight.device), None, weight
    if choose not in masks.CHOICES:
        raise InvalidArgument(f"choose is {choose!r}; it must be one of {', '.join(masks.CHOICES)}")
    pair = shape if format == "semi24" else masks.block_pair(block)
    positions.shapes(format, shape, 0, pair)  # for its check of the width: groups lie inside
    numbers = _numbers(weight, mask, choose, None if format == "semi24" else masks.block_grid(shape, pair))
    if format == "semi24":
        check_semi24(shape, density, block)
        pattern = BlockPattern.semi24(shape, weight.device)
    else:
        blocks = _blocks(weight, density, pair, mask, numbers)
        pattern = BlockPattern.from_mask(blocks, pair, shape, weight.device, format)
    if numbers is None:
        return pattern, positions.of_largest(weight, pattern), weight
    return pattern, positions.of_mask(numbers, pattern), torch.where(numbers, weight, 0)


def _numbers(weight: Tensor, mask: Any, choose: str, grid: tuple[int, int] | None) -> Tensor | None:
    """Which numbers to keep, bool [out_features, in_features]; None: the largest. grid: None for semi24."""
    if mask is None:
        return weight != 0 if choose == "nonzero" else None
    given = masks.as_mask(mask)
    if given.shape == weight.shape:
        return given.to(weight.device)
    if given.shape == grid:
        return None
    blocks = "" if grid is None else f", or {list(grid)}, one entry a block"
    raise InvalidArgument(
        f"mask has shape {list(given.shape)}; it must be {list(weight.shape)}, one entry a number{blocks}"
    )


def _blocks(weight: Tensor, density: float | None, block: tuple[int, int], mask: Any, numbers: Tensor | None) -> Tensor:
    """Bool [block rows, block columns]: the mask given, what holds a number to keep, or those of largest norm."""
    if numbers is not None:
        if density is not None:
            raise InvalidArgument(f'density is {density}; choose="nonzero" derives it from the weight: leave it out')
        return masks.tile(numbers, block).flatten(2).any(2)
    if mask is not None:
        return masks.as_mask(mask)
    return masks.choose_blocks(torch.where(positions.largest(weight), weight, 0), block, density)
