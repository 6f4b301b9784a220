"""What a change of pattern does to optimizers: their state for the values is moved with the blocks, or refused."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from bsparse_core import InvalidArgument
from bsparse_torch.pattern import BlockPattern

# Parameters whose block count changed after they were made; an optimizer's state for them may be of the old count.
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


def move_state(optimizer: Any, values: Tensor, source: Tensor, target: Tensor, blocks: int) -> None:
    """Moves every state tensor shaped as values to the new blocks, zero where a block is new; the rest stays."""
    state = optimizer.state.get(values, {})
    for name, entry in state.items():
        if isinstance(entry, Tensor) and entry.shape == values.shape:
            state[name] = move_blocks(entry, source, target, blocks)


def check_holds(optimizer: Any, values: Tensor) -> None:
    """Raises InvalidArgument unless the optimizer updates this parameter."""
    if not any(parameter is values for group in optimizer.param_groups for parameter in group["params"]):
        raise InvalidArgument(
            f"optimizer ({type(optimizer).__name__}) does not hold this layer's values: pass the one that trains it"
        )


def watch(values: Tensor) -> None:
    """From now on an optimizer whose state does not fit these values raises at its step."""
    if not _resized:
        _install()
    _resized[values] = True


_installed: list[Any] = []


def _install() -> None:
    if not _installed:
        _installed.append(register_optimizer_step_pre_hook(_check_state))


def _check_state(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """A pre-hook of every optimizer's step. Raises RuntimeError where state is of another block count than values."""
    for group in optimizer.param_groups:
        for values in group["params"]:
            if values not in _resized:
                continue
            for name, entry in optimizer.state.get(values, {}).items():
                if isinstance(entry, Tensor) and entry.dim() == 3 and entry.shape != values.shape:
                    raise RuntimeError(
                        f"optimizer state {name!r} has shape {list(entry.shape)}; the values of a BlockSparseLinear "
                        f"have shape {list(values.shape)} since its pattern changed: load the optimizer state of this "
                        "pattern, pass optimizer= to set_pattern, or start afresh with "
                        "optimizer.state.pop(layer.values)"
                    )
