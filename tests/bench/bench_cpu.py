"""CPU speed: bsparse, torch dense and torch BSR side by side, in one process, on the same numbers.

    python tests/bench/bench_cpu.py                     # everything: some five minutes on two cores
    python tests/bench/bench_cpu.py --blocks 64x64 --dtypes f32 --strict

Each cell is one product of one pattern. Its variants are timed in turn, round after round, so that a slow moment of
the machine hits all of them; the medians are compared. Every variant's result is compared with float64. A table is
printed, and written with JSON lines to --out. With --strict the exit status is 1 when a floor is missed.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from report import TARGETS, Disturbance, environment, show_progress, table, write_jsonl

import bsparse_core as bc

SHAPES = {"512x1024x1024": (512, 1024, 1024), "128x1536x384": (128, 1536, 384)}  # tokens x out x in; a MiniLM layer
BLOCKS = {"16x16": (16, 16), "32x32": (32, 32), "64x64": (64, 64), "64x32": (64, 32)}
DENSITIES = (0.5, 0.25, 0.1)
PATTERNS = ("balanced", "bernoulli")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
PRODUCTS = ("forward", "grad_input", "grad_weight")
OPS = {"forward": "spmm", "grad_input": "spmm_t", "grad_weight": "sddmm"}
CALL_SECONDS = 0.002  # a timing is made of calls enough to last that long


@dataclass(frozen=True)
class Case:
    """One pattern with its operands; all tensors are dense and row-major."""

    shape: str
    block: str
    density: float
    pattern: str
    dtype: str
    mask: torch.Tensor  # bool [out / block_rows, in / block_cols]
    x: torch.Tensor  # [tokens, in]
    dy: torch.Tensor  # [tokens, out]
    weight: torch.Tensor  # [out, in], zero outside the stored blocks

    @property
    def element_mask(self):
        rows, cols = BLOCKS[self.block]
        return self.mask.repeat_interleave(rows, 0).repeat_interleave(cols, 1)


def draw_mask(kind, grid, density, generator):
    """Bool [block rows, block columns]. Balanced: rows differ by one block at most. Bernoulli: independent draws."""
    rows, cols = grid
    if kind == "bernoulli":
        return torch.rand(grid, generator=generator) < density
    counts = [round(density * cols * (row + 1)) - round(density * cols * row) for row in range(rows)]
    mask = torch.zeros(grid, dtype=torch.bool)
    for row, count in enumerate(counts):
        mask[row, torch.randperm(cols, generator=generator)[:count]] = True
    return mask


def make_cases(arguments):
    for shape in arguments.shapes:
        tokens, out_features, in_features = SHAPES[shape]
        for block in arguments.blocks:
            rows, cols = BLOCKS[block]
            for density in arguments.densities:
                for pattern in arguments.patterns:
                    generator = torch.Generator().manual_seed(0)
                    mask = draw_mask(pattern, (out_features // rows, in_features // cols), density, generator)
                    elements = mask.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
                    x = torch.randn(tokens, in_features, generator=generator)
                    dy = torch.randn(tokens, out_features, generator=generator)
                    weight = torch.randn(out_features, in_features, generator=generator) * elements
                    for dtype in arguments.dtypes:
                        operands = (tensor.to(DTYPES[dtype]) for tensor in (x, dy, weight))
                        yield Case(shape, block, density, pattern, dtype, mask, *operands)


def dense(case, product):
    """The dense product, as a function of no arguments that returns the result."""
    x, dy, weight = case.x, case.dy, case.weight
    return {
        "forward": lambda: torch.nn.functional.linear(x, weight),  # [tokens, out]
        "grad_input": lambda: dy @ weight,  # [tokens, in]
        "grad_weight": lambda: dy.t() @ x,  # [out, in]
    }[product]


def exact(case, product):
    """The same in float64, where grad_weight counts at the stored blocks only."""
    x, dy, weight = case.x.double(), case.dy.double(), case.weight.double()
    if product == "forward":
        return x @ weight.t()
    return dy @ weight if product == "grad_input" else (dy.t() @ x) * case.element_mask


def torch_bsr(case, product):
    """The product by torch.sparse_bsr. Raises what torch raises where it has none."""
    bsr = case.weight.to_sparse_bsr(BLOCKS[case.block])
    x, dy = case.x, case.dy
    function = {
        "forward": lambda: torch.nn.functional.linear(x, bsr),
        "grad_input": lambda: (bsr.transpose(0, 1) @ dy.t()).t(),
        "grad_weight": lambda: torch.sparse.sampled_addmm(bsr, dy.t(), x, beta=0.0).to_dense(),
    }[product]
    function()
    return function


class Bsparse:
    """The product by bsparse_core, on addresses; calling it returns D, or the values in grad_weight."""

    def __init__(self, context, case, product):
        rows, cols = BLOCKS[case.block]
        tokens, self.out_features, self.in_features = SHAPES[case.shape]
        self.pattern = bc.Pattern.from_mask(case.mask.numpy(), block=(rows, cols))
        self.plan = bc.Plan(context, self.pattern, op=OPS[product], dtype=case.dtype)
        self.context, self.case = context, case
        self.values = torch.zeros(self.pattern.blocks, rows, cols, dtype=DTYPES[case.dtype])
        bc.pack_values(
            context, self.pattern, case.dtype, case.weight.data_ptr(), self.in_features, self.values.data_ptr()
        )
        # torch aligns allocations to 64 bytes, which is what a workspace needs.
        self.workspace = torch.empty(self.plan.workspace_bytes(tokens), dtype=torch.uint8)
        self.result = self.values
        run = {"tokens": tokens, "values": self.values.data_ptr(), "workspace": self.workspace.data_ptr()}
        if product == "grad_weight":
            run |= {"a": case.dy.data_ptr(), "lda": self.out_features, "b": case.x.data_ptr(), "ldb": self.in_features}
        else:
            b, d_features = (case.x, self.out_features) if product == "forward" else (case.dy, self.in_features)
            self.result = torch.empty(tokens, d_features, dtype=b.dtype)  # [tokens, out] or [tokens, in]
            run |= {"b": b.data_ptr(), "ldb": b.shape[1], "d": self.result.data_ptr(), "ldd": d_features}
        self.run = run

    def __call__(self):
        self.plan.run(**self.run)
        return self.result

    def dense_result(self):
        """The result as torch.nn.functional.linear and its gradients would give it."""
        result = self()
        if result is not self.values:
            return result
        dense = torch.empty(self.out_features, self.in_features, dtype=result.dtype)
        bc.unpack_values(
            self.context, self.pattern, self.case.dtype, result.data_ptr(), dense.data_ptr(), self.in_features
        )
        return dense


def relative_error(result, reference):
    return float((result.double() - reference).norm() / reference.norm().clamp_min(1e-300))


def time_in_turn(functions, rounds):
    """Median seconds of one call of each function: rounds of all of them, one after the other."""
    calls = {}
    for name, function in functions.items():
        start = time.perf_counter()
        function()
        calls[name] = max(1, round(CALL_SECONDS / (time.perf_counter() - start)))
    seconds = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            function()  # what the variant before left in caches and running threads is not timed
            start = time.perf_counter()
            for _ in range(calls[name]):
                function()
            seconds[name].append((time.perf_counter() - start) / calls[name])
    return {name: statistics.median(times) for name, times in seconds.items()}


def measure(context, case, product, rounds):
    """One row of the table, as a dict."""
    ours = Bsparse(context, case, product)
    reference = exact(case, product)
    row = {
        "shape": case.shape, "block": case.block, "density": case.density, "pattern": case.pattern,
        "dtype": case.dtype, "product": product, "kernel": ours.plan.kernel(SHAPES[case.shape][0]),
        "stored": round(float(case.mask.float().mean()), 4),
        "error": relative_error(ours.dense_result(), reference),
        "dense_error": relative_error(dense(case, product)() * (reference != 0), reference),
    }  # fmt: skip
    seconds = time_in_turn({"dense": dense(case, product), "bsparse": ours}, rounds)
    try:
        bsr = torch_bsr(case, product)
        row["bsr_error"] = relative_error(bsr(), reference)
        row["bsr_ms"] = time_in_turn({"bsr": bsr}, 3)["bsr"] * 1e3  # tens of times slower: a few calls tell
        row["bsr_ratio"] = seconds["dense"] * 1e3 / row["bsr_ms"]
    except (RuntimeError, NotImplementedError) as error:
        row["bsr_missing"] = str(error).splitlines()[0]
    row |= {"dense_ms": seconds["dense"] * 1e3, "bsparse_ms": seconds["bsparse"] * 1e3}
    row["ratio"] = seconds["dense"] / seconds["bsparse"]
    if case.dtype == "f32" and case.block in TARGETS["blocks"]:
        row["floor"], row["goal"] = TARGETS["ratios"][case.density]
    return row


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = {"shapes": SHAPES, "blocks": BLOCKS, "patterns": PATTERNS, "dtypes": DTYPES, "products": PRODUCTS}
    for name, values in choices.items():
        parser.add_argument(f"--{name}", nargs="+", choices=list(values), default=list(values))
    parser.add_argument("--densities", nargs="+", type=float, choices=DENSITIES, default=list(DENSITIES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of bench_cpu.jsonl and .md")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a floor is missed")
    return parser.parse_args(argv)


def main(argv=None):
    arguments = parse(argv)
    torch.set_num_threads(arguments.threads)
    context = bc.Context("cpu", threads=arguments.threads)
    facts = environment(context.name, arguments.threads)
    total = len(arguments.products)
    for name in ("shapes", "blocks", "densities", "patterns", "dtypes"):
        total *= len(getattr(arguments, name))
    rows, started, disturbance = [], time.perf_counter(), Disturbance()
    for case in make_cases(arguments):
        for product in arguments.products:
            rows.append(measure(context, case, product, arguments.rounds))
            show_progress(len(rows), total, started)
    facts["taken by other processes"] = disturbance.share()
    text = table(rows, facts)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "bench_cpu.md").write_text(text + "\n")
    write_jsonl(arguments.out / "bench_cpu.jsonl", rows, facts)
    missed = [row for row in rows if "floor" in row and row["ratio"] < row["floor"]]
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
