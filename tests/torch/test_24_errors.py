"""What the 2:4 formats refuse, with a message that names it."""

import pytest
import torch
from torch import nn

from bsparse_torch import BlockPattern, BlockSparseLinear, InvalidArgument, Unsupported
from bsparse_torch import functional as F

REFUSED = {
    "columns": (lambda: BlockSparseLinear(44, 32, format="semi24"), "cols is 44; in semi24 it must be a multiple of 8"),
    "density": (
        lambda: BlockSparseLinear(48, 32, format="semi24", density=0.25),
        'density is 0.25; semi24 keeps 2 of every 4 of the whole weight, which is 0.5: leave it out, or use format="b',
    ),
    "block": (
        lambda: BlockSparseLinear(48, 32, format="semi24", block=16),
        r"block is 16; semi24 stores the weight as one block, \(32, 48\): leave it out",
    ),
    "pattern": (
        lambda: BlockSparseLinear(48, 32, format="semi24", pattern="random"),
        "pattern is 'random'; semi24 stores the whole weight as one block",
    ),
    "narrow blocks": (
        lambda: BlockSparseLinear(48, 32, format="bsr24", block=4),
        "block_cols is 4; in bsr24 it must be a multiple of 8",
    ),
    "narrow blocks of empty": (
        lambda: BlockSparseLinear.empty(48, 32, 3, 12, format="bsr24"),
        "block_cols is 12; in bsr24 it must be a multiple of 8: pass 64",
    ),
    "empty": (lambda: BlockSparseLinear.empty(44, 32, 1, format="semi24"), "in_features is 44; in semi24 it must be"),
    "from_mask": (
        lambda: BlockPattern.from_mask([[True]], 8, format="semi24"),
        r"format is semi24, in which no blocks are chosen: use BlockPattern.semi24\(shape\)",
    ),
    "other format": (
        lambda: BlockSparseLinear(48, 32, format="bsr24", pattern=BlockPattern.random((32, 48), 0.5, 16)),
        "pattern has format bsr; the layer has bsr24",
    ),
    "from_linear density": (
        lambda: BlockSparseLinear.from_linear(nn.Linear(48, 32), 0.25, format="semi24"),
        "density is 0.25; semi24 keeps 2 of every 4",
    ),
    "from_linear choose": (
        lambda: BlockSparseLinear.from_linear(nn.Linear(48, 32), choose="luck", format="semi24"),
        "choose is 'luck'; it must be one of magnitude, nonzero",
    ),
    "crowded": (
        lambda: BlockSparseLinear.from_linear(nn.Linear(48, 32), choose="nonzero", format="semi24"),
        "mask keeps 4 of columns 0 to 3 in row 0; semi24 keeps at most 2 of every 4: drop some, or let the largest be",
    ),
    "crowded block": (
        lambda: BlockSparseLinear.from_linear(nn.Linear(48, 32), mask=one_crowded_group(), block=8, format="bsr24"),
        "mask keeps 3 of columns 20 to 23 in row 9; bsr24 keeps at most 2",
    ),
    "mask shape": (
        lambda: BlockSparseLinear.from_linear(nn.Linear(48, 32), mask=[[True]], block=16, format="bsr24"),
        r"mask has shape \[1, 1\]; it must be \[32, 48\], one entry a number, or \[2, 3\], one entry a block",
    ),
    "block mask": (
        lambda: BlockSparseLinear.from_linear(nn.Linear(48, 32), mask=[[True]], format="semi24"),
        r"mask has shape \[1, 1\]; it must be \[32, 48\], one entry a number",
    ),
    "reprune of bsr": (
        lambda: BlockSparseLinear(48, 32, block=16).reprune(torch.zeros(32, 48)),
        "pattern has format bsr, which keeps whole blocks: pass one of bsr24 or semi24",
    ),
    "reprune shape": (
        lambda: BlockSparseLinear(48, 32, format="semi24").reprune(torch.zeros(48, 32)),
        r"dense has shape \[48, 32\]; the pattern's is \[32, 48\]",
    ),
    "set_pattern": (
        lambda: BlockSparseLinear(48, 32, format="semi24").set_pattern([[True]]),
        "format is semi24, in which no blocks are chosen",
    ),
    "mask dtype": (
        lambda: F.choose_positions(torch.zeros(8, 8), BlockPattern.semi24((8, 8)), torch.ones(8, 8)),
        "mask has dtype torch.float32; it must be torch.bool, one entry a number: pass mask != 0",
    ),
}


