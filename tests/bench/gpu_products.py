"""What is timed on the GPU: one pattern with its operands, and each product of it by bsparse, by dense and by peers."""

import warnings
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from gpu_timing import Variant

import bsparse_core as bc

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
OPS = {"forward": "spmm", "grad_input": "spmm_t", "grad_weight": "sddmm"}
CHECKED = 256  # tokens, in grad_weight rows of the weight, that are compared with float64
COLD_BYTES = 4e8  # copies of a weight that together are far larger than the cache


def draw_mask(kind, grid, density):
    """Bool [block rows, block columns]. Balanced: equally many blocks in every row. Bernoulli: independent draws."""
    random = np.random.default_rng(0)
    if kind == "bernoulli":
        return random.random(grid) < density
    mask = np.zeros(grid, dtype=bool)
    kept = max(1, round(density * grid[1]))
    np.put_along_axis(mask, np.argsort(random.random(grid), axis=1)[:, :kept], True, axis=1)
    return mask


@dataclass
class Problem:
    """One pattern and its operands on the device; the weight is scaled so that outputs are of order 1."""

    shape: tuple[int, int, int]  # tokens, out, in
    block: tuple[int, int]
    density: float
    kind: str
    dtype: str
    pattern: bc.Pattern = field(init=False)

    def __post_init__(self):
        tokens, rows, cols = self.shape
        dtype, draws = DTYPES[self.dtype], torch.Generator("cuda").manual_seed(1)
        self.mask = draw_mask(self.kind, (rows // self.block[0], cols // self.block[1]), self.density)
        offsets = np.concatenate([[0], self.mask.sum(1).cumsum()]).astype(np.int32)
        self.pattern = bc.Pattern(rows, cols, self.block, offsets, np.nonzero(self.mask)[1].astype(np.int32))
        self.x = torch.randn(tokens, cols, device="cuda", generator=draws).to(dtype)
        self.dy = torch.randn(tokens, rows, device="cuda", generator=draws).to(dtype)
        self.dense = (torch.randn(rows, cols, device="cuda", generator=draws) / cols**0.5).to(dtype)  # [out, in]
        self.on_device = torch.from_numpy(self.mask).cuda()
        self.values = self.blocks(self.dense)

    def blocks(self, dense):
        """The stored blocks of dense [some rows, in], from its first row: [blocks, block_rows, block_cols]."""
        height, width = self.block
        tiles = dense.view(dense.shape[0] // height, height, -1, width).transpose(1, 2)
        return tiles[self.on_device[: tiles.shape[0]]].contiguous()

    @cached_property
    def masked(self):
        """The dense weight with zeros where no block is stored."""
        elements = self.on_device.repeat_interleave(self.block[0], 0).repeat_interleave(self.block[1], 1)
        return self.dense * elements

    def exact(self, product, weight):
        """The first rows of the result in float64."""
        if product == "forward":
            return self.x[:CHECKED].double() @ weight.double().t()
        if product == "grad_input":
            return self.dy[:CHECKED].double() @ weight.double()
        return self.dy[:, :CHECKED].double().t() @ self.x.double()

    def error(self, product, result):
        """Relative error of a result of the sparse weight: [tokens, features], or the values."""
        exact = self.exact(product, self.masked)
        if product == "grad_weight":
            exact = self.blocks(exact)
        return relative_error(result[: exact.shape[0]], exact)

    def dense_error(self, product, result):
        exact = self.exact(product, self.dense)
        return relative_error(result[: exact.shape[0]], exact)


def relative_error(result, exact):
    return float((result.double() - exact).norm() / exact.norm())


class Planned:
    """A product by bsparse_core, a C call away; `copies` of values and work lists are taken in turn."""

    def __init__(self, context, problem, product, flags=0, copies=1):
        self.problem, tokens = problem, problem.shape[0]
        self.plan = bc.Plan(context, problem.pattern, op=OPS[product], dtype=problem.dtype, flags=flags)
        self.workspace = torch.empty(self.plan.workspace_bytes(tokens), dtype=torch.uint8, device="cuda")
        self.schedules = [self._upload() for _ in range(copies)]
        values = [problem.values, *(problem.values.clone() for _ in range(copies - 1))]
        x, dy = problem.x, problem.dy
        if product == "grad_weight":
            self.result = torch.full_like(problem.values, torch.nan)
            run = {"a": dy.data_ptr(), "lda": dy.shape[1], "b": x.data_ptr(), "ldb": x.shape[1]}
            values = [self.result]
        else:
            b, like = (x, dy) if product == "forward" else (dy, x)
            self.result = torch.full_like(like, torch.nan)
            run = {"b": b.data_ptr(), "ldb": b.shape[1], "d": self.result.data_ptr(), "ldd": like.shape[1]}
        self.values = values
        self.run = run | {"tokens": tokens, "workspace": self.workspace.data_ptr()}

    def _upload(self):
        schedule = torch.empty(self.plan.schedule_bytes, dtype=torch.uint8, device="cuda")
        if self.plan.schedule_bytes:
            self.plan.upload(schedule.data_ptr(), torch.cuda.current_stream().cuda_stream)
            torch.cuda.synchronize()
        return schedule

    def arguments(self, i=0):
        """Those of plan.run, on the current stream."""
        return self.run | {
            "values": self.values[i % len(self.values)].data_ptr(),
            "schedule": self.schedules[i % len(self.schedules)].data_ptr(),
            "stream": torch.cuda.current_stream().cuda_stream,
        }

    def __call__(self, i=0):
        self.plan.run(**self.arguments(i))
        return self.result


def dense(problem, product, copies=1):
    """The dense product with the whole weight; zeros in it would cost less power."""
    x, dy = problem.x, problem.dy
    weights = [problem.dense, *(problem.dense.clone() for _ in range(copies - 1))]
    return {
        "forward": lambda i: torch.nn.functional.linear(x, weights[i % copies]),
        "grad_input": lambda i: dy @ weights[i % copies],
        "grad_weight": lambda i: dy.t() @ x,
    }[product]


def peers(problem, products, wanted, copies=1):
    """(name, call, read) of each peer that is here and serves all the products, and what is missing, with the reason.

    call(i) computes them, with the i-th of so many copies of the weight, and gives a list of results; read[p] makes of
    the p-th [tokens, features] or the values.
    """
    made, missing = [], {}
    for name in wanted:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made.append((name, *_peer(problem, products, PEERS[name], copies)))
        except Exception as error:  # whatever a peer raises is what its row says
            missing[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
            torch.cuda.synchronize()
    return made, missing


def _peer(problem, products, peer, copies):
    found = [[peer(problem, product) for product in products] for _ in range(copies)]
    calls = [[call for call, _ in one] for one in found]
    reads = [read for _, read in found[0]]

    def call(i):
        return [one(i) for one in calls[i % copies]]

    for read, result in zip(reads, call(0), strict=True):
        read(result)
    return call, reads


def _same(result):
    return result


def _bsr(problem, product):
    """torch.sparse_bsr with the parameters that torch picks."""
    x, dy, height, width = problem.x, problem.dy, *problem.block
    if product == "forward":
        weight = problem.masked.to_sparse_bsr((height, width))
        return lambda i: torch.nn.functional.linear(x, weight), _same
    if product == "grad_input":
        transposed = problem.masked.t().contiguous().to_sparse_bsr((width, height))
        return lambda i: torch.nn.functional.linear(dy, transposed), _same
    from torch.sparse._triton_ops import sampled_addmm

    weight, rest = problem.masked.to_sparse_bsr((height, width)), {"beta": 0.0, "alpha": 1.0, "skip_checks": True}
    return lambda i: sampled_addmm(weight, dy.t(), x, **rest), lambda result: result.values()


def _bsr_swept(problem, product):
    """torch's kernel with the fastest of twelve settings; it writes the result transposed."""
    from torch.sparse._triton_ops import bsr_dense_addmm

    if product == "grad_weight":
        raise NotImplementedError("sampled_addmm has no parameters")
    b, weight, block = (problem.x, problem.masked, problem.block)
    if product == "grad_input":
        b, weight, block = problem.dy, problem.masked.t().contiguous(), problem.block[::-1]
    bsr, out = weight.to_sparse_bsr(block), b.new_empty(weight.shape[0], b.shape[0])  # [features, tokens]

    def run(meta):
        return bsr_dense_addmm(out, bsr, b.t(), beta=0, alpha=1, out=out, meta=dict(meta))

    def seconds(meta):
        variant = Variant("", lambda i: run(meta), calls=3, eager=True)
        variant.prepare()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        variant.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    best = None
    for tile in (64, 128, 256):
        for stages in (3, 4):
            for warps in (4, 8):
                meta = {"SPLIT_N": b.shape[0] // tile, "GROUP_SIZE_ROW": 4, "num_stages": stages, "num_warps": warps}
                try:
                    best = min(best or (float("inf"), {}), (seconds(meta), meta), key=lambda found: found[0])
                except Exception:  # a setting that this block or this card cannot run
                    torch.cuda.synchronize()
    if best is None:
        raise RuntimeError("none of the settings runs")
    return lambda i: run(best[1]), lambda result: result.t()


def _torchao(problem, product):
    from torchao.sparsity.blocksparse import BlockSparseTensor

    if product != "forward" or problem.block[0] != problem.block[1]:
        raise NotImplementedError("torchao serves the forward with square blocks")
    weight = BlockSparseTensor.from_dense(problem.masked, problem.block[0])
    return lambda i: torch.nn.functional.linear(problem.x, weight, None), _same


def _stk(problem, product):
    import stk

    if problem.block != (128, 128):
        raise NotImplementedError("stk serves blocks of 128x128")
    weight = stk.ops.to_sparse(problem.masked, 128)  # [out, in]
    if product == "grad_weight":
        return lambda i: stk.ops.sdd(problem.dy.t(), problem.x, weight).data, _same
    if product == "grad_input":
        return lambda i: stk.ops.dds(problem.dy, weight), _same
    return lambda i: stk.ops.dds(problem.x, weight.t()), _same


PEERS = {"bsr": _bsr, "bsr_swept": _bsr_swept, "torchao": _torchao, "stk": _stk}
