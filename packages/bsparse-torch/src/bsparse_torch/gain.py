"""When the dense product would be faster: the one place that predicts it, from a table for each kind of device.

    gain = dense seconds / block-sparse seconds

The dense product takes what its arithmetic takes, or reading its weight where that is longer; the block-sparse one
takes density / break_even of that. Both take `call` seconds more, which is what makes tiny layers not worth it.
"""

import sys
from typing import NamedTuple

import torch

from bsparse_torch.pattern import BlockPattern

WORTHWHILE = 1.05  # a predicted gain over dense below this is not worth a block-sparse layer
FEW_TOKENS = 64  # with so many or fewer the product waits for the weight
NEVER = sys.maxsize


class Machine(NamedTuple):
    """How fast a kind of device is, and at which density the two products take equal time."""

    break_even: tuple[tuple[int, float], ...]  # (least block_rows, density), tallest first: many tokens
    break_even_few: float  # the same with few tokens
    break_even_24: float | None  # density of blocks that are 2:4 inside, with any number of tokens; None: no kernel
    multiplications: dict[torch.dtype, float]  # of the dense product, a second
    bytes: float  # from memory, a second
    call: float  # seconds


MACHINES = {
    "cuda": Machine(  # an NVIDIA H200
        break_even=((128, 0.9), (64, 0.75), (32, 0.35), (16, 0.08), (1, 0.01)),
        break_even_few=0.6,
        break_even_24=None,
        multiplications={torch.bfloat16: 3.9e14, torch.float16: 3.9e14, torch.float32: 2.5e13},
        bytes=4.2e12,
        call=3e-6,
    ),
    "cpu": Machine(  # two cores of an AMD EPYC (Zen 4)
        break_even=((1, 1.0),),
        break_even_few=1.0,
        break_even_24=1.0,
        multiplications={torch.bfloat16: 2.1e11, torch.float16: 2.1e11, torch.float32: 9.5e10, torch.float64: 4e10},
        bytes=2e10,
        call=0.0,
    ),
}


def predicted_gain(pattern: BlockPattern, tokens: int, dtype: torch.dtype, device: torch.device) -> float:
    """How many times faster than torch.nn.functional.linear the forward is, by the table; 0 where no kernel serves it.

    The meta device counts as the CPU.
    """
    machine = _machine(pattern, dtype, device)
    if machine is None:
        return 0.0
    dense = _dense_seconds(machine, pattern, tokens, dtype)
    sparse = dense * _share(machine, pattern, tokens) + machine.call
    return (dense + machine.call) / sparse if sparse else float("inf")


def dense_from(pattern: BlockPattern, dtype: torch.dtype, device: torch.device) -> int:
    """The least number of tokens with which the dense product is predicted to be faster, NEVER where none is.

    Its time includes unpacking the values, which with few tokens is taken to cost more than it gains.
    """
    machine = _machine(pattern, dtype, device)
    if machine is None:
        return 0
    excess = _share(machine, pattern, FEW_TOKENS + 1) - 1
    if excess <= 0:
        return NEVER
    weights = pattern.rows * pattern.cols
    unpacking = 3 * weights * dtype.itemsize / machine.bytes  # zeros written, values read and written
    if excess * _dense_seconds(machine, pattern, FEW_TOKENS + 1, dtype) > unpacking:
        return FEW_TOKENS + 1
    return int(unpacking / excess * machine.multiplications[dtype] / weights) + 1


def _machine(pattern: BlockPattern, dtype: torch.dtype, device: torch.device) -> Machine | None:
    """None where no kernel serves this format and dtype on this device."""
    machine = MACHINES.get("cpu" if device.type == "meta" else device.type)
    if machine is None or dtype not in machine.multiplications:
        return None
    return None if pattern.format != "bsr" and machine.break_even_24 is None else machine


def _dense_seconds(machine: Machine, pattern: BlockPattern, tokens: int, dtype: torch.dtype) -> float:
    weights = pattern.rows * pattern.cols
    return max(tokens * weights / machine.multiplications[dtype], weights * dtype.itemsize / machine.bytes)


def _share(machine: Machine, pattern: BlockPattern, tokens: int) -> float:
    """Block-sparse over dense, but for what a call costs; padding is multiplied, too."""
    height, width = pattern.block
    density = pattern.blocks * height * width / (pattern.rows * pattern.cols)
    if pattern.format != "bsr" and machine.break_even_24 is not None:
        return density / machine.break_even_24
    if tokens <= FEW_TOKENS:
        return density / machine.break_even_few
    return density / next(even for least, even in machine.break_even if height >= least)
