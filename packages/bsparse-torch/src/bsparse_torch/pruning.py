"""Pruning little by little while a model trains: GradualPruner for dense layers, BlockShrinker for block-sparse ones.

The usual way to a good block-sparse model: train dense layers under masks that close slowly, then make them sparse.

    pruner = GradualPruner(linears, density=0.25, block=32, steps=1000)
    for batch in batches:
        loss(model(batch)).backward()
        pruner.observe()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()
    pruner.finish()
    layer = BlockSparseLinear.from_linear(linear, choose="nonzero", block=32)

This needs no kernel of ours, so it works on every device that torch has. The shorter way starts from layers that are
block-sparse already and lose more blocks, so that training is cheaper from the first step; see BlockShrinker.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bsparse_core import InvalidArgument
from bsparse_torch.linear import BlockSparseLinear
from bsparse_torch.masks import block_grid, block_pair, check_density, choose_blocks, count_blocks, tile

SCORES = ("magnitude", "taylor")
MEMORY = 0.98  # of the running mean of block importances: about the last 50 calls of observe() count


class BlockMask(nn.Module):
    """A parametrization: the weight with its dropped blocks read as zero.

    mask: bool [out_features, in_features], True where a block is kept.
    regrow: whether dropped weights receive the gradient that they would have if they were kept, so that they can come
        back when blocks are chosen again (dynamic pruning with feedback, arXiv:2006.07253).
    importance: float32 [block rows, block columns], a running mean, where blocks are scored by what was observed.
    """

    mask: Tensor
    importance: Tensor | None

    def __init__(self, weight: Tensor, regrow: bool, grid: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.regrow = regrow
        self.register_buffer("mask", torch.ones_like(weight, dtype=torch.bool))
        self.register_buffer("importance", None if grid is None else torch.zeros(grid, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        masked = weight * self.mask  # [out_features, in_features]
        return weight + (masked - weight).detach() if self.regrow else masked


class GradualPruner:
    """Closes block masks over the weights of nn.Linear modules along a cubic schedule.

    Args:
        linears: the modules to prune, each to the same density; a module that appears twice is pruned once.
        density: fraction of the blocks that each weight keeps in the end, in (0, 1].
        block: an int or (rows along out_features, columns along in_features); edge blocks count whole.
        steps: the calls of `step()` over which the density falls from 1 to `density`.
        start: the calls of `step()` before that, with every block kept.
        every: calls between two choices of blocks.
        regrow: whether a dropped block keeps learning until the last choice, and may return; see `BlockMask`.
        score: which blocks a weight keeps. "magnitude": those of largest L2 norm. "taylor": those without which
            the training loss would change most, to first order: the running mean over batches of the squared sum of
            weight * gradient over the block (arXiv:1906.10771, for groups). It needs `observe()` after every backward.

    After call t of `step()`, with p = (t - start) / steps, a weight keeps density + (1 - density) * (1 - p)**3 of its
    blocks (the schedule of arXiv:1710.01878). After start + steps calls the choice is final.

    The pruner puts a parametrization on each weight: `linear.weight` reads as the masked weight, and the parameter that
    the optimizer holds is the same object as before. Masks and parameters are part of the model's state_dict. To
    resume, make the pruner anew, then load both state_dicts.

    Raises InvalidArgument for arguments outside these ranges.
    """

    def __init__(
        self,
        linears: Iterable[nn.Linear],
        density: float,
        block: Any,
        *,
        steps: int,
        start: int = 0,
        every: int = 10,
        regrow: bool = True,
        score: str = "magnitude",
    ) -> None:
        self.linears = list(dict.fromkeys(linears))
        _check_modules("linears", self.linears, nn.Linear)
        if any(parametrize.is_parametrized(linear, "weight") for linear in self.linears):
            raise InvalidArgument("linears holds a module whose weight is parametrized already: call finish() first")
        self.block = block_pair(block)
        check_density(density)
        _check_counts(("steps", steps, 1), ("start", start, 0), ("every", every, 1))
        if score not in SCORES:
            raise InvalidArgument(f"score is {score!r}; it must be one of {', '.join(SCORES)}")
        self.density, self.steps, self.start, self.every, self.score = density, steps, start, every, score
        self.calls = 0
        for linear in self.linears:
            grid = block_grid((linear.out_features, linear.in_features), self.block) if score == "taylor" else None
            parametrize.register_parametrization(linear, "weight", BlockMask(linear.weight, regrow, grid))

    @property
    def done(self) -> bool:
        """Whether the blocks are chosen for good."""
        return self.calls >= self.start + self.steps

    @property
    def current_density(self) -> float:
        """The fraction of blocks that the schedule asks for after the calls so far."""
        return _falling(1.0, self.density, (self.calls - self.start) / self.steps)

    @torch.no_grad()
    def observe(self) -> None:
        """To be called between backward and the optimizer's step; only score "taylor" looks, and only until `done`."""
        if self.score != "taylor" or self.done:
            return
        for linear in self.linears:
            weight, importance = _original(linear), _mask_of(linear).importance
            if weight.grad is not None and importance is not None:
                _remember(importance, tile(weight * weight.grad, self.block).sum((2, 3), dtype=torch.float32))  # [R, C]

    def step(self) -> None:
        """To be called after every optimizer step; does nothing more once `done`."""
        if self.done:
            return
        self.calls += 1
        if self.calls > self.start and (self.done or (self.calls - self.start) % self.every == 0):
            for linear in self.linears:
                self._choose(linear)

    def finish(self) -> None:
        """Takes the masks off and leaves ordinary modules whose dropped blocks are exact zeros.

        The parameters stay the same objects. Raises RuntimeError while the density is still falling.
        """
        if not self.done:
            raise RuntimeError(
                f"the pruner has made {self.calls} of {self.start + self.steps} steps and must make them all: "
                "call step() after each optimizer step, or make it with fewer steps"
            )
        for linear in self.linears:
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)

    def state_dict(self) -> dict[str, int]:
        """The calls made; masks and weights are in the model's own state_dict."""
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues from a state that `state_dict` returned; load the model's state_dict too."""
        self.calls = state["calls"]
        for linear in self.linears:
            self._settle(_mask_of(linear))

    @torch.no_grad()
    def _choose(self, linear: nn.Linear) -> None:
        mask = _mask_of(linear)
        if mask.importance is None:
            kept = choose_blocks(_original(linear), self.block, self.current_density)  # bool [R, C]
        else:
            _check_observed(mask.importance)
            kept = choose_blocks(mask.importance.sqrt(), 1, self.current_density)  # bool [R, C]
        rows, cols = mask.mask.shape
        wide = kept.repeat_interleave(self.block[0], 0).repeat_interleave(self.block[1], 1)
        mask.mask.copy_(wide[:rows, :cols])
        self._settle(mask)

    def _settle(self, mask: BlockMask) -> None:
        """Ends the gradient of dropped weights once none can return, so that it no longer counts in gradient norms."""
        mask.regrow = mask.regrow and not self.done


