"""BlockSparseLinear: a linear layer that stores and multiplies only some blocks of its weight."""

from typing import Any

import torch
from torch import Tensor, nn

from bsparse_core import InvalidArgument, Unsupported
from bsparse_torch import choosing, functional, init, masks, positions, state
from bsparse_torch.changes import ChangeablePattern
from bsparse_torch.pattern import BLOCK, BlockPattern, check_format, check_semi24, make_pattern
from bsparse_torch.plans import DTYPE_NAMES
from bsparse_torch.report import report
from bsparse_torch.standin import DenseWeight


class BlockSparseLinear(ChangeablePattern):
    """y = act(x W^T + bias), where W [out_features, in_features] is stored as blocks.

    Args:
        in_features, out_features: any sizes; edge blocks are stored whole, their padding stays zero.
        density: fraction of the blocks to store, in (0, 1]; used where pattern is a name.
        block: block_rows (along out_features) and block_cols (along in_features), or one int.
        format: "bsr": whole blocks. "bsr24": blocks that keep 2 of every 4 numbers along a row; block_cols a multiple
            of 8. "semi24": the whole weight 2 of 4, without blocks; in_features a multiple of 8. On the CPU.
        pattern: "balanced" (the same number of blocks in every block row), "random", a bool block mask, or a
            BlockPattern, whose block and format it then takes. Not for "semi24".
        generator: draws the pattern, the positions of 2:4 formats and the first values; None: torch's own.
        activation: None, "relu", "gelu", "gelu_tanh" or "silu", computed in the same pass as the product, except on
            CUDA in training and under torch.compile. The attribute may be set later; like the choice of a module, it is
            not part of a state_dict.
        backend: "bsparse" multiplies the stored blocks; "dense" unpacks them and calls torch.nn.functional.linear;
            "auto" does that where it is predicted to be faster, and report() tells. An attribute as activation is.

    `values` [blocks, block_rows, block_cols] is an ordinary Parameter; `row_offsets` and `col_indices` are buffers.
    2:4 formats: `values` [blocks, block_rows, block_cols / 2], in semi24 [out_features, in_features / 2]; a third
    buffer `metadata`, uint8, a quarter as wide, says which numbers they are (None in "bsr"). Their gradient is that of
    the kept numbers; `reprune` keeps others.
    There is no Parameter `weight`: `layer.weight` can be asked for dtype, device and shape, and nothing else.

    Raises:
        bsparse_torch.InvalidArgument: an argument out of its range; the message names it.
        bsparse_torch.Unsupported: a format that this version does not serve.
    """

    values: nn.Parameter
    bias: nn.Parameter | None
    activation: str | None = None  # here also for layers that were pickled before they had one
    backend: str = "bsparse"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        density: float = 0.5,
        block: Any = BLOCK,
        format: str = "bsr",
        pattern: Any = "balanced",
        generator: torch.Generator | None = None,
        activation: str | None = None,
        backend: str = "bsparse",
    ) -> None:
        functional.check_activation(activation)
        functional.check_backend(backend)
        made = make_pattern((out_features, in_features), density, block, pattern, generator, format)
        self._build(in_features, out_features, made.blocks, made.block, bias, device, dtype, made.format)
        self._bind(made.copied_to(self.values.device))  # its own tensors: other layers may have the same pattern
        self.reset_parameters(generator)
        self.activation, self.backend = activation, backend

    def _build(
        self,
        in_features: int,
        out_features: int,
        blocks: int,
        block: tuple[int, int],
        bias: bool,
        device: Any,
        dtype: torch.dtype | None,
        format: str,
    ) -> None:
        """An uninitialised layer without a pattern."""
        super().__init__(in_features, out_features, blocks, block, format, device)
        dtype = dtype or torch.get_default_dtype()
        if dtype not in DTYPE_NAMES:
            raise InvalidArgument(f"dtype is {dtype}; it must be torch.float32, float16, bfloat16 or float64")
        shape, _ = positions.shapes(format, (out_features, in_features), blocks, block)
        self.values = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None

    # making one ------------------------------------------------------------------------------------------------

    @classmethod
    def empty(
        cls,
        in_features: int,
        out_features: int,
        blocks: int,
        block: Any = BLOCK,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        format: str = "bsr",
    ) -> "BlockSparseLinear":
        """A placeholder with room for so many blocks and no pattern yet: load a state_dict, or set its tensors.

        "semi24" has one block, of the weight's shape.
        """
        check_format(format)
        if format == "semi24":
            check_semi24((out_features, in_features), None, block)
            blocks, block = 1, (out_features, in_features)
        layer = cls.__new__(cls)
        layer._build(in_features, out_features, blocks, masks.block_pair(block), bias, device, dtype, format)
        return layer

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        density: float | None = None,
        block: Any = BLOCK,
        *,
        choose: str = "magnitude",
        mask: Any = None,
        format: str = "bsr",
        activation: str | None = None,
    ) -> "BlockSparseLinear":
        """The blocks of a dense layer that are worth keeping, their weights unchanged.

        Args:
            density: fraction of the blocks to keep; None: 0.5 with "magnitude".
            choose: "magnitude": the blocks of largest L2 norm over the whole matrix; "nonzero": every block that
                holds a nonzero.
            mask: bool [block rows, block columns], instead of both.
            format: "bsr", or a 2:4 one. With "magnitude" these keep the two largest of every four, in float32 the
                larger of each two; bsr24 those blocks whose kept numbers have the largest norm. With "nonzero" every
                nonzero must fit. mask may also be bool [out_features, in_features], which numbers to keep, at most two
                of every four columns; bsr24 then stores the blocks that hold one.
            activation: what the layer computes after the product, and linear does not.

        dtype, device, requires_grad and the training flag are those of linear; nothing is shared with it.
        """
        check_format(format)
        functional.check_activation(activation)
        if not isinstance(linear, nn.Linear):
            raise InvalidArgument(
                f"linear is a {type(linear).__name__}; it must be an nn.Linear: copy its weight, "
                "[out_features, in_features], into one"
            )
        if linear.weight.is_meta:
            raise InvalidArgument("linear.weight is on the meta device and holds no values: load it, then try again")
        weight = linear.weight
        pattern, metadata, kept = choosing.choose(weight.detach(), density, block, choose, mask, format)
        values = nn.Parameter(functional.pack(kept, pattern, metadata), weight.requires_grad)
        bias = None
        if linear.bias is not None:
            bias = nn.Parameter(linear.bias.detach().clone(), linear.bias.requires_grad)
        layer = cls._of(pattern, values, bias, metadata).train(linear.training)
        layer.activation = activation
        return layer

    @classmethod
    def from_torch_bsr(cls, bsr: Tensor, bias: Tensor | None = None) -> "BlockSparseLinear":
        """A layer over the values of a torch BSR tensor [out_features, in_features] and over bias, without a copy."""
        if not isinstance(bsr, Tensor):
            raise InvalidArgument(
                f"bsr is a {type(bsr).__name__}; it must be a tensor: pass dense.to_sparse_bsr((8, 8))"
            )
        if bsr.layout is not torch.sparse_bsr or bsr.dim() != 2:
            raise InvalidArgument(
                f"bsr is {bsr.dim()}-D with layout {bsr.layout}; it must be 2-D torch.sparse_bsr: "
                "pass dense.to_sparse_bsr((64, 64))"
            )
        values = bsr.values().detach()  # [blocks, block_rows, block_cols]
        shape, block = (bsr.shape[0], bsr.shape[1]), (values.shape[1], values.shape[2])
        pattern = BlockPattern(bsr.crow_indices(), bsr.col_indices(), shape, block)
        state.check_values(values, pattern)
        if bias is not None:
            state.check_bias(bias, shape[0])
        return cls._of(pattern, nn.Parameter(values), None if bias is None else nn.Parameter(bias.detach()))

    @classmethod
    def _of(
        cls, pattern: BlockPattern, values: nn.Parameter, bias: nn.Parameter | None, metadata: Tensor | None = None
    ) -> "BlockSparseLinear":
        """A layer that holds these tensors."""
        layer = cls.empty(pattern.cols, pattern.rows, 0, pattern.block, False, "meta", values.dtype, pattern.format)
        layer.values, layer.bias, layer._buffers["metadata"] = values, bias, metadata
        layer._bind(pattern)
        return layer

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws values and bias as nn.Linear does, for the fan-in that the pattern leaves; see init.uniform.

        Draws positions of 2:4 formats, too.
        """
        if not self.values.is_meta:
            init.uniform(self.values, self.bias, self.pattern, generator, self.metadata)

    # using it --------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] to y [..., out_features]."""
        self._notice_writing()
        given = x, self.values, self.bias, self.pattern, *self._indices()
        return functional.linear(*given, self.activation, self.backend, self._buffers["metadata"])

    @property
    def density(self) -> float:
        """Stored blocks over all blocks, and half of that in a 2:4 format."""
        return self.pattern.density

    @property
    def weight(self) -> Tensor:
        """A stand-in with the dense weight's dtype, device and shape. Computing with it raises Unsupported.

        In a graph of torch.compile, which cannot hold one, it is a meta tensor.
        """
        shape = self.out_features, self.in_features
        if torch.compiler.is_compiling():
            return torch.empty(shape, dtype=self.values.dtype, device="meta")
        return DenseWeight(self.values, shape)

    def to_dense(self) -> Tensor:
        """The dense weight [out_features, in_features]. Differentiable."""
        return functional.unpack(self.values, self.pattern, self.metadata)

    def to_linear(self) -> nn.Linear:
        """An nn.Linear with the same outputs: what is not stored becomes zeros.

        Raises Unsupported for a layer with an activation, which no nn.Linear computes.
        """
        if self.activation is not None:
            raise Unsupported(
                f"activation is {self.activation!r}; an nn.Linear has none: set layer.activation = None, and apply "
                f"{self.activation} to what the nn.Linear returns"
            )
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta", dtype=self.values.dtype)
        linear.weight = nn.Parameter(self.to_dense().detach(), self.values.requires_grad)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.detach().clone(), self.bias.requires_grad)
        return linear.train(self.training)

    def to_torch_bsr(self) -> Tensor:
        """The weight as a torch.sparse_bsr tensor that shares the values' storage."""
        if self.format != "bsr":
            raise Unsupported(f"torch's BSR stores whole blocks, and format is {self.format}: use to_dense()")
        if self.out_features % self.block[0] or self.in_features % self.block[1]:
            raise Unsupported(
                f"torch's BSR has no edge blocks: {self.out_features} x {self.in_features} is not a multiple of block "
                f"{self.block[0]} x {self.block[1]}; use to_dense()"
            )
        return torch.sparse_bsr_tensor(
            self.row_offsets,
            self.col_indices,
            self.values.detach(),
            (self.out_features, self.in_features),
            check_invariants=False,  # the pattern was checked when it was made
        )

    def report(self, tokens: int = 128) -> dict[str, Any]:
        """Plain data: format, block, blocks, density, dtype, device, activation; kernels of forward, grad_input and
        grad_weight for this many tokens; bytes of the weight and bias, dense and sparse; backend, the predicted gain
        over dense, dense_path (whether the forward is dense) and its reason."""
        return report(self.values, self.bias, self.pattern, tokens, self.activation, self.backend)

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        stored = "no pattern yet" if self._pattern is None else f"density={self.density:.3g}"
        blocks = f"format={self.format!r}, block={self.block}, blocks={self.col_indices.shape[0]}"
        activation = "" if self.activation is None else f", activation={self.activation!r}"
        backend = "" if self.backend == "bsparse" else f", backend={self.backend!r}"
        return f"{shape}, {blocks}, {stored}{activation}{backend}"
