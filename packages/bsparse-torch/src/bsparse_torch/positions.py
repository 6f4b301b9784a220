"""2:4, in the whole matrix (semi24) or inside stored blocks (bsr24): which two of every four numbers are kept.

A group is 4 consecutive columns of a row. Metadata, uint8, holds two ascending 2-bit positions for each: low bits
first, two groups a byte, the first in the low half. A weight of float32 is chosen from by pairs, the larger of each two
columns, as tensor cores have it; any two ascending positions are valid in every dtype.
"""

from typing import Any

import torch
from torch import Tensor

import bsparse_core as bc
from bsparse_core import InvalidArgument
from bsparse_torch.masks import check_generator, tile
from bsparse_torch.pattern import BlockPattern

# Two ascending positions as half a byte: all there are, and those with one column of each pair.
_ANY, _BY_PAIRS = (0x4, 0x8, 0xC, 0x9, 0xD, 0xE), (0x8, 0xC, 0x9, 0xD)
NEUTRAL = 0x88  # columns 0 and 2 of both groups


def shapes(
    format: str, shape: tuple[int, int], blocks: int, block: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Of values and of metadata, None in "bsr", for a layer whose pattern may not be known yet."""
    lines = (shape[0],) if format == "semi24" else (blocks, block[0])
    if format == "bsr":
        return (*lines, block[1]), None
    if block[1] % 8:
        size, cure = ("in_features", 'use format="bsr24"') if format == "semi24" else ("block_cols", "pass 64")
        raise InvalidArgument(f"{size} is {block[1]}; in {format} it must be a multiple of 8: {cure}")
    return (*lines, block[1] // 2), (*lines, block[1] // 8)


def layout(values: Tensor, metadata: Tensor | None) -> tuple[str, tuple[int, int]]:
    """The format and block of values [blocks, ...], or [out_features, in_features / 2] in "semi24"."""
    if metadata is None:
        return "bsr", (values.shape[1], values.shape[2])
    return format_of(metadata), (values.shape[-2], 2 * values.shape[-1])


def format_of(metadata: Tensor | None) -> str:
    """The format that has metadata of so many dimensions."""
    return "bsr" if metadata is None else "semi24" if metadata.dim() == 2 else "bsr24"


def check(metadata: Any, pattern: BlockPattern) -> None:
    """Raises InvalidArgument unless metadata is uint8 of the pattern's metadata_shape, None in "bsr"."""
    shape = pattern.metadata_shape
    if shape is None:
        if metadata is not None:
            raise InvalidArgument("metadata is given, but a pattern of format bsr has none: leave it out")
        return
    if metadata is None:
        raise InvalidArgument(
            f"metadata is missing; a pattern of format {pattern.format} needs uint8 {list(shape)}: pass the layer's, "
            "or functional.choose_positions(dense, pattern)"
        )
    if not isinstance(metadata, Tensor):
        raise InvalidArgument(f"metadata is a {type(metadata).__name__}; it must be a tensor, uint8 {list(shape)}")
    if metadata.dtype is not torch.uint8:
        raise InvalidArgument(f"metadata has dtype {metadata.dtype}; it must be torch.uint8: two positions in 4 bits")
    if tuple(metadata.shape) != shape:
        raise InvalidArgument(
            f"metadata has shape {list(metadata.shape)}; a pattern of format {pattern.format} needs {list(shape)}: "
            "pass what belongs to these values"
        )


def check_contents(metadata: Tensor | None, pattern: BlockPattern) -> None:
    """Raises InvalidArgument unless metadata fits and keeps two ascending columns of every group. Reads it on the host.

    On the CPU every product checks it too; a GPU does not.
    """
    check(metadata, pattern)
    if metadata is None:
        return
    if metadata.is_meta:
        raise InvalidArgument("metadata is on the meta device and holds no positions: load it, then try again")
    bc.check_metadata(pattern.host.pattern, metadata.detach().cpu().contiguous().data_ptr())


def largest(dense: Tensor) -> Tensor:
    """Bool [out_features, in_features]: what of_largest keeps where every block is stored."""
    cols = dense.shape[1]
    groups = _groups(torch.nn.functional.pad(dense.detach(), (0, -cols % 4)))
    kept = torch.zeros(groups.shape, dtype=torch.bool, device=dense.device)
    return kept.scatter_(-1, _largest(groups), True).flatten(1)[:, :cols]


def of_largest(dense: Tensor, pattern: BlockPattern) -> Tensor:
    """Metadata that keeps the two of each group in the stored blocks of dense that are largest in magnitude.

    In float32 the larger of each pair. Of equals the first; NaN is largest.
    """
    pattern = pattern.to(dense.device)
    stored = tile(dense.detach(), pattern.block)[pattern.row_indices(), pattern.col_indices]
    return _encode(_largest(_groups(stored))).reshape(_shape(pattern))


def of_mask(mask: Tensor, pattern: BlockPattern) -> Tensor:
    """Metadata for a mask, bool [out_features, in_features], of what to keep in the stored blocks.

    Where a group has fewer than two, the lowest other columns are added. Raises InvalidArgument where it has more.
    """
    pattern = pattern.to(mask.device)
    groups = _groups(tile(mask, pattern.block)[pattern.row_indices(), pattern.col_indices])
    crowded = (groups.sum(-1) > 2).nonzero()
    if len(crowded):
        block, row, group = crowded[0].tolist()
        row += int(pattern.row_indices()[block]) * pattern.block[0]
        first = int(pattern.col_indices[block]) * pattern.block[1] + 4 * group
        raise InvalidArgument(
            f"mask keeps {int(groups[block, row % pattern.block[0], group].sum())} of columns {first} to {first + 3} "
            f"in row {row}; {pattern.format} keeps at most 2 of every 4: drop some, or let the largest be kept"
        )
    order = groups.logical_not().to(torch.uint8).sort(dim=-1, stable=True).indices[..., :2]  # kept ones first
    return _encode(order.sort(-1).values).reshape(_shape(pattern))


def draw(pattern: BlockPattern, dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
    """Metadata drawn evenly among all pairs of columns, in float32 among those with one of each pair; on the CPU."""
    check_generator(generator)
    device = "cpu" if generator is None else generator.device
    halves = _BY_PAIRS if dtype is torch.float32 else _ANY
    drawn = torch.randint(len(halves), (*_shape(pattern), 2), generator=generator, device=device).cpu()
    halves_drawn = torch.tensor(halves, dtype=torch.uint8, device="cpu")[drawn]  # [..., bytes, 2]
    return halves_drawn[..., 0] | halves_drawn[..., 1] << 4


def compress(stored: Tensor, pattern: BlockPattern, metadata: Tensor) -> Tensor:
    """What is kept of whole blocks [blocks, block_rows, block_cols], in the shape of values."""
    groups = _groups(stored)
    return groups.gather(-1, _decode(metadata).view(*groups.shape[:-1], 2)).reshape(pattern.values_shape)


def expand(values: Tensor, pattern: BlockPattern, metadata: Tensor) -> Tensor:
    """Whole blocks [blocks, block_rows, block_cols], zero at what is not kept. Differentiable."""
    groups = pattern.blocks, pattern.block[0], pattern.block[1] // 4
    pairs, places = values.reshape(*groups, 2), _decode(metadata).view(*groups, 2)
    return values.new_zeros(*groups, 4).scatter(-1, places, pairs).flatten(-2)


def _groups(array: Tensor, of: int = 4) -> Tensor:
    """[..., columns] as groups of so many, [..., groups, of]."""
    return array.reshape(*array.shape[:-1], array.shape[-1] // of, of)


def _largest(groups: Tensor) -> Tensor:
    """Positions [..., 2] of what to keep of groups [..., 4]."""
    of = 2 if groups.dtype is torch.float32 else 4
    best = _groups(groups.abs(), of).sort(dim=-1, descending=True, stable=True).indices[..., : of // 2]
    first = torch.arange(0, 4, of, device=groups.device)  # of each pair; one of a group
    return (best + first[:, None]).flatten(-2).sort(-1).values


def _encode(positions: Tensor) -> Tensor:
    """Positions [..., groups, 2] as bytes [..., groups / 2]."""
    halves = (positions[..., 0] | positions[..., 1] << 2).to(torch.uint8)
    return halves[..., 0::2] | halves[..., 1::2] << 4


def _decode(metadata: Tensor) -> Tensor:
    """Bytes [..., bytes] as positions: int64 [..., 4 * bytes], two for each group."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=metadata.device)
    return (metadata.unsqueeze(-1) >> shifts & 3).long().flatten(-2)


def _shape(pattern: BlockPattern) -> tuple[int, ...]:
    assert pattern.metadata_shape is not None, f"format {pattern.format} has no metadata"
    return pattern.metadata_shape