class BlockShrinker:
    """Lowers the density of BlockSparseLinear layers, block by block, while an optimizer trains them.

        shrinker = BlockShrinker(layers, density=0.25, steps=500, optimizer=optimizer)
        for batch in batches:
            loss(model(batch)).backward()
            shrinker.observe()
            optimizer.step()
            optimizer.zero_grad()
            shrinker.step()

    Args:
        layers: BlockSparseLinear modules of one density or several, none below the one asked for.
        density: fraction of all blocks that each layer keeps in the end, in (0, 1].
        steps: the calls of `step()` over which the density falls to it, along the cube of GradualPruner.
        optimizer: the one that trains the layers' values; its state moves with the blocks.
        every: calls between two choices of blocks.

    Blocks are scored by "taylor" as GradualPruner does. What is dropped is gone, and each step after it is cheaper.

    Raises InvalidArgument for arguments outside these ranges.
    """

    def __init__(
        self,
        layers: Iterable[BlockSparseLinear],
        density: float,
        *,
        steps: int,
        optimizer: torch.optim.Optimizer,
        every: int = 10,
    ) -> None:
        self.layers = list(dict.fromkeys(layers))
        _check_modules("layers", self.layers, BlockSparseLinear)
        check_density(density)
        _check_counts(("steps", steps, 1), ("every", every, 1))
        for layer in self.layers:
            if layer.format == "semi24":
                raise InvalidArgument("layers holds one of format semi24, which has no blocks to drop: leave it out")
            if layer.pattern.blocks < count_blocks(density, math.prod(layer.pattern.grid)):
                raise InvalidArgument(f"density is {density}; a layer's is {_of_blocks(layer):.3g} already: pass less")
        self.density, self.steps, self.every, self.optimizer = density, steps, every, optimizer
        self.calls = 0
        self._starts = [_of_blocks(layer) for layer in self.layers]
        self._importance = [torch.zeros(layer.pattern.grid, device=layer.values.device) for layer in self.layers]

    @property
    def done(self) -> bool:
        """Whether every layer has the density asked for."""
        return self.calls >= self.steps

    @torch.no_grad()
    def observe(self) -> None:
        """To be called between backward and the optimizer's step."""
        if self.done:
            return
        for layer, importance in zip(self.layers, self._importance, strict=True):
            if layer.values.grad is not None:
                change = torch.zeros_like(importance)  # [R, C]
                products = layer.values * layer.values.grad  # [blocks, block_rows, block_cols]
                change[layer.pattern.row_indices(), layer.col_indices] = products.sum((1, 2), dtype=torch.float32)
                _remember(importance, change)

    def step(self) -> None:
        """To be called after every optimizer step; does nothing more once `done`."""
        if self.done:
            return
        self.calls += 1
        if self.done or self.calls % self.every == 0:
            for importance in self._importance:
                _check_observed(importance)
            for layer, importance, start in zip(self.layers, self._importance, self._starts, strict=True):
                wanted = _falling(start, self.density, self.calls / self.steps)
                count = count_blocks(wanted, importance.numel())
                rows, cols = layer.pattern.row_indices(), layer.col_indices
                best = importance[rows, cols].argsort(descending=True, stable=True)[:count]
                mask = torch.zeros_like(importance, dtype=torch.bool)  # [R, C]
                mask[rows[best], cols[best]] = True
                layer.set_pattern(mask, optimizer=self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The calls made, the densities at the start, and the importance of blocks; patterns are in the model's own."""
        return {"calls": self.calls, "starts": list(self._starts), "importance": list(self._importance)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state that `state_dict` returned; load the model's and the optimizer's state_dicts too."""
        for importance, saved in zip(self._importance, state["importance"], strict=True):
            importance.copy_(saved)
        self.calls, self._starts = state["calls"], list(state["starts"])


def _of_blocks(layer: BlockSparseLinear) -> float:
    """Stored blocks over all blocks."""
    return layer.pattern.blocks / math.prod(layer.pattern.grid)


def _check_modules(name: str, modules: Sequence[nn.Module], kind: type[nn.Module]) -> None:
    if not modules:
        raise InvalidArgument(f"{name} is empty; pass the {kind.__name__} modules to prune")
    for module in modules:
        if not isinstance(module, kind):
            raise InvalidArgument(f"{name} holds a {type(module).__name__}; each must be a {kind.__name__}")


def _check_counts(*counts: tuple[str, Any, int]) -> None:
    for name, count, least in counts:
        if type(count) is not int or count < least:
            raise InvalidArgument(f"{name} is {count!r}; it must be an int, {least} or more")


def _falling(start: float, end: float, progress: float) -> float:
    """A density on its way from start to end, fast at first (arXiv:1710.01878)."""
    return end + (start - end) * (1.0 - min(1.0, max(0.0, progress))) ** 3


def _remember(importance: Tensor, change: Tensor) -> None:
    """Adds what the loss would change by without each block, to first order, to the running mean of its square."""
    importance.mul_(MEMORY).add_(change.square(), alpha=1 - MEMORY)


def _check_observed(importance: Tensor) -> None:
    if not importance.any():
        raise RuntimeError(
            "blocks are scored by their gradients and none was observed: call observe() after backward and before the "
            "optimizer's step and zero_grad"
        )


def _mask_of(linear: nn.Linear) -> BlockMask:
    mask = _parametrizations(linear)[0]
    assert isinstance(mask, BlockMask)
    return mask


def _original(linear: nn.Linear) -> Tensor:
    original = _parametrizations(linear).original
    assert isinstance(original, Tensor)
    return original


def _parametrizations(linear: nn.Linear) -> parametrize.ParametrizationList:
    weight = linear.get_submodule("parametrizations.weight")
    assert isinstance(weight, parametrize.ParametrizationList)
    return weight
