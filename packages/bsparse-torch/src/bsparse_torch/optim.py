"""What a change of pattern does to optimizers: their state for the values moves with the blocks, or is refused."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from bsparse_core import InvalidArgument
from bsparse_torch.pattern import BlockPattern

# Parameters whose block count has changed: an optimizer's state for them may be of the old count.
_resized = WeakTensorKeyDictionary()


def common_blocks(old: BlockPattern, new: BlockPattern) -> tuple[Tensor, Tensor]:
    """Positions in old and in new of the blocks that both store: two int64 tensors on the old pattern's device."""
    new = new.to(old.device)
    position = torch.full(old.grid, -1, device=old.device)  # int64 [R, C]: where new stores each block
    position[new.row_indices(), new.col_indices] = torch.arange(new.blocks, device=old.device)
    target = position[old.row_indices(), old.col_indices]  # [old.blocks]
    kept = target >= 0
    return kept.nonzero().flatten(), target[kept]


def move_blocks(stored: Tensor, source: Tensor, target: Tensor, blocks: int, fill: float = 0.0) -> Tensor:
    """A tensor [blocks, ...] that holds stored[source] at target and fill elsewhere."""
    moved = stored.new_full((blocks, *stored.shape[1:]), fill)
    moved[target] = stored[source]
    return moved


def movable_state(optimizer: Any, values: Tensor) -> dict[str, Tensor]:
    """The optimizer's state tensors that hold a number for each of the values.

    Raises InvalidArgument where the optimizer does not hold the values, or keeps state of another shape or kind.
    """
    if not any(parameter is values for group in optimizer.param_groups for parameter in group["params"]):
        raise InvalidArgument(
            f"optimizer ({type(optimizer).__name__}) does not hold this layer's values: pass the one that trains it"
        )
    tensors = {name: entry for name, entry in optimizer.state.get(values, {}).items() if isinstance(entry, Tensor)}
    found = {name: entry for name, entry in tensors.items() if entry.numel() != 1 or entry.shape == values.shape}
    for name, entry in found.items():
        if entry.shape != values.shape or not entry.is_floating_point():
            raise InvalidArgument(
                f"optimizer state {name!r} is {entry.dtype} {list(entry.shape)}; only float state shaped as values "
                f"{list(values.shape)} can move with its blocks: drop it by optimizer.state.pop(layer.values)"
            )
    return found


def watch(values: Tensor) -> None:
    """From now on an optimizer whose state does not fit these values raises at its step."""
    _install()
    _resized[values] = True


@cache
def _install() -> None:
    register_optimizer_step_pre_hook(_check_state)


def _check_state(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """A pre-hook of every optimizer's step. Raises RuntimeError where state is of another block count than values."""
    for values in (values for group in optimizer.param_groups for values in group["params"] if values in _resized):
        for name, entry in optimizer.state.get(values, {}).items():
            if isinstance(entry, Tensor) and entry.dim() == values.dim() and len(entry) != len(values):
                raise RuntimeError(
                    f"optimizer state {name!r} has shape {list(entry.shape)}; the values of a BlockSparseLinear have "
                    f"shape {list(values.shape)} since its pattern changed: load the optimizer's state of this "
                    "pattern, pass optimizer= to set_pattern, or drop it by optimizer.state.pop(layer.values)"
                )
