"""BlockSparseLinear: a linear layer that stores and multiplies only some blocks of its weight."""

from typing import Any

import torch
from torch import Tensor, nn

from bsparse_core import BsparseError, InvalidArgument, Unsupported
from bsparse_torch import functional, init, masks, optim, state
from bsparse_torch.buffers import PatternBuffers
from bsparse_torch.pattern import BLOCK, BlockPattern, check_fits, check_format, make_pattern
from bsparse_torch.plans import DTYPE_NAMES
from bsparse_torch.report import report
from bsparse_torch.standin import DenseWeight


class BlockSparseLinear(PatternBuffers):
    """y = act(x W^T + bias), where W [out_features, in_features] is stored as blocks.

    Args:
        in_features, out_features: any sizes; edge blocks are stored whole, their padding stays zero.
        density: fraction of the blocks to store, in (0, 1]; used where pattern is a name.
        block: block_rows (along out_features) and block_cols (along in_features), or one int.
        format: "bsr".
        pattern: "balanced" (the same number of blocks in every block row), "random", a bool block mask, or a
            BlockPattern, whose block it then takes.
        generator: draws the pattern and the first values; None: torch's own.
        activation: None, "relu", "gelu", "gelu_tanh" or "silu", computed in the same pass as the product, except on
            CUDA in training and under torch.compile. The attribute may be set later; like the choice of a module, it is
            not part of a state_dict.
        backend: "bsparse" multiplies the stored blocks; "dense" unpacks them and calls torch.nn.functional.linear;
            "auto" does that where it is predicted to be faster, and report() tells. An attribute as activation is.

    `values` [blocks, block_rows, block_cols] is an ordinary Parameter; `row_offsets` and `col_indices` are buffers.
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
        check_format(format)
        functional.check_activation(activation)
        functional.check_backend(backend)
        made = make_pattern((out_features, in_features), density, block, pattern, generator)
        self._build(in_features, out_features, made.blocks, made.block, bias, device, dtype)
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
    ) -> None:
        """An uninitialised layer without a pattern."""
        super().__init__(in_features, out_features, blocks, block, device)
        dtype = dtype or torch.get_default_dtype()
        if dtype not in DTYPE_NAMES:
            raise InvalidArgument(f"dtype is {dtype}; it must be torch.float32, float16, bfloat16 or float64")
        self.format = "bsr"
        self.values = nn.Parameter(torch.empty(blocks, *block, device=device, dtype=dtype))
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
    ) -> "BlockSparseLinear":
        """A placeholder with room for so many blocks and no pattern yet: load a state_dict, or set its tensors."""
        layer = cls.__new__(cls)
        layer._build(in_features, out_features, blocks, masks.block_pair(block), bias, device, dtype)
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
        weight, pair = linear.weight, masks.block_pair(block)
        if mask is None:
            mask = masks.choose_blocks(weight, pair, density, choose)
        elif density is not None or choose != "magnitude":
            raise InvalidArgument(f"mask is given beside density = {density} and choose = {choose!r}: pass only one")
        pattern = BlockPattern.from_mask(mask, pair, (weight.shape[0], weight.shape[1]), weight.device)
        values = nn.Parameter(functional.pack(weight.detach(), pattern), weight.requires_grad)
        bias = None
        if linear.bias is not None:
            bias = nn.Parameter(linear.bias.detach().clone(), linear.bias.requires_grad)
        layer = cls._of(pattern, values, bias).train(linear.training)
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
    def _of(cls, pattern: BlockPattern, values: nn.Parameter, bias: nn.Parameter | None) -> "BlockSparseLinear":
        """A layer that holds these tensors."""
        layer = cls.empty(pattern.cols, pattern.rows, 0, pattern.block, False, "meta", values.dtype)
        layer.values, layer.bias = values, bias
        layer._bind(pattern)
        return layer

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws values and bias as nn.Linear does, for the fan-in that the pattern leaves; see init.uniform."""
        if not self.values.is_meta:
            init.uniform(self.values, self.bias, self.pattern, generator)

    # using it --------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] to y [..., out_features]."""
        self._notice_writing()
        indices = self._indices()
        return functional.linear(x, self.values, self.bias, self.pattern, *indices, self.activation, self.backend)

    @property
    def density(self) -> float:
        """Stored blocks over all blocks."""
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
        return functional.unpack(self.values, self.pattern)

    def to_linear(self) -> nn.Linear:
        """An nn.Linear with the same outputs: the blocks that are not stored become zeros.

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

    # changing its pattern --------------------------------------------------------------------------------------

    def set_pattern(self, pattern: Any, fill: float = 0.0, optimizer: Any = None) -> None:
        """Takes another pattern of the same block, in place; blocks that both store keep their values.

        Args:
            pattern: a BlockPattern, or a bool block mask.
            fill: the value of new blocks.
            optimizer: the one that trains values: its state moves with the blocks and is zero for new ones.

        The Parameter stays the same object; its gradient is dropped. Where the number of blocks changes,
        DistributedDataParallel has to be made anew: it has laid out its buckets by then.
        """
        if not isinstance(pattern, BlockPattern):
            pattern = BlockPattern.from_mask(pattern, self.block, (self.out_features, self.in_features))
        check_fits(pattern, (self.out_features, self.in_features), self.block)
        moving = {} if optimizer is None else optim.movable_state(optimizer, self.values)
        pattern = pattern.copied_to(self.values.device)
        source, target = optim.common_blocks(self.pattern, pattern)
        values = optim.move_blocks(self.values.detach(), source, target, pattern.blocks, fill)
        init.zero_padding(values, pattern)
        for name, entry in moving.items():
            optimizer.state[self.values][name] = optim.move_blocks(entry, source, target, pattern.blocks)
        self._resize(values)
        self._bind(pattern)

    def _resize(self, values: Tensor) -> None:
        """Gives the Parameter other values, perhaps more or fewer blocks."""
        self.values.grad = None
        if values.shape != self.values.shape:
            optim.watch(self.values)
            # A graph that still lives, say of the last loss, expects gradients of the old shape. torch forgets that
            # expectation when the dtype changes (VariableHooks::set_data), so it changes, for a moment.
            self.values.data = values.new_empty(0, dtype=torch.complex64)
        self.values.data = values

    # saving and loading ----------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        """{version, format, block, in_features, out_features}."""
        return state.extra_state(self.format, self.block, self.in_features, self.out_features)

    def set_extra_state(self, found: Any) -> None:
        """Checks a checkpoint's extra state; it changes nothing."""
        state.check_extra_state(found, self.get_extra_state())

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Checks everything first, makes room for the checkpoint's blocks, then lets torch copy or assign.

        A checkpoint without extra state, as safetensors have none, is taken for one of this layer's kind.
        """
        try:
            pattern = state.read_pattern(state_dict, prefix, self.get_extra_state(), self.bias)
        except BsparseError as error:
            error_msgs.append(state.sentence(prefix, error))
            return
        if pattern is not None:
            if pattern.values_shape != tuple(self.values.shape):
                self._resize(self.values.new_empty(pattern.values_shape))
            self._bind(pattern.copied_to(self.values.device))
        rest = (strict, missing_keys, unexpected_keys, error_msgs)
        complete = {prefix + state.EXTRA: self.get_extra_state(), **state_dict}
        super()._load_from_state_dict(complete, prefix, local_metadata, *rest)
        if pattern is not None:
            self._bind(pattern.copied_to(self.values.device))

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        stored = "no pattern yet" if self._pattern is None else f"density={self.density:.3g}"
        blocks = f"format={self.format!r}, block={self.block}, blocks={self.values.shape[0]}"
        activation = "" if self.activation is None else f", activation={self.activation!r}"
        backend = "" if self.backend == "bsparse" else f", backend={self.backend!r}"
        return f"{shape}, {blocks}, {stored}{activation}{backend}"
