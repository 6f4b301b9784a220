"""Block masks: bool [block rows, block columns], True where a block is stored; on the CPU unless said otherwise."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bsparse_core import InvalidArgument

CHOICES = ("magnitude", "nonzero")


def block_pair(block: Any) -> tuple[int, int]:
    """An int or a pair as (block_rows, block_cols), along out_features and in_features."""
    pair = (block, block) if isinstance(block, int) else block
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
        raise InvalidArgument(f"block is {block!r}; it must be a positive int or two of them: pass 64 or (128, 32)")
    return pair[0], pair[1]


def block_grid(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """Block rows and block columns of a matrix; edge blocks count whole."""
    for name, size in zip(("out_features", "in_features"), shape, strict=True):
        if type(size) is not int or size < 1:
            raise InvalidArgument(f"{name} is {size!r}; it must be a positive int")
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def check_density(density: Any) -> None:
    """Raises InvalidArgument unless density is a number in (0, 1]."""
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
        raise InvalidArgument(
            f"density is {density!r}; it must be in (0, 1]: pass 0.25 to keep a quarter of the blocks"
        )


def count_blocks(density: float, total: int) -> int:
    """round(density * total), halves up, at least 1. Raises as check_density does."""
    check_density(density)
    return max(1, math.floor(density * total + 0.5))


def check_generator(generator: Any) -> None:
    """Raises InvalidArgument unless generator is a torch.Generator or None."""
    if not isinstance(generator, (torch.Generator, type(None))):
        raise InvalidArgument(
            f"generator is {generator!r}; it must be a torch.Generator or None: pass torch.Generator().manual_seed(3)"
        )


def as_mask(mask: Any) -> Tensor:
    """A block mask, given as a tensor, a NumPy array or nested lists, as a bool tensor [block rows, block columns]."""
    try:
        tensor = mask if isinstance(mask, Tensor) else torch.as_tensor(mask, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgument(f"mask is a {type(mask).__name__}; it must be a 2-D bool tensor") from None
    if tensor.dtype is not torch.bool or tensor.dim() != 2:
        raise InvalidArgument(
            f"mask is {tensor.dtype} with shape {list(tensor.shape)}; it must be bool [block rows, block columns], "
            "one entry a block: pass mask.bool()"
        )
    return tensor


def random(
    row_blocks: int, col_blocks: int, density: float = 0.5, *, generator: torch.Generator | None = None
) -> Tensor:
    """Blocks drawn evenly over the whole matrix: round(density * all) of them, at least one."""
    kept = count_blocks(density, row_blocks * col_blocks)
    mask = torch.zeros(row_blocks * col_blocks, dtype=torch.bool, device="cpu")
    mask[_permutation(row_blocks * col_blocks, generator)[:kept]] = True
    return mask.view(row_blocks, col_blocks)  # [R, C]


def balanced(
    row_blocks: int, col_blocks: int, density: float = 0.5, *, generator: torch.Generator | None = None
) -> Tensor:
    """The same number of blocks in every block row: round(density * col_blocks), at least one.

    Columns differ by at most one block, so every column is covered where the count allows.
    """
    mask = torch.zeros(row_blocks, col_blocks, dtype=torch.bool, device="cpu")
    hands = _deal(row_blocks, col_blocks, count_blocks(density, col_blocks), generator)
    for row, columns in enumerate(hands):
        mask[row, columns] = True
    return mask  # [R, C]


def choose_blocks(weight: Tensor, block: Any, density: float | None = 0.5, choose: str = "magnitude") -> Tensor:
    """Which blocks of a dense weight [out_features, in_features] to keep, on the weight's device.

    Args:
        choose: "magnitude": the blocks of largest L2 norm over the whole matrix, round(density * all), at least one.
            "nonzero": the blocks that hold any number but 0 (or -0); density must be None.
    """
    if choose not in CHOICES:
        raise InvalidArgument(f"choose is {choose!r}; it must be one of {', '.join(CHOICES)}")
    if choose == "nonzero" and density is not None:
        raise InvalidArgument(f'density is {density}; choose="nonzero" derives it from the weight: leave it out')
    pair = block_pair(block)
    if weight.dim() != 2:
        raise InvalidArgument(f"weight has shape {list(weight.shape)}; it must be [out_features, in_features]")
    tiles = tile(weight.detach(), pair)  # [R, C, block_rows, block_cols]
    if choose == "nonzero":
        return (tiles != 0).flatten(2).any(2)
    wide = tiles if tiles.dtype is torch.float64 else tiles.float()
    norms = wide.square().sum((2, 3))  # [R, C], squared: the order is the same
    kept = count_blocks(0.5 if density is None else density, norms.numel())
    order = norms.flatten().argsort(descending=True, stable=True)  # ties go to the first block on every device
    mask = torch.zeros(norms.numel(), dtype=torch.bool, device=weight.device)
    mask[order[:kept]] = True
    return mask.view(norms.shape)


def tile(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """Dense [out, in] as [R, C, block_rows, block_cols]: a view where the sizes are multiples of the block."""
    rows, cols = dense.shape
    grid = block_grid((rows, cols), block)
    padding = (0, grid[1] * block[1] - cols, 0, grid[0] * block[0] - rows)
    if any(padding):
        dense = torch.nn.functional.pad(dense, padding)
    return dense.view(grid[0], block[0], grid[1], block[1]).transpose(1, 2)


def _permutation(count: int, generator: torch.Generator | None) -> Tensor:
    check_generator(generator)
    device = "cpu" if generator is None else generator.device
    return torch.randperm(count, generator=generator, device=device).cpu()  # int64 [count]


def _deal(row_blocks: int, col_blocks: int, hand: int, generator: torch.Generator | None) -> Iterator[list[int]]:
    """Hands of distinct columns from shuffled decks, each deck dealt to its end before the next is opened."""
    deck: list[int] = []
    for _ in range(row_blocks):
        held, deck = deck[:hand], deck[hand:]
        if len(held) < hand:
            shuffled = _permutation(col_blocks, generator).tolist()
            old = set(held)
            fresh = [column for column in shuffled if column not in old][: hand - len(held)]
            taken = set(fresh)
            held, deck = held + fresh, [column for column in shuffled if column not in taken]
        yield held
