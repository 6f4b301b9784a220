"""ChangeablePattern: how a layer takes another pattern: by set_pattern, by reprune, or from a state_dict."""

from typing import Any

import torch
from torch import Tensor, nn

from bsparse_core import BsparseError
from bsparse_torch import functional, init, optim, positions, state
from bsparse_torch.buffers import PatternBuffers
from bsparse_torch.pattern import BlockPattern, check_fits


class ChangeablePattern(PatternBuffers):
    """What BlockSparseLinear does where its pattern, or what a 2:4 format keeps, changes in place."""

    bias: nn.Parameter | None

    def set_pattern(self, pattern: Any, fill: float = 0.0, optimizer: Any = None) -> None:
        """Takes another pattern of the same block, in place; blocks that both store keep their values.

        Args:
            pattern: a BlockPattern, or a bool block mask.
            fill: the value of new blocks. In bsr24 they keep columns 0 and 2 of every four; see reprune.
            optimizer: the one that trains values: its state moves with the blocks and is zero for new ones.

        The Parameter stays the same object; its gradient is dropped. Where the number of blocks changes,
        DistributedDataParallel has to be made anew: it has laid out its buckets by then.
        """
        if not isinstance(pattern, BlockPattern):
            shape = self.out_features, self.in_features
            pattern = BlockPattern.from_mask(pattern, self.block, shape, format=self.format)
        check_fits(pattern, (self.out_features, self.in_features), self.block, self.format)
        if self.format == "semi24":
            return  # there is only one
        moving = {} if optimizer is None else optim.movable_state(optimizer, self.values)
        pattern = pattern.copied_to(self.values.device)
        source, target = optim.common_blocks(self.pattern, pattern)
        values = optim.move_blocks(self.values.detach(), source, target, pattern.blocks, fill)
        metadata = self.metadata
        if metadata is not None:
            metadata = optim.move_blocks(metadata, source, target, pattern.blocks, positions.NEUTRAL)
        init.zero_padding(values, pattern, metadata)
        for name, entry in moving.items():
            optimizer.state[self.values][name] = optim.move_blocks(entry, source, target, pattern.blocks)
        self._resize(values)
        self._buffers["metadata"] = metadata
        self._bind(pattern)

    @torch.no_grad()
    def reprune(self, scores: Tensor, optimizer: Any = None) -> None:
        """Keeps the numbers of largest score of each group in the stored blocks of a 2:4 format, in place.

        Args:
            scores: [out_features, in_features], compared by magnitude, in a float32 layer by pairs of columns: say
                to_dense() plus a share of a dense gradient. NaN is largest.
            optimizer: the one that trains values: its state moves with the numbers and is zero for new ones.

        A number that was kept before has its value still; new ones are 0. To take the values of a dense weight:
        layer.values.data.copy_(functional.pack(weight, layer.pattern, layer.metadata)). The Parameter stays the same
        object; its gradient is dropped. Raises InvalidArgument for another shape, or where the format is "bsr".
        """
        moving = {} if optimizer is None else optim.movable_state(optimizer, self.values)
        pattern, before = self.pattern, self.metadata
        after = functional.choose_positions(scores.to(self.values.device, self.values.dtype), pattern)
        assert before is not None  # choose_positions refuses "bsr"
        for entry in (self.values, *moving.values()):
            entry.copy_(functional.pack(functional.unpack(entry, pattern, before), pattern, after))
        self.values.grad = None
        before.copy_(after)

    def _resize(self, values: Tensor) -> None:
        """Gives the Parameter other values, perhaps more or fewer blocks."""
        self.values.grad = None
        if values.shape != self.values.shape:
            optim.watch(self.values)
            # A graph that still lives, say of the last loss, expects gradients of the old shape. torch forgets that
            # expectation when the dtype changes (VariableHooks::set_data), so it changes, for a moment.
            self.values.data = values.new_empty(0, dtype=torch.complex64)
        self.values.data = values

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
            if self.metadata is not None and pattern.metadata_shape is not None:
                self._buffers["metadata"] = self.metadata.new_empty(pattern.metadata_shape)
            self._bind(pattern.copied_to(self.values.device))
        rest = (strict, missing_keys, unexpected_keys, error_msgs)
        complete = {prefix + state.EXTRA: self.get_extra_state(), **state_dict}
        super()._load_from_state_dict(complete, prefix, local_metadata, *rest)
        if pattern is not None:
            self._bind(pattern.copied_to(self.values.device))
