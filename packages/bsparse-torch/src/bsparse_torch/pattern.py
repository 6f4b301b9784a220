"""BlockPattern: which blocks of a weight are stored, as torch tensors."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

import bsparse_core as bc
from bsparse_torch import masks, plans

BLOCK = (64, 64)
FORMATS = ("bsr", "bsr24", "semi24")
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def check_format(format: Any, served: tuple[str, ...] = FORMATS) -> None:
    """Raises Unsupported for a format that is known and not served, InvalidArgument for any other name."""
    names = ", ".join(f'"{name}"' for name in served)
    if format in (*FORMATS, "bitmap") and format not in served:
        raise bc.Unsupported(f"{format} is not served by this version: pass format={names}")
    if format not in served:
        raise bc.InvalidArgument(f"format is {format!r}; it must be one of {names}")


class BlockPattern:
    """The stored blocks of a weight [rows, cols] = [out_features, in_features], row by row. Immutable.

    Args:
        row_offsets: [ceil(rows / block_rows) + 1] integers: where each block row begins among the blocks.
        col_indices: [blocks] integers: the block column of each block, ascending within a block row.
        shape: (rows, cols) in elements; they need not be multiples of the block.
        block: (block_rows, block_cols), or one int for a square block.
        format: "bsr": whole blocks. "bsr24": 2:4 inside the blocks, block_cols a multiple of 8. "semi24": 2:4 in the
            whole weight, one block, cols a multiple of 8: see BlockPattern.semi24.

    Which two of every four numbers a 2:4 format keeps is no part of the pattern: metadata beside the values says it.
    Equal patterns compare equal, whatever their device. `key` is a digest of the contents, the same in every process.
    int32 tensors are kept as they are, without a copy: do not write to them.

    Raises:
        bsparse_torch.InvalidArgument: index arrays or sizes that break a rule; the message names it.
    """

    __slots__ = (
        "__weakref__", "_keyed", "host", "block", "cols", "col_indices", "key", "row_offsets", "rows", "values_shape",
        "metadata_shape",
    )  # fmt: skip

    host: plans.HostPattern  # for this package: plans hang on it
    rows: int
    cols: int
    block: tuple[int, int]
    values_shape: tuple[int, ...]  # [blocks, block_rows, block_cols (bsr24: / 2)]; semi24: [rows, cols / 2]
    metadata_shape: tuple[int, ...] | None  # [blocks, block_rows, block_cols / 8]; semi24: [rows, cols / 8]; bsr: None
    key: int
    row_offsets: Tensor  # int32 [R + 1]
    col_indices: Tensor  # int32 [blocks]
    _keyed: Tensor  # [key, 0], without memory

    def __init__(
        self, row_offsets: Any, col_indices: Any, shape: tuple[int, int], block: Any = BLOCK, format: str = "bsr"
    ) -> None:
        check_format(format)
        row_offsets, col_indices = _integers("row_offsets", row_offsets), _integers("col_indices", col_indices)
        if row_offsets.device != col_indices.device:
            raise bc.InvalidArgument(
                f"row_offsets is on {row_offsets.device}, col_indices on {col_indices.device}; both must be together"
            )
        if row_offsets.is_meta:
            raise bc.InvalidArgument("row_offsets is on the meta device and holds no indices: load it, then try again")
        pattern = bc.Pattern(*shape, masks.block_pair(block), row_offsets.tolist(), col_indices.tolist(), format)
        kept = (indices.to(torch.int32).contiguous() for indices in (row_offsets, col_indices))
        self._fill(plans.register(pattern), *kept)

    def _fill(self, host: plans.HostPattern, row_offsets: Tensor, col_indices: Tensor) -> None:
        pattern = host.pattern
        fields = {
            "host": host,
            "rows": pattern.rows,
            "cols": pattern.cols,
            "block": pattern.block,
            "values_shape": pattern.values_shape,
            "metadata_shape": pattern.metadata_shape,
            "key": pattern.key,
            "row_offsets": row_offsets,
            "col_indices": col_indices,
            "_keyed": torch.empty(1, 0, device="cpu").expand(pattern.key, 0),
        }
        for name, field in fields.items():
            object.__setattr__(self, name, field)

    @classmethod
    def _make(cls, host: plans.HostPattern, row_offsets: Tensor, col_indices: Tensor) -> "BlockPattern":
        """A pattern whose index tensors are known to hold the host pattern's indices."""
        made = cls.__new__(cls)
        made._fill(host, row_offsets, col_indices)
        return made

    @classmethod
    def from_mask(
        cls,
        mask: Any,
        block: Any = BLOCK,
        shape: tuple[int, int] | None = None,
        device: Any = None,
        format: str = "bsr",
    ) -> "BlockPattern":
        """The pattern of the blocks where mask, bool [block rows, block columns], is True.

        Args:
            shape: (out_features, in_features) where these are not multiples of the block; None: they are.
            device: where the index tensors go; None: the mask's.
            format: "bsr" or "bsr24".
        """
        check_format(format)
        if format == "semi24":
            raise bc.InvalidArgument(
                "format is semi24, in which no blocks are chosen: use BlockPattern.semi24(shape), or bsr24"
            )
        pair, mask = masks.block_pair(block), masks.as_mask(mask)
        grid = mask.shape[0], mask.shape[1]
        shape = (grid[0] * pair[0], grid[1] * pair[1]) if shape is None else shape
        needed = masks.block_grid(shape, pair)
        if grid != needed:
            raise bc.InvalidArgument(
                f"mask has shape {list(grid)}; a weight of {shape[0]} x {shape[1]} in blocks of {pair[0]} x {pair[1]} "
                f"needs {list(needed)}, one entry a block"
            )
        device = mask.device if device is None else torch.device(device)
        mask = mask.cpu()
        row_offsets = torch.zeros(mask.shape[0] + 1, dtype=torch.int32, device="cpu")  # [R + 1]
        row_offsets[1:] = mask.sum(1).cumsum(0)
        col_indices = mask.nonzero()[:, 1].to(torch.int32)  # [blocks]
        return cls(row_offsets, col_indices, shape, pair, format).to(device)

    @classmethod
    def semi24(cls, shape: tuple[int, int], device: Any = "cpu") -> "BlockPattern":
        """The pattern of format "semi24" for a weight [out_features, in_features]: one block, all of it 2:4."""
        masks.block_grid(shape, BLOCK)  # for its checks
        return cls([0, 1], [0], shape, shape, "semi24").to(device)

    @classmethod
    def random(
        cls,
        shape: tuple[int, int],
        density: float = 0.5,
        block: Any = BLOCK,
        *,
        generator: torch.Generator | None = None,
        device: Any = "cpu",
        format: str = "bsr",
    ) -> "BlockPattern":
        """Blocks drawn evenly over the whole weight [out_features, in_features]; see masks.random."""
        pair = masks.block_pair(block)
        mask = masks.random(*masks.block_grid(shape, pair), density, generator=generator)
        return cls.from_mask(mask, pair, shape, device, format)

    @classmethod
    def balanced(
        cls,
        shape: tuple[int, int],
        density: float = 0.5,
        block: Any = BLOCK,
        *,
        generator: torch.Generator | None = None,
        device: Any = "cpu",
        format: str = "bsr",
    ) -> "BlockPattern":
        """The same number of blocks in every block row; see masks.balanced."""
        pair = masks.block_pair(block)
        mask = masks.balanced(*masks.block_grid(shape, pair), density, generator=generator)
        return cls.from_mask(mask, pair, shape, device, format)

    @property
    def format(self) -> str:
        """ "bsr", "bsr24" or "semi24"."""
        return self.host.format

    @property
    def key_in_graphs(self) -> int:
        """The key, as torch.compile shall see it: something that differs from layer to layer of the same code.

        An int that hangs on a module is a constant to it, and each layer a compilation. A tensor's size is a constant
        only until a second one is seen.
        """
        return self._keyed.shape[0] if torch.compiler.is_compiling() else self.key

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols) = (out_features, in_features)."""
        return self.rows, self.cols

    @property
    def blocks(self) -> int:
        """How many blocks are stored."""
        return self.host.pattern.blocks

    @property
    def grid(self) -> tuple[int, int]:
        """Block rows and block columns."""
        return self.host.pattern.row_blocks, self.host.pattern.col_blocks

    @property
    def density(self) -> float:
        """Stored numbers over all: stored blocks over all blocks, and half of that where they are 2:4."""
        return self.host.pattern.density

    @property
    def device(self) -> torch.device:
        """Where the index tensors are."""
        return self.row_offsets.device

    def row_indices(self) -> Tensor:
        """The block row of each block: int64 [blocks]."""
        rows = torch.arange(self.grid[0], device=self.device)
        return rows.repeat_interleave(self.row_offsets.diff(), output_size=self.blocks)

    def mask(self) -> Tensor:
        """Bool [block rows, block columns]: True where a block is stored."""
        mask = torch.zeros(self.grid, dtype=torch.bool, device=self.device)
        mask[self.row_indices(), self.col_indices] = True
        return mask

    def to(self, device: Any) -> "BlockPattern":
        """The same pattern with its index tensors on another device, copied there from host memory."""
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return self if device == self.device else self.copied_to(device)

    def copied_to(self, device: Any) -> "BlockPattern":
        """The same pattern with index tensors of its own, copied from host memory to a device."""
        host = self.host.pattern
        return self._make(self.host, _tensor(host.row_offsets).to(device), _tensor(host.col_indices).to(device))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a BlockPattern is fixed: make another BlockPattern")

    def __eq__(self, other: object) -> bool:
        return self.host.pattern == other.host.pattern if isinstance(other, BlockPattern) else NotImplemented

    def __hash__(self) -> int:
        return self.key

    def __copy__(self) -> "BlockPattern":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "BlockPattern":
        return self._make(self.host, deepcopy(self.row_offsets, memo), deepcopy(self.col_indices, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.host.pattern, self.row_offsets, self.col_indices)

    def __repr__(self) -> str:
        format = "" if self.format == "bsr" else f"format={self.format!r}, "
        return (
            f"BlockPattern({format}shape={self.shape}, block={self.block}, blocks={self.blocks}, "
            f"density={self.density:.3g}, device={str(self.device)!r})"
        )


def make_pattern(
    shape: tuple[int, int], density: float, block: Any, pattern: Any, generator: torch.Generator | None, format: str
) -> BlockPattern:
    """The pattern that the arguments of BlockSparseLinear describe, on the CPU."""
    check_format(format)
    if isinstance(pattern, BlockPattern):
        block = pattern.block if block == BLOCK else masks.block_pair(block)
        check_fits(pattern, shape, block, pattern.format if format == "bsr" else format)
        return pattern
    if format == "semi24":
        check_semi24(shape, density, block)
        if pattern != "balanced":
            raise bc.InvalidArgument(f"pattern is {pattern!r}; semi24 stores the whole weight as one block: leave it")
        return BlockPattern.semi24(shape)
    if not isinstance(pattern, str):
        return BlockPattern.from_mask(pattern, block, shape, "cpu", format)
    if pattern == "balanced":
        return BlockPattern.balanced(shape, density, block, generator=generator, format=format)
    if pattern == "random":
        return BlockPattern.random(shape, density, block, generator=generator, format=format)
    raise bc.InvalidArgument(
        f'pattern is {pattern!r}; it must be "balanced", "random", a bool block mask or a BlockPattern'
    )


def check_semi24(shape: tuple[int, int], density: float | None, block: Any) -> None:
    """Raises InvalidArgument for a density or block that semi24 has not; BLOCK, the default, stands for its own."""
    if density not in (None, 0.5):
        raise bc.InvalidArgument(
            f"density is {density!r}; semi24 keeps 2 of every 4 of the whole weight, which is 0.5: leave it out, or "
            'use format="bsr24"'
        )
    if block != BLOCK and masks.block_pair(block) != shape:
        raise bc.InvalidArgument(f"block is {block!r}; semi24 stores the weight as one block, {shape}: leave it out")


def check_fits(pattern: BlockPattern, shape: tuple[int, int], block: tuple[int, int], format: str) -> None:
    """Raises InvalidArgument unless pattern is one of this shape, block and format."""
    if pattern.format != format:
        raise bc.InvalidArgument(f"pattern has format {pattern.format}; the layer has {format}: pass one of {format}")
    if pattern.shape != shape or pattern.block != block:
        raise bc.InvalidArgument(
            f"pattern has shape {pattern.shape} in blocks of {pattern.block}; the layer is {shape} in blocks of {block}"
        )


def _unpickle(pattern: bc.Pattern, row_offsets: Tensor, col_indices: Tensor) -> BlockPattern:
    return BlockPattern._make(plans.register(pattern), row_offsets, col_indices)


def _integers(name: str, values: Any) -> Tensor:
    """Indices given from outside as a 1-D tensor of integers; ranges are core's to check."""
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, device="cpu")
    if tensor.numel() and tensor.dtype not in _INTEGERS:
        raise bc.InvalidArgument(f"{name} has dtype {tensor.dtype}; it must be torch.int32")
    if tensor.dim() != 1:
        raise bc.InvalidArgument(f"{name} has shape {list(tensor.shape)}; it must be 1-D")
    return tensor.detach()


def _tensor(indices: memoryview) -> Tensor:
    """A host tensor int32 with a copy of core's indices."""
    if not len(indices):
        return torch.empty(0, dtype=torch.int32, device="cpu")
    return torch.frombuffer(bytearray(indices), dtype=torch.int32)
