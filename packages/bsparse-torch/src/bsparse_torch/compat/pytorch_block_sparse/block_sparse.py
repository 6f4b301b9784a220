"""`BlockSparseMatrix` as pytorch_block_sparse knew it: `bsparse_torch.BlockSparseLinear` with the old names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsparse_torch import BlockPattern, BlockSparseLinear, choose_blocks, functional, ops
from bsparse_torch.compat import CompatibilityWarning
from bsparse_torch.compat.pytorch_block_sparse._blocks import Places, block_mask, check_replacements, layer_of
from bsparse_torch.compat.pytorch_block_sparse.checkpoint import replace_old_keys

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BlockSparseMatrix", "BlockSparseMatrixEmulator"]


class BlockSparseMatrix(nn.Module):
    """A block-sparse matrix [rows, cols] with the old methods, on any device, in any float dtype, with any block.

    The `weight` of a compat layer is such a matrix: it owns nothing and shows the layer's tensors. A matrix made by
    itself owns a `BlockSparseLinear` without bias, so its parameter and buffers stand under `layer.`.

    Blocks are numbered row by row, always: `block_replace` renumbers them and returns the new numbers, where the old
    library kept the number of a block that moved. The old library also stored each block transposed; `data` has it as
    it is.
    """

    layer: BlockSparseLinear

    def __init__(
        self, shape: Sequence[int], block_mask: Tensor, data: Tensor, block_shape: tuple[int, int] = (32, 32)
    ) -> None:
        """block_mask: bool [rows / block_rows, cols / block_cols]; data: float [blocks * block_rows, block_cols]."""
        super().__init__()
        warnings.warn(
            "BlockSparseMatrix(shape, block_mask, data) takes each block of data as it stands; "
            "pytorch_block_sparse took it transposed. from_dense() means the same in both.",
            CompatibilityWarning,
            stacklevel=2,
        )
        pattern = BlockPattern.from_mask(block_mask, block_shape, (shape[0], shape[1]))
        size = pattern.values_shape
        if data.shape not in (size, (size[0] * size[1], size[2])):
            raise ValueError(_wrong_shape("data", data, size))
        self.layer = layer_of(data.detach().reshape(size), pattern)

    @classmethod
    def of_layer(cls, layer: BlockSparseLinear) -> Self:
        """The matrix that shows the weight of `layer`, and owns nothing."""
        matrix = cls.__new__(cls)
        nn.Module.__init__(matrix)
        object.__setattr__(matrix, "layer", layer)  # past Module's registration: the layer owns its tensors
        return matrix

    @classmethod
    def _of_values(cls, values: Tensor, pattern: BlockPattern) -> Self:
        """A matrix of its own."""
        matrix = cls.__new__(cls)
        nn.Module.__init__(matrix)
        matrix.layer = layer_of(values, pattern)
        return matrix

    @classmethod
    def zeros(
        cls,
        shape: Sequence[int],
        n_blocks: int | None = None,
        blocks: Places | None = None,
        block_shape: tuple[int, int] = (32, 32),
        device: torch.device | str | None = None,
    ) -> Self:
        """Zeros in `blocks`, a list of (block row, block column), or in `n_blocks` at random; in all without either.

        `device` is torch's default where the old library said "cuda"; the places follow torch's seed, not NumPy's.
        """
        mask = block_mask(cls.blocks_count_(shape, block_shape), n_blocks, blocks)
        pattern = BlockPattern.from_mask(mask, block_shape)
        return cls._of_values(torch.zeros(pattern.values_shape, device=device), pattern)

    @classmethod
    def ones(
        cls,
        shape: Sequence[int],
        n_blocks: int | None = None,
        blocks: Places | None = None,
        block_shape: tuple[int, int] = (32, 32),
        device: torch.device | str | None = None,
        positive: bool = False,
    ) -> Self:
        """Like `zeros`, filled with ones; `positive` changes nothing, as in the old library."""
        matrix = cls.zeros(shape, n_blocks, blocks, block_shape, device)
        nn.init.ones_(matrix.layer.values)
        return matrix

    @classmethod
    def randn(
        cls,
        shape: Sequence[int],
        n_blocks: int | None = None,
        blocks: Places | None = None,
        block_shape: tuple[int, int] = (32, 32),
        device: torch.device | str | None = None,
        positive: bool = False,
    ) -> Self:
        """Like `zeros`, filled from N(0, 1), or from its absolute value where `positive`."""
        matrix = cls.zeros(shape, n_blocks, blocks, block_shape, device)
        nn.init.normal_(matrix.layer.values)
        if positive:
            with torch.no_grad():
                matrix.layer.values.abs_()
        return matrix

    @classmethod
    def from_dense(
        cls,
        dense: Tensor,
        block_shape: tuple[int, int] = (32, 32),
        block_count: int | None = None,
        blocks: Places | None = None,
        slow: bool = False,
        out: BlockSparseMatrix | None = None,
    ) -> BlockSparseMatrix:
        """The given `blocks` of `dense` [rows, cols], its `block_count` largest ones, or all: exact, in its dtype.

        With `out`, the blocks that `out` has, written there. Given a `block_count`, the old library scattered the first
        numbers of `dense` over random places. `slow` changes nothing.
        """
        dense = dense.detach()
        if out is not None:
            out._fill(functional.pack(dense, out.layer.pattern))
            return out
        grid = cls.blocks_count_(dense.shape, block_shape)
        if blocks is None and block_count is not None:
            if not 1 <= block_count <= grid.numel():
                raise ValueError(f"block_count is {block_count}; it must be in [1, {grid.numel()}], dense's blocks")
            mask = choose_blocks(dense, block_shape, block_count / grid.numel(), "magnitude")
        else:
            mask = block_mask(grid, None, blocks)
        pattern = BlockPattern.from_mask(mask, block_shape)
        return cls._of_values(functional.pack(dense, pattern), pattern)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.layer.out_features, self.layer.in_features))

    @property
    def dtype(self) -> torch.dtype:
        return self.layer.values.dtype

    @property
    def device(self) -> torch.device:
        return self.layer.values.device

    @property
    def block_shape(self) -> tuple[int, int]:
        return self.layer.block

    @property
    def data(self) -> Tensor:
        """The values as [blocks * block_rows, block_cols]: a view, to read, differentiate, or change under no_grad.

        The Parameter behind it, which has the gradient and is in the optimizer, is `get_differentiable_data()`.
        """
        return self.layer.values.flatten(0, 1)

    @data.setter
    def data(self, data: Tensor) -> None:
        self._fill(data)

    def get_differentiable_data(self) -> nn.Parameter:
        """The Parameter [blocks, block_rows, block_cols]."""
        return self.layer.values

    @torch.no_grad()
    def _fill(self, data: Tensor) -> None:
        """Sets the values; what would fall on the padding of edge blocks is dropped."""
        pattern = self.layer.pattern
        self.layer.values.copy_(functional.pack(functional.unpack(self.as_values("data", data), pattern), pattern))

    def as_values(self, name: str, data: Tensor) -> Tensor:
        """[blocks, block_rows, block_cols] from that, or from `data`'s [blocks * block_rows, block_cols]."""
        size = tuple(self.layer.values.shape)
        if data.shape not in (size, (size[0] * size[1], size[2])):
            raise ValueError(_wrong_shape(name, data, size))
        return data.reshape(size)

    @staticmethod
    def blocks_count_(shape: Sequence[int], block_shape: Sequence[int]) -> torch.Size:
        """(block rows, block columns) of `shape`, which must be a multiple of `block_shape`."""
        for size, block in zip(shape, block_shape, strict=True):
            if block < 1 or size % block:
                raise ValueError(
                    f"shape is {tuple(shape)}; it must be a multiple of block_shape = {tuple(block_shape)}: "
                    "pad it, or use bsparse_torch.BlockSparseLinear, which takes any size"
                )
        return torch.Size((shape[0] // block_shape[0], shape[1] // block_shape[1]))

    def blocks_count(self) -> torch.Size:
        """(block rows, block columns), stored or not."""
        return torch.Size(self.layer.pattern.grid)

    def nnz_block_count(self) -> int:
        return self.layer.pattern.blocks

    def block_positions(self) -> Tensor:
        """[blocks, 2]: the block row and block column of each stored block."""
        pattern = self.layer.pattern
        return torch.stack([pattern.row_indices(), pattern.col_indices.long()], 1)

    def build_coo_block_index(self) -> Tensor:
        """[2, blocks]: block rows, block columns."""
        return self.block_positions().t()

    def block_mask_build(self, block_positions: Tensor | None = None) -> Tensor:
        """bool [block rows, block columns], True at `block_positions` [2, any], or at the stored blocks without it."""
        if block_positions is None:
            return self.layer.pattern.mask()
        mask = torch.zeros(self.blocks_count(), dtype=torch.bool, device=block_positions.device)
        mask[block_positions[0], block_positions[1]] = True
        return mask

    def block_norm(self, p: float = 2) -> Tensor:
        """[blocks]: the p-norm of each block's entries."""
        norms: Tensor = torch.linalg.vector_norm(self.layer.values, p, dim=(1, 2))
        return norms

    def multiply_(self, factor: float) -> None:
        with torch.no_grad():
            self.layer.values.mul_(factor)

    def block_replace(self, block_replacements: Tensor, optimizer: Optimizer | None = None) -> Tensor:
        """Moves blocks, values and all, to places that are empty.

        block_replacements: int [any, 3], each row (new block row, new block column, number of the block to move).
        optimizer: the one that trains the matrix; what it remembers of the moved blocks is zeroed, the rest kept.
        Returns [blocks], the new number of each block.
        """
        rows = check_replacements(block_replacements, self.layer.pattern)  # [any, 3]
        grid = self.blocks_count()
        places = self.block_positions()  # [blocks, 2]
        places[rows[:, 2]] = rows[:, :2]
        order = (places[:, 0] * grid[1] + places[:, 1]).argsort()  # [blocks], old numbers in the new order
        values = self.layer.values.detach()[order]
        mask = self.block_mask_build(places.t())
        pattern = BlockPattern.from_mask(mask, self.block_shape, (self.shape[0], self.shape[1]))
        self.layer.set_pattern(pattern, optimizer=optimizer)
        self._fill(values)
        return order.argsort()

    def _values(self, data_replace: Tensor | None) -> Tensor:
        return self.layer.values if data_replace is None else self.as_values("data_replace", data_replace)

    def to_sparse(self, data_replace: Tensor | None = None) -> Tensor:
        """A hybrid COO tensor [block rows, block columns, block_rows, block_cols], as `to_dense`."""
        size = (*self.blocks_count(), *self.block_shape)
        positions, values = self.build_coo_block_index(), self._values(data_replace)
        return torch.sparse_coo_tensor(positions, values, size, is_coalesced=True, check_invariants=True)

    def to_dense(self, data_replace: Tensor | None = None) -> Tensor:
        """[rows, cols], of the values or of `data_replace`, which has the shape of `data` or of its Parameter."""
        return functional.unpack(self._values(data_replace), self.layer.pattern)

    def check_with_dense(self, dense_version: Tensor) -> None:
        """Raises ValueError where `dense_version` [rows, cols] is not `to_dense()`."""
        wrong = (self.to_dense() != dense_version).nonzero()
        if len(wrong):
            raise ValueError(f"dense_version differs from to_dense() at {len(wrong)} places, first {wrong[0].tolist()}")

    def reverse_matmul(self, dense_a: Tensor, transpose: bool = True) -> Tensor:
        """dense_a @ self.T, [..., cols] -> [..., rows]; without `transpose` dense_a @ self, [..., rows] -> [..., cols].

        Only the first of the two is differentiable.
        """
        if transpose:
            return functional.block_sparse_linear(dense_a, self.layer.values, self.layer.pattern)
        pattern = self.layer.pattern
        with torch.no_grad():
            product: Tensor = ops.grad_input(
                dense_a, self.layer.values, pattern.row_offsets, pattern.col_indices, pattern.key, *pattern.shape
            )
        return product

    @torch.no_grad()
    def matmul_with_output_sparse_support(
        self, dense_a: Tensor, dense_b: Tensor, overwrite_data: bool = False
    ) -> Tensor:
        """dense_a.T @ dense_b at the stored blocks, in the shape of `data`; not differentiable.

        dense_a: [..., rows], dense_b: [..., cols], with equal leading sizes. `overwrite_data`: store the result, too.
        """
        pattern = self.layer.pattern
        result: Tensor = ops.grad_values(
            dense_a, dense_b, pattern.row_offsets, pattern.col_indices, pattern.key, *pattern.shape, *pattern.block
        )
        if overwrite_data:
            self._fill(result)
        return result.flatten(0, 1)

    def extra_repr(self) -> str:
        return f"shape={tuple(self.shape)}, block_shape={self.block_shape}, blocks={self.nnz_block_count()}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if prefix + "cols_a" in state_dict:
            replace_old_keys(state_dict, prefix, prefix + "layer.")
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class BlockSparseMatrixEmulator(BlockSparseMatrix):
    """The old library's dense stand-in for other blocks than 32x32; here the same as `BlockSparseMatrix`."""


def _wrong_shape(name: str, data: Tensor, size: Sequence[int]) -> str:
    return (
        f"{name} has shape {tuple(data.shape)}; it must be {(size[0] * size[1], size[2])} or {tuple(size)}: "
        f"{size[0]} blocks of {size[1]}x{size[2]}"
    )
