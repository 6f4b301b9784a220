"""State dicts of pytorch_block_sparse, read from their tensors alone and rewritten for `BlockSparseLinear`.

An old layer `P` stores a matrix under `P.weight.`: R x C blocks of b0 x b1, n of them present, numbered as in `data`:

    data               [n * b0, b1]  float   block i is rows i*b0 to (i+1)*b0; its memory is the block transposed
    cols_a             [n, 2]        int32   (block column, i), block rows in order, ascending in a row
    row_start_ends_a   [R + 1]       int32   where each block row begins in cols_a
    rows_b             [n, 2]        int32   (block row, i), block columns in order
    col_start_ends_b   [C + 1]       int32   where each block column begins in rows_b
    blocks             [2 * n]       int32   (block column, block row) of block 0, 1, ...
    block_mask         [R, C]        bool    only in releases 0.1.1 and 0.1.2
    _dense             [R*b0, C*b1]  float   only where the block was not 32x32: the trained weight, data is stale then

Shapes are not stored: they follow from the sizes of these tensors.
"""

import os
import pickle
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from bsparse_torch import BlockPattern, functional, masks
from bsparse_torch.compat.pytorch_block_sparse._blocks import layer_of

__all__ = ["convert_checkpoint", "convert_file", "replace_old_keys"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_INDICES = (torch.int32, torch.int64)
_MARKS = ("cols_a", "row_start_ends_a", "rows_b", "col_start_ends_b")  # no other library names buffers like these
_NAMES = (*_MARKS, "data", "blocks", "block_mask", "_dense")
_CURE = "save the state_dict() of the model again with pytorch_block_sparse, or use an undamaged copy"


def convert_checkpoint(state_dict: Mapping[str, Any], *, pseudo_block: tuple[int, int] = (32, 32)) -> dict[str, Any]:
    """A new state dict in which every old layer has the keys of `BlockSparseLinear`; all other entries are kept.

    state_dict: of a model with pytorch_block_sparse layers of any release: 32x32 layers, emulated ones (other block
        shapes) and pseudo layers (`weight` with a bool `mask`). It is not changed.
    pseudo_block: the block (rows, cols) of pseudo layers, whose checkpoints do not tell it.

    The result loads with `strict=True` and shares no memory with the old layers' weights. An old matrix `P` that is no
    layer's weight becomes a layer `P`.
    Raises ValueError, naming the key, where tensors contradict each other.
    """
    state = dict(state_dict)
    matrices = {key.removesuffix(name) for key in state for name in _MARKS if _is_entry(key, name)}
    matrices |= {key.removesuffix("data") for key in state if _is_entry(key, "weight.data")}
    for prefix in sorted(matrices):
        replace_old_keys(state, prefix, prefix.removesuffix("weight."))
    for key in sorted(state):
        if _is_entry(key, "mask") and _is_pseudo(state, key.removesuffix("mask")):
            _replace_pseudo_keys(state, key.removesuffix("mask"), pseudo_block)
    return state


def convert_file(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> int:
    """Converts the state dict saved in the file `old` into the file `new`; returns how many layers were converted.

    Both files hold tensors and plain containers only: a pickled module is refused, never unpickled.
    """
    try:
        state = torch.load(old, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{os.fspath(old)} holds pickled objects; it must hold a state dict, since unpickling runs code: "
            "with the old library, load the model and save model.state_dict()"
        ) from error
    if not isinstance(state, Mapping):
        raise ValueError(f"{os.fspath(old)} holds a {type(state).__name__}; it must hold a state dict: {_CURE}")
    converted = convert_checkpoint(state)
    layers = sum(key not in state and _is_entry(key, "row_offsets") for key in converted)
    if layers == 0:
        raise ValueError(
            f"{os.fspath(old)} has no pytorch_block_sparse layer among its keys ({', '.join(list(state)[:3])}, ...); "
            "it must be the state dict itself: if it is an entry of a larger checkpoint, save that entry alone"
        )
    torch.save(converted, new)
    return layers


def replace_old_keys(state: MutableMapping[str, Any], old_prefix: str, new_prefix: str) -> None:
    """Replaces the old matrix under `old_prefix`, in place, by a `BlockSparseLinear`'s entries under `new_prefix`."""
    values, pattern = _read_matrix(state, old_prefix)  # values: [blocks, block_rows, block_cols]
    for name in _NAMES:
        state.pop(old_prefix + name, None)
    _write_layer(state, new_prefix, values, pattern)


def _is_entry(key: str, name: str) -> bool:
    return key == name or key.endswith("." + name)


def _entry(
    state: Mapping[str, Any], key: str, sizes: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...]
) -> Tensor:
    """state[key], a tensor of one of `dtypes` and of `sizes`, where None stands for any."""
    if key not in state:
        raise ValueError(f"{key} is missing; every pytorch_block_sparse layer stores it: {_CURE}")
    value = state[key]
    if not isinstance(value, Tensor):
        raise ValueError(f"{key} is a {type(value).__name__}; it must be a tensor: {_CURE}")
    if value.dtype not in dtypes:
        raise ValueError(f"{key} has dtype {value.dtype}; it must be one of {', '.join(map(str, dtypes))}: {_CURE}")
    if len(sizes) != value.dim() or any(
        size not in (None, have) for size, have in zip(sizes, value.shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{key} has shape {list(value.shape)}; it must be [{wanted}]: {_CURE}")
    return value.detach().long() if dtypes == _INDICES else value.detach()


def _offsets(state: Mapping[str, Any], key: str, blocks: int) -> Tensor:
    """The offsets under `key`: from 0 to `blocks`, never decreasing."""
    offsets = _entry(state, key, (None,), _INDICES)
    if len(offsets) < 2:
        raise ValueError(f"{key} has {len(offsets)} entries; it must have at least 2: {_CURE}")
    if offsets[0] != 0 or offsets[-1] != blocks:
        raise ValueError(
            f"{key} runs from {offsets[0]} to {offsets[-1]}; it must run from 0 to {blocks}, "
            f"the number of rows of cols_a: {_CURE}"
        )
    falls = (offsets.diff() < 0).nonzero()
    if len(falls):
        at = int(falls[0]) + 1
        raise ValueError(f"{key}[{at}] is {offsets[at]}, below {offsets[at - 1]}; offsets must not decrease: {_CURE}")
    return offsets


def _read_matrix(state: Mapping[str, Any], prefix: str) -> tuple[Tensor, BlockPattern]:
    """The values [blocks, block_rows, block_cols], in the order of the pattern, and the pattern of an old matrix."""
    cols_a = _entry(state, prefix + "cols_a", (None, 2), _INDICES)
    data = _entry(state, prefix + "data", (None, None), _FLOATS)
    blocks = len(cols_a)
    if blocks == 0 or data.numel() == 0 or len(data) % blocks:
        raise ValueError(
            f"{prefix}data has shape {list(data.shape)} for {blocks} blocks in cols_a; "
            f"its rows must be a multiple of the blocks, and neither may be empty: {_CURE}"
        )
    block = (len(data) // blocks, data.shape[1])
    offsets = _offsets(state, prefix + "row_start_ends_a", blocks)
    grid = (len(offsets) - 1, len(_offsets(state, prefix + "col_start_ends_b", blocks)) - 1)  # block rows, block cols
    cols, order = cols_a.unbind(1)  # each [blocks]
    rows = torch.repeat_interleave(torch.arange(grid[0], device=cols.device), offsets.diff())  # [blocks]
    _check_positions(prefix + "cols_a", rows, cols, order, grid)

    pattern = BlockPattern(offsets, cols, (grid[0] * block[0], grid[1] * block[1]), block)
    _check_twins(state, prefix, pattern.mask(), rows, cols, order)
    if prefix + "_dense" in state:
        return functional.pack(_entry(state, prefix + "_dense", pattern.shape, _FLOATS), pattern), pattern
    return data.reshape(blocks, block[1], block[0]).transpose(1, 2)[order.to(data.device)], pattern


def _check_positions(key: str, rows: Tensor, cols: Tensor, order: Tensor, grid: tuple[int, int]) -> None:
    outside = ((cols < 0) | (cols >= grid[1])).nonzero()
    if len(outside):
        at = int(outside[0])
        raise ValueError(
            f"{key}[{at}, 0] is {cols[at]}; a block column must be in [0, {grid[1]}), by col_start_ends_b: {_CURE}"
        )
    repeats = ((rows.diff() == 0) & (cols.diff() <= 0)).nonzero()
    if len(repeats):
        at = int(repeats[0]) + 1
        raise ValueError(
            f"{key}[{at}, 0] is {cols[at]} after {cols[at - 1]} in block row {rows[at]}; "
            f"block columns must ascend in a row, without repeats: {_CURE}"
        )
    wrong = (order.sort().values != torch.arange(len(order), device=order.device)).nonzero()
    if len(wrong):
        raise ValueError(
            f"{key}[:, 1] is {order.tolist()[:8]}...; it must be a permutation of 0 to {len(order) - 1}, "
            f"naming each block of data once: {_CURE}"
        )


def _check_twins(
    state: Mapping[str, Any], prefix: str, mask: Tensor, rows: Tensor, cols: Tensor, order: Tensor
) -> None:
    """The other index tensors say the same as cols_a and row_start_ends_a, where they are present."""
    index = torch.zeros(mask.shape, dtype=torch.long, device=mask.device)  # [R, C], of the block in data
    index[rows, cols] = order
    col_major = mask.t().nonzero()  # [blocks, 2]: block column, block row
    twins = {
        "col_start_ends_b": torch.cat([order.new_zeros(1), mask.sum(0).cumsum(0)]),
        "rows_b": torch.stack([col_major[:, 1], index.t()[mask.t()]], 1),
        "blocks": torch.stack([cols, rows], 1)[order.argsort()].flatten(),
        "block_mask": mask,
    }
    for name, expected in twins.items():
        key = prefix + name
        if key not in state:
            continue
        dtypes = (torch.bool,) if name == "block_mask" else _INDICES
        found = _entry(state, key, tuple(expected.shape), dtypes)
        differences = (found != expected.to(found.device)).nonzero()
        if len(differences):
            at = tuple(differences[0].tolist())
            raise ValueError(
                f"{key}{list(at)} is {found[at].item()}; it must be {expected[at].item()} "
                f"to agree with cols_a and row_start_ends_a: {_CURE}"
            )


def _is_pseudo(state: Mapping[str, Any], prefix: str) -> bool:
    mask, weight = state[prefix + "mask"], state.get(prefix + "weight")
    if not (isinstance(mask, Tensor) and isinstance(weight, Tensor)):
        return False
    return mask.dtype == torch.bool and mask.dim() == weight.dim() == 2


def _replace_pseudo_keys(state: MutableMapping[str, Any], prefix: str, block: tuple[int, int]) -> None:
    mask = state[prefix + "mask"]  # [out, in]
    weight = _entry(state, prefix + "weight", tuple(mask.shape), _FLOATS)
    if mask.shape[0] % block[0] or mask.shape[1] % block[1]:
        raise ValueError(
            f"{prefix}mask has shape {list(mask.shape)}; it must be a multiple of pseudo_block = {block}: "
            "pass the block_shape that the old layer had"
        )
    kept = masks.tile(mask, block).flatten(2)  # [R, C, block_rows * block_cols]
    partial = (kept.any(2) & ~kept.all(2)).nonzero()
    if len(partial):
        raise ValueError(
            f"{prefix}mask keeps a part of block {partial[0].tolist()}; it must keep or drop whole blocks of "
            f"pseudo_block = {block}: pass the block_shape that the old layer had"
        )
    del state[prefix + "mask"], state[prefix + "weight"]
    pattern = BlockPattern.from_mask(kept.all(2), block)
    _write_layer(state, prefix, functional.pack(weight, pattern), pattern)


def _write_layer(state: MutableMapping[str, Any], prefix: str, values: Tensor, pattern: BlockPattern) -> None:
    """Writes what a `BlockSparseLinear` with these values stores; the layer itself is the one judge of that."""
    if prefix + "bias" in state:
        _entry(state, prefix + "bias", (pattern.shape[0],), _FLOATS)
    state.update(layer_of(values, pattern).state_dict(prefix=prefix))