def one_crowded_group():
    mask = torch.zeros(32, 48, dtype=torch.bool)
    mask[9, 20:23] = True
    return mask


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    call, message = REFUSED[name]
    with pytest.raises(InvalidArgument, match=message):
        call()


METADATA = {
    "missing": (lambda m: None, r"metadata is missing; a pattern of format bsr24 needs uint8 \[6, 16, 1\]: pass the"),
    "list": (lambda m: m.tolist(), r"metadata is a list; it must be a tensor, uint8 \[6, 16, 1\]"),
    "dtype": (lambda m: m.int(), "metadata has dtype torch.int32; it must be torch.uint8"),
    "shape": (lambda m: m[1:], r"metadata has shape \[5, 16, 1\]; a pattern of format bsr24 needs \[6, 16, 1\]"),
    "contents": (lambda m: 0 * m, r"metadata\[0\] is 0x00"),
}


@pytest.mark.parametrize("name", METADATA)
def test_functional_refuses_metadata(name):
    change, message = METADATA[name]
    layer = BlockSparseLinear(48, 32, format="bsr24", block=(16, 8))
    with pytest.raises(InvalidArgument, match=message):
        F.block_sparse_linear(torch.zeros(2, 48), layer.values, layer.pattern, metadata=change(layer.metadata))
    bsr = BlockSparseLinear(48, 32, block=16)
    with pytest.raises(InvalidArgument, match="metadata is given, but a pattern of format bsr has none: leave it out"):
        F.block_sparse_linear(torch.zeros(2, 48), bsr.values, bsr.pattern, metadata=layer.metadata)


OPERANDS = {
    "dtype": (lambda v, m: (v, m.char()), "metadata has dtype torch.int8; it must be torch.uint8"),
    "device": (lambda v, m: (v, m.to("meta")), "metadata is on meta, values is on cpu; both must be on one device"),
    "dimensions": (
        lambda v, m: (v, m[0]),
        r"values has shape \[6, 16, 4\] and metadata \[16, 1\]; both must begin with",
    ),
    "blocks": (lambda v, m: (v[1:], m[1:]), r"values has shape \[5, 16, 4\].*or with 6 blocks"),
    "width": (lambda v, m: (v, m.repeat(1, 1, 2)), r"metadata has shape \[6, 16, 2\]; values \[6, 16, 4\] need one"),
    "geometry": (lambda v, m: (v[:, 1:], m[:, 1:]), "pattern_key .* stands for .* of format bsr24"),
    "format": (lambda v, m: (v, None), r"pattern_key .* stands for .*bsr24.*; the call has .* of format bsr with 6"),
    "contents": (lambda v, m: (v, m + 99), r"metadata\[0\] is 0x"),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operators_refuse_operands(name):
    change, message = OPERANDS[name]
    layer = BlockSparseLinear(48, 32, format="bsr24", block=(16, 8))
    layer.metadata.fill_(0x44)
    pattern = (layer.row_offsets, layer.col_indices, layer.pattern.key, 32, 48)
    values, metadata = change(layer.values.detach(), layer.metadata)
    with pytest.raises(InvalidArgument, match=message):
        torch.ops.bsparse.linear(torch.zeros(2, 48), values, None, *pattern, "none", False, metadata)
    with pytest.raises(InvalidArgument, match=message):
        torch.ops.bsparse.grad_input(torch.zeros(2, 32), values, *pattern, metadata)
    if name not in ("blocks", "geometry", "device"):
        with pytest.raises(InvalidArgument, match="metadata|pattern_key"):
            torch.ops.bsparse.grad_values(torch.zeros(2, 32), torch.zeros(2, 48), *pattern, 16, 8, metadata)


def test_torch_bsr_has_whole_blocks():
    with pytest.raises(Unsupported, match=r"torch's BSR stores whole blocks, and format is bsr24: use to_dense\(\)"):
        BlockSparseLinear(48, 32, format="bsr24", block=16).to_torch_bsr()
