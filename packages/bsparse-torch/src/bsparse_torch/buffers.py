"""PatternBuffers: a module whose block pattern lives in buffers, so that it is saved and moved with the module."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bsparse_torch import positions
from bsparse_torch.masks import block_grid
from bsparse_torch.pattern import BlockPattern
from bsparse_torch.state import check_values


class PatternBuffers(nn.Module):
    """What BlockSparseLinear does about its pattern: one host copy, read from the buffers only when they change.

    `values`, [blocks, block_rows, block_cols] in format "bsr", is the subclass's.
    """

    format: str
    values: nn.Parameter
    row_offsets: Tensor  # int32 [R + 1]
    col_indices: Tensor  # int32 [blocks]
    metadata: Tensor | None  # uint8, which numbers the values of a 2:4 format are; None in "bsr"
    _pattern: BlockPattern | None  # None until the buffers are read; its tensors are the buffers
    _index_version: int | None  # that of col_indices when they were bound; None: no longer watched

    def __init__(
        self, in_features: int, out_features: int, blocks: int, block: tuple[int, int], format: str, device: Any
    ) -> None:
        super().__init__()
        self.format = format
        row_blocks, _ = block_grid((out_features, in_features), block)
        self.in_features, self.out_features, self.block = in_features, out_features, block
        self.register_buffer("row_offsets", torch.zeros(row_blocks + 1, dtype=torch.int32, device=device))
        self.register_buffer("col_indices", torch.zeros(blocks, dtype=torch.int32, device=device))
        _, shape = positions.shapes(format, (out_features, in_features), blocks, block)
        metadata = None if shape is None else torch.full(shape, positions.NEUTRAL, dtype=torch.uint8, device=device)
        self.register_buffer("metadata", metadata)
        self._pattern = self._index_version = None

    @property
    def pattern(self) -> BlockPattern:
        """Which blocks are stored. Read anew from the buffers, and checked, where these were set from outside."""
        return self._pattern or self.refresh_pattern()

    def refresh_pattern(self) -> BlockPattern:
        """Reads the pattern from row_offsets and col_indices, after they were written to from outside.

        Raises InvalidArgument where they are not a pattern, or not the one that values has room for, or where metadata
        does not fit or keeps anything but two ascending columns of a group.
        """
        shape = self.out_features, self.in_features
        pattern = BlockPattern(self.row_offsets, self.col_indices, shape, self.block, self.format)
        check_values(self.values, pattern)
        positions.check_contents(self.metadata, pattern)
        self._bind(pattern)
        return pattern

    def _bind(self, pattern: BlockPattern) -> None:
        """Makes the tensors of a pattern the buffers."""
        self._buffers["row_offsets"], self._buffers["col_indices"] = pattern.row_offsets, pattern.col_indices
        self._pattern = pattern
        self._index_version = None if pattern.col_indices.is_inference() else pattern.col_indices._version

    def _indices(self) -> tuple[Tensor, Tensor]:
        """row_offsets and col_indices; as attributes of a module they take a microsecond each."""
        return self._buffers["row_offsets"], self._buffers["col_indices"]  # type: ignore[return-value]

    def _notice_writing(self) -> None:
        """Reads the buffers again when they have been written to for the first time since they were bound.

        DistributedDataParallel does so: it sends the first process's buffers and values to the others when it is made.
        It goes on to send the same at every forward, so that later writing is not looked at: see refresh_pattern.
        """
        if torch.compiler.is_compiling() or self._index_version is None:
            return
        if self._indices()[1]._version != self._index_version:
            self.refresh_pattern()
            self._index_version = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("row_offsets", "col_indices", "metadata"):
            self._pattern = None

    def __getstate__(self) -> dict[str, Any]:
        """What copy and pickle ask for: a pattern that other processes wrote to is read before it is copied."""
        self._notice_writing()
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._buffers.setdefault("metadata", None)  # of layers that were pickled before there was one
        if self._pattern is not None:
            self._bind(self._pattern)  # its tensors are new ones, whose versions count anew

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PatternBuffers":
        """What .to(), .cuda() and to_empty() call. The buffers follow, and are filled anew from the host's pattern."""
        pattern, before, metadata = self._pattern, (self.row_offsets, self.col_indices), self._buffers["metadata"]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = self._buffers["metadata"]
        if moved is not metadata and moved is not None and not moved.is_meta:
            if metadata is None or metadata.is_meta:
                moved.fill_(positions.NEUTRAL)
            else:
                moved.copy_(metadata)  # to_empty() has left it unfilled
        if pattern is not None and (self.row_offsets is not before[0] or self.col_indices is not before[1]):
            self._bind(pattern.copied_to(self.row_offsets.device))
        return self
