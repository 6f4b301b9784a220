"""What the compat modules share: places of blocks, checked, and a layer made of given values."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bsparse_torch import BlockPattern, BlockSparseLinear

__all__ = ["Places", "block_mask", "check_replacements", "layer_of"]

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


def check_replacements(replacements: Tensor, pattern: BlockPattern) -> Tensor:
    """`replacements` [any, 3] as int64 on the pattern's device: block row, block column, number of the block to move.

    Raises ValueError unless each moves another block to a place of its own that is empty.
    """
    if replacements.dim() != 2 or replacements.shape[1] != 3 or replacements.is_floating_point():
        raise ValueError(
            f"block_replacements is {replacements.dtype} {list(replacements.shape)}; "
            "it must be integers [any, 3]: block row, block column, number of the block"
        )
    rows = replacements.to(pattern.device, torch.long)
    limits = (*pattern.grid, pattern.blocks)
    for column, (name, limit) in enumerate(zip(("block row", "block column", "block number"), limits, strict=True)):
        outside = rows[(rows[:, column] < 0) | (rows[:, column] >= limit), column]
        if len(outside):
            raise ValueError(f"block_replacements has {name} {int(outside[0])}; it must be in [0, {limit})")
    if len(set(rows[:, 2].tolist())) < len(rows):
        raise ValueError("block_replacements moves a block twice; name each block number once")
    taken = pattern.mask()
    for row, col, _ in rows.tolist():
        if taken[row, col]:
            raise ValueError(
                f"block_replacements moves a block to ({row}, {col}), which has one; "
                "choose each place once, where block_mask_build() is False"
            )
        taken[row, col] = True
    return rows


def layer_of(values: Tensor, pattern: BlockPattern) -> BlockSparseLinear:
    """A layer without bias over a copy of `values` [blocks, block_rows, block_cols]."""
    layer = BlockSparseLinear.empty(
        pattern.cols, pattern.rows, 0, pattern.block, bias=False, device="meta", dtype=values.dtype
    )
    layer.values = nn.Parameter(values.detach().clone(memory_format=torch.contiguous_format))
    pattern = pattern.to(values.device)
    layer.row_offsets, layer.col_indices = pattern.row_offsets, pattern.col_indices
    return layer
