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
    """The pattern, the metadata of a 2:4 format, and the weight [out_features, in_features] with zeros at the rest.

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
    if format == "semi24":
        check_semi24(shape, density, block)
        pattern, kept = BlockPattern.semi24(shape, weight.device), _elements(weight, mask, choose, None)
    else:
        pattern, kept = _bsr24(weight, density, masks.block_pair(block), choose, mask)
    return pattern, positions.of_mask(kept, pattern), torch.where(kept, weight, 0)


def _bsr24(
    weight: Tensor, density: float | None, block: tuple[int, int], choose: str, mask: Any
) -> tuple[BlockPattern, Tensor]:
    """The pattern and what it keeps: bool [out_features, in_features]."""
    shape = weight.shape[0], weight.shape[1]
    positions.shapes("bsr24", shape, 0, block)  # for its check of block_cols: a group lies in one block
    grid = masks.block_grid(shape, block)
    kept = _elements(weight, mask, choose, grid)
    if mask is not None and masks.as_mask(mask).shape == grid:
        blocks = masks.as_mask(mask)
    elif mask is not None or choose == "nonzero":
        blocks = masks.tile(kept, block).flatten(2).any(2)  # [R, C]
        if choose == "nonzero" and density is not None:
            raise InvalidArgument(f'density is {density}; choose="nonzero" derives it from the weight: leave it out')
    else:
        blocks = masks.choose_blocks(torch.where(kept, weight, 0), block, density)
    return BlockPattern.from_mask(blocks, block, shape, weight.device, "bsr24"), kept


def _elements(weight: Tensor, mask: Any, choose: str, grid: tuple[int, int] | None) -> Tensor:
    """Which numbers to keep, bool [out_features, in_features]: as a mask of them says, all that are not 0, or the
    largest, whatever the blocks."""
    if mask is not None:
        given = masks.as_mask(mask)
        if given.shape == weight.shape:
            return given.to(weight.device)
        if given.shape != grid:
            blocks = "" if grid is None else f", or {list(grid)}, one entry a block"
            raise InvalidArgument(
                f"mask has shape {list(given.shape)}; it must be {list(weight.shape)}, one entry a number{blocks}"
            )
    return weight != 0 if choose == "nonzero" else positions.largest(weight, weight.dtype)
