"""Shrinker: block-sparse layers that lose blocks little by little while they train, so that each step is cheaper."""

from collections.abc import Iterable

import torch
from torch import Tensor

from bsparse_torch import BlockSparseLinear

EVERY = 8  # steps between two choices
MEMORY = 0.9  # of the running mean of block importances


class Shrinker:
    """Lowers the density of layers to a target over some optimizer steps, straight to it at the end.

    A layer keeps the blocks without which the training loss would change most, to first order: the running mean of the
    squared sum of value * gradient over the block (arXiv:1906.10771). Unlike GradualPruner's, dropped blocks are gone.
    """

    def __init__(
        self, layers: Iterable[BlockSparseLinear], density: float, steps: int, optimizer: torch.optim.Optimizer
    ) -> None:
        self.layers = list(layers)
        self.starts = [layer.density for layer in self.layers]
        self.importance = [torch.zeros(len(layer.values)) for layer in self.layers]  # [blocks] each
        self.density, self.steps, self.optimizer, self.made = density, steps, optimizer, 0

    @torch.no_grad()
    def observe(self) -> None:
        """To be called between backward and the optimizer's step."""
        if self.made >= self.steps:
            return
        for layer, importance in zip(self.layers, self.importance, strict=True):
            assert layer.values.grad is not None
            change = (layer.values * layer.values.grad).sum((1, 2))  # [blocks]: what the loss loses with a block
            importance.mul_(MEMORY).add_(change.square(), alpha=1 - MEMORY)

    def step(self) -> None:
        """To be called after the optimizer's step."""
        if self.made >= self.steps:
            return
        self.made += 1
        if self.made % EVERY and self.made < self.steps:
            return
        left = (1 - self.made / self.steps) ** 3
        for place, (layer, start) in enumerate(zip(self.layers, self.starts, strict=True)):
            wanted = self.density + (start - self.density) * left
            kept = _best(layer, self.importance[place], wanted)  # int64 [blocks kept], ascending
            mask = torch.zeros(layer.pattern.grid, dtype=torch.bool)
            mask[layer.pattern.row_indices()[kept], layer.col_indices[kept]] = True
            self.importance[place] = self.importance[place][kept]
            layer.set_pattern(mask, optimizer=self.optimizer)


def _best(layer: BlockSparseLinear, importance: Tensor, density: float) -> Tensor:
    rows, cols = layer.pattern.grid
    count = min(len(importance), max(1, round(density * rows * cols)))
    return importance.topk(count).indices.sort().values
