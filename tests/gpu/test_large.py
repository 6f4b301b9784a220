"""Products large enough that every multiprocessor computes many tiles, against float64 on the device."""

import pytest
import tolerances
import torch
from core.products import OPS
from gpu.judge import FAMILIES
from gpu.planned import DTYPES, Planned

import bsparse_core as bc

ROWS, COLS, TOKENS = 4080, 3960, 4100  # not multiples of a block or of a tile
BLOCKS = ((128, 128), (128, 64), (256, 64), (128, 32), (64, 64), (64, 32), (32, 32), (16, 16))


class Problem:
    """A pattern whose block rows grow denser downwards, and its operands."""

    def __init__(self, block, dtype, tokens=TOKENS):
        draws, self.block = torch.Generator("cuda").manual_seed(sum(block)), block
        grid = -(-ROWS // block[0]), -(-COLS // block[1])
        shares = torch.linspace(0, 0.4, grid[0], device="cuda")[:, None]
        self.mask = torch.rand(grid, device="cuda", generator=draws) < shares
        offsets = [0, *self.mask.sum(1).cumsum(0).tolist()]
        self.pattern = bc.Pattern(ROWS, COLS, block, offsets, self.mask.nonzero()[:, 1].tolist())
        whole = (ROWS, COLS), (tokens, COLS), (tokens, ROWS)
        drawn = (torch.randn(shape, device="cuda", generator=draws).to(DTYPES[dtype]) for shape in whole)
        dense, self.x, self.dy = drawn
        self.values = self.pack(dense)
        elements = self.mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:ROWS, :COLS]
        self.s = (dense * elements).double()

    def pack(self, dense):
        """The stored blocks of dense [rows, cols], with zeros in the padding."""
        (height, width), (down, across) = self.block, self.mask.shape
        padded = torch.nn.functional.pad(dense, (0, across * width - COLS, 0, down * height - ROWS))
        return padded.view(down, height, across, width).transpose(1, 2)[self.mask].contiguous()

    def exact(self, op):
        """The result in float64, what its rounding errors are measured against, and how many numbers are summed."""
        x, dy = self.x.double(), self.dy.double()
        if op == "sddmm":
            return self.pack(dy.t() @ x), self.pack(dy.abs().t() @ x.abs()), len(x)
        b, s = (x, self.s.t()) if op == "spmm" else (dy, self.s)
        return b @ s, b.abs() @ s.abs(), b.shape[1]


def fault(result, exact, allowed):
    """What is wrong, or an empty string."""
    wrong = ~((result.double() - exact).abs() <= allowed)  # NaN is wrong, too
    if not wrong.any():
        return ""
    first = tuple(wrong.nonzero()[0].tolist())
    worst = (result.double() - exact).abs().nan_to_num(0).max()
    return (
        f"{int(wrong.sum())} of {wrong.numel()} are wrong ({int(result.isnan().sum())} NaN), first at {first}: "
        f"{float(result[first]):.6g} against {float(exact[first]):.6g}, largest error {float(worst):.3g}"
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_tiles(cuda, op, dtype, family):
    wrong = []
    for block in BLOCKS:
        problem = Problem(block, dtype)
        planned = Planned(cuda, problem.pattern, op, dtype, problem.values, problem.x, problem.dy, FAMILIES[family])
        result = planned.run(planned.empty())
        exact, size, terms = problem.exact(op)
        found = fault(result, exact, tolerances.bound(exact, size, terms, dtype, arithmetic="tensor"))
        wrong += [f"{block} [{planned.kernel}]: {found}"] if found else []
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_clusters_keep_pace_but_do_not_wait_for_what_cannot_run(cuda, dtype):
    """Operands beyond L2. Two products at once take multiprocessors from each other: both end, with the same bits."""
    problem = Problem((64, 64), dtype, tokens=2 * TOKENS)
    planned = Planned(cuda, problem.pattern, "sddmm", dtype, problem.values, problem.x, problem.dy)
    alone = planned.run(planned.empty())
    exact, size, terms = problem.exact("sddmm")
    found = fault(alone, exact, tolerances.bound(exact, size, terms, dtype, arithmetic="tensor"))
    assert not found, f"[{planned.kernel}]: {found}"
    streams = [torch.cuda.Stream() for _ in range(2)]
    outs = [[planned.empty() for _ in range(5)] for _ in streams]
    torch.cuda.synchronize()
    for turn in range(5):
        for stream, out in zip(streams, outs, strict=True):
            with torch.cuda.stream(stream):
                planned.run(out[turn])
    torch.cuda.synchronize()
    for out in (*outs[0], *outs[1]):
        assert torch.equal(out, alone)
