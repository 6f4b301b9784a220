"""`BlockSparseLinear` with pytorch_block_sparse's signature and attributes, and its two companions."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import bsparse_torch
from bsparse_torch import BlockPattern, functional
from bsparse_torch.compat import CompatibilityWarning
from bsparse_torch.compat.pytorch_block_sparse._blocks import layer_of
from bsparse_torch.compat.pytorch_block_sparse.block_sparse import BlockSparseMatrix
from bsparse_torch.compat.pytorch_block_sparse.checkpoint import replace_old_keys

__all__ = ["BlockSparseLinear", "BlockSparseLinearFunction", "PseudoBlockSparseLinear"]


class BlockSparseLinear(bsparse_torch.BlockSparseLinear):
    """A `bsparse_torch.BlockSparseLinear` that is made and looked at as in pytorch_block_sparse.

    density: of blocks, in (0, 1]; the pattern is balanced over the block rows, and follows torch's seed.
    torch_nn_linear: take sizes, bias, dtype, device and weights from this `nn.Linear`; the blocks of largest norm stay
        as they are and the others are dropped. Then in_features, out_features and bias are ignored.
    verbose: kept as an attribute, without effect.
    block_shape: (rows along out_features, columns along in_features).
    init: "fan_in", or "legacy_scramble" for what the old library did with `torch_nn_linear`: the first values of its
        weight, in random blocks, divided by sqrt(density).

    `weight` is a `BlockSparseMatrix` that shows the layer's own tensors. State dicts of pytorch_block_sparse and of
    `nn.Linear` load as well; the latter is pruned to the layer's density, with a CompatibilityWarning.
    """

    verbose = False  # of layers that from_linear and its like make

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        density: float = 0.5,
        torch_nn_linear: nn.Linear | None = None,
        verbose: bool = False,
        block_shape: tuple[int, int] = (32, 32),
        *,
        init: str = "fan_in",
    ) -> None:
        if init not in ("fan_in", "legacy_scramble") or (init == "legacy_scramble" and torch_nn_linear is None):
            raise ValueError(f'init is "{init}"; it must be "fan_in", or with torch_nn_linear also "legacy_scramble"')
        if not isinstance(torch_nn_linear, nn.Linear | None):
            raise TypeError(f"torch_nn_linear is a {type(torch_nn_linear).__name__}; it must be an nn.Linear or None")
        if torch_nn_linear is None:
            warnings.warn(
                "BlockSparseLinear initialises like nn.Linear, by the fan-in that the pattern leaves; "
                "pytorch_block_sparse drew from N(0, 1).",
                CompatibilityWarning,
                stacklevel=2,
            )
            super().__init__(in_features, out_features, bias, density=density, block=block_shape)
        else:
            source = _from_linear(torch_nn_linear, density, block_shape, init)
            super().__init__(
                source.in_features, source.out_features, device="meta", block=block_shape, pattern=source.pattern
            )
            self.values, self.bias = source.values, source.bias
            self.row_offsets, self.col_indices = source.row_offsets, source.col_indices
            self.train(torch_nn_linear.training)
        self.verbose = verbose

    def _build(self, *arguments: Any) -> None:
        super()._build(*arguments)
        self._modules["weight"] = BlockSparseMatrix.of_layer(self)  # add_module refuses the name of a property

    @property
    def weight(self) -> BlockSparseMatrix:  # type: ignore[override]
        """The layer's weight with the old methods. Setting it to another matrix copies that one's blocks and values."""
        matrix = self._modules["weight"]
        assert isinstance(matrix, BlockSparseMatrix)
        return matrix

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "weight":
            super().__setattr__(name, value)
            return
        if not isinstance(value, BlockSparseMatrix) or value.shape != self.weight.shape:
            found = tuple(value.shape) if hasattr(value, "shape") else value
            raise ValueError(
                f"weight is a {type(value).__name__} {found}; it must be a BlockSparseMatrix {tuple(self.weight.shape)}"
            )
        given = layer_of(value.layer.values, value.layer.pattern)
        self.block, self.values = given.block, given.values
        self.row_offsets, self.col_indices = given.row_offsets, given.col_indices

    @property
    def block_count(self) -> int:
        return self.values.shape[0]

    @property
    def block_shape(self) -> tuple[int, int]:
        return self.block

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if prefix + "weight.cols_a" in state_dict:
            replace_old_keys(state_dict, prefix + "weight.", prefix)
        elif prefix + "weight" in state_dict:
            self._prune_dense_entry(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _prune_dense_entry(self, state_dict: dict[str, Any], prefix: str) -> None:
        dense = state_dict.pop(prefix + "weight")  # [out_features, in_features]
        if tuple(dense.shape) != (self.out_features, self.in_features):
            raise ValueError(
                f"{prefix}weight has shape {tuple(dense.shape)}; the layer is {(self.out_features, self.in_features)}"
            )
        warnings.warn(
            "a dense weight was loaded into a BlockSparseLinear, which kept its blocks of largest norm at its density",
            CompatibilityWarning,
            stacklevel=2,
        )
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(dense)
        pruned = bsparse_torch.BlockSparseLinear.from_linear(linear, density=self.density, block=self.block)
        state_dict.update(pruned.state_dict(prefix=prefix))


def _from_linear(
    linear: nn.Linear, density: float, block: tuple[int, int], init: str
) -> bsparse_torch.BlockSparseLinear:
    if init == "fan_in" or density == 1:  # at full density the old library copied exactly, too
        warnings.warn(
            "BlockSparseLinear(torch_nn_linear=...) keeps the blocks of largest norm where they are; "
            'pytorch_block_sparse scattered values at random, which init="legacy_scramble" brings back.',
            CompatibilityWarning,
            stacklevel=3,
        )
        return bsparse_torch.BlockSparseLinear.from_linear(linear, density=density, block=block, choose="magnitude")
    weight = linear.weight.detach()  # [out_features, in_features]
    BlockSparseMatrix.blocks_count_(weight.shape, block)  # raises where blocks would stand over the edge
    pattern = BlockPattern.random((weight.shape[0], weight.shape[1]), density, block)
    scalars = weight.flatten()[: pattern.blocks * block[0] * block[1]]
    values = scalars.view(-1, block[1], block[0]).transpose(1, 2)  # [blocks, block_rows, block_cols]
    layer = layer_of(values / math.sqrt(density), pattern)
    layer.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())
    return layer


class BlockSparseLinearFunction:
    """Called as the old autograd function was, `BlockSparseLinearFunction.apply(x, weight_data, weight)`."""

    @staticmethod
    def apply(input: Tensor, weight_data: Tensor, weight: BlockSparseMatrix) -> Tensor:
        """input [..., cols] times the transpose of `weight` with the values `weight_data`: [..., rows]."""
        values = weight.as_values("weight_data", weight_data)
        return functional.block_sparse_linear(input, values, weight.layer.pattern)


class PseudoBlockSparseLinear(nn.Module):
    """The dense twin of a block-sparse layer, for comparisons: F.linear(x, weight * mask, bias)."""

    mask: Tensor

    def __init__(self, block_sparse_linear: bsparse_torch.BlockSparseLinear) -> None:
        super().__init__()
        matrix = BlockSparseMatrix.of_layer(block_sparse_linear)
        dense = matrix.to_dense().detach()  # [out_features, in_features]
        self.weight = nn.Parameter(dense, block_sparse_linear.values.requires_grad)
        self.bias = block_sparse_linear.bias
        self.register_buffer("mask", matrix.to_dense(torch.ones_like(matrix.data)) == 1)
        self.in_features = block_sparse_linear.in_features
        self.out_features = block_sparse_linear.out_features
        self.density = block_sparse_linear.density
        self.train(block_sparse_linear.training)

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight * self.mask, self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, density={self.density}"
