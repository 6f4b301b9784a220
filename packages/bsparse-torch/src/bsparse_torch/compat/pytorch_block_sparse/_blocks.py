"""What the compat modules share: masks from places of blocks, and a layer made of given values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bsparse_torch import BlockPattern, BlockSparseLinear

__all__ = ["Places", "block_mask", "layer_of"]

Places = Sequence[tuple[int, int]] | Tensor  # (block row, block column) of some blocks


def block_mask(grid: torch.Size, n_blocks: int | None, blocks: Places | None) -> Tensor:
    """bool [block rows, block columns], True at `blocks`, or at `n_blocks` random places, or at all."""
    mask = torch.zeros(grid, dtype=torch.bool)
    if blocks is None:
        count = mask.numel() if n_blocks is None else n_blocks
        if not 0 <= count <= mask.numel():
            raise ValueError(f"n_blocks is {count}; it must be in [0, {mask.numel()}], the blocks of the matrix")
        mask.view(-1)[torch.randperm(mask.numel())[:count]] = True
        return mask
    places = torch.as_tensor(blocks, dtype=torch.long).cpu().reshape(-1, 2)  # [blocks, 2]
    if n_blocks not in (None, len(places)):
        raise ValueError(f"n_blocks is {n_blocks} but blocks names {len(places)}; pass only one of the two")
    for row, col in places.tolist():
        if not (0 <= row < grid[0] and 0 <= col < grid[1]):
            raise ValueError(f"blocks names ({row}, {col}); it must be below {tuple(grid)}: (block row, block column)")
        if mask[row, col]:
            raise ValueError(f"blocks names ({row}, {col}) twice; name each block once")
        mask[row, col] = True
    return mask


def layer_of(values: Tensor, pattern: BlockPattern) -> BlockSparseLinear:
    """A layer without bias over a copy of `values` [blocks, block_rows, block_cols]."""
    layer = BlockSparseLinear.empty(
        pattern.cols, pattern.rows, 0, pattern.block, bias=False, device="meta", dtype=values.dtype
    )
    layer.values = nn.Parameter(values.detach().clone(memory_format=torch.contiguous_format))
    pattern = pattern.to(values.device)
    layer.row_offsets, layer.col_indices = pattern.row_offsets, pattern.col_indices
    return layer
