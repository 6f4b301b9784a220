"""GPU speed: bsparse, cuBLAS dense, torch BSR, torchao and stk in one process, on the same numbers.

    python tests/bench/bench_gpu.py                                   # everything
    python tests/bench/bench_gpu.py --what forward --sizes 8192 --peers
    python tests/bench/bench_gpu.py --what forward --blocks 128x64 --densities 0.25 --quick

Ratios are over cuBLAS dense in the same round; gpu_timing.py says how time is taken. `bsparse` is the C call through
bsparse_core, `eager` the same product as BlockSparseLinear and autograd make it, over dense called likewise. Peers are
timed on balanced patterns; one that is not installed is named as absent. Every result is compared with float64 on 256
tokens (grad_weight: 256 rows of the weight, all tokens). A table and JSON lines are written to --out. With --strict the
exit status is 1 when a floor is missed by more than noise (gpu_report.py), or was not measured.

On a machine without network: tests/offline.sh WHEELS python3 tests/bench/bench_gpu.py ...
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from gpu_host import host_costs
from gpu_products import COLD_BYTES, OPS, PEERS, Planned, Problem, dense, peers
from gpu_report import TARGETS, table, target, verdict
from gpu_timing import Variant, card, race
from report import environment, write_jsonl

import bsparse_core as bc
from bsparse_torch import BlockPattern
from bsparse_torch import functional as F

SQUARES = ("8192", "4096")
LAYERS = ("4096x14336x4096", "4096x4096x14336", "4096x3072x768", "512x768x768")  # tokens x out x in
BLOCKS = ("128x128", "128x64", "64x64", "128x32", "32x32", "16x16")
DENSITIES = (0.5, 0.25, 0.1)
DECODE_TOKENS = (1, 16, 64)
WHAT = ("forward", "layers", "grad_input", "grad_weight", "step", "decode", "f32", "tf32", "host")
STEP = ("forward", "grad_input", "grad_weight")


def cells(arguments):
    """(what, size, block, pattern, density) of all cells that were asked for; those without a target only by --all."""
    names = []
    for what in arguments.what:
        names += {"decode": [f"decode_{n}" for n in DECODE_TOKENS], "f32": ["f32", "f32_step"], "host": []}.get(
            what, [what]
        )
    for what in names:
        for size in LAYERS if what == "layers" else SQUARES:
            for block in BLOCKS:
                for density in DENSITIES:
                    for kind in ("balanced", "bernoulli"):
                        cell = what, size, block, kind, density
                        if cell in TARGETS or (arguments.all and what != "layers"):
                            yield cell


def wanted(cell, arguments):
    _, size, block, kind, density = cell
    chosen = arguments.sizes, arguments.blocks, arguments.patterns, arguments.densities
    return all(value in values for value, values in zip((size, block, kind, density), chosen, strict=True))


def shape_of(what, size):
    """(tokens, out, in)."""
    if "x" in size:
        return tuple(int(number) for number in size.split("x"))
    tokens = int(what.removeprefix("decode_")) if what.startswith("decode_") else int(size)
    return tokens, int(size), int(size)


def measure(context, cell, arguments):
    """One row of the table, as a dict."""
    what, size, block, kind, density = cell
    dtype = "f32" if "f32" in what else "bf16"
    torch.backends.cuda.matmul.allow_tf32 = what == "tf32"
    flags = int(bc.Flags.ALLOW_TF32) if what == "tf32" else 0
    problem = Problem(shape_of(what, size), tuple(int(n) for n in block.split("x")), density, kind, dtype)
    products = STEP if what.endswith("step") else (what,) if what in OPS else ("forward",)
    cold = what.startswith("decode_")
    copies = [
        max(4, int(COLD_BYTES / t.numel() / t.element_size())) if cold else 1 for t in (problem.dense, problem.values)
    ]
    ours = [Planned(context, problem, product, flags, copies[1]) for product in products]
    theirs = [dense(problem, product, copies[0]) for product in products]
    row = {
        "what": what, "size": size, "block": block, "density": density, "pattern": kind, "dtype": dtype,
        "stored": problem.pattern.density, "kernel": " ".join(one.plan.kernel(problem.shape[0]) for one in ours),
        "errors": {
            "bsparse": max(problem.error(p, one()) for p, one in zip(products, ours, strict=True)),
            "dense": max(problem.dense_error(p, one(0)) for p, one in zip(products, theirs, strict=True)),
        },
    }  # fmt: skip
    calls = [10 if not cold else max(n, 24) for n in copies]
    variants = [
        Variant("dense", lambda i: [one(i) for one in theirs], calls[0]),
        Variant("bsparse", lambda i: [one(i) for one in ours], calls[1]),
    ]
    if not cold and not arguments.quick:
        variants += eager(problem, products)
    made, row["absent"] = peers(problem, products, asked(arguments, kind), copies[1])
    for name, call, reads in made:
        results = [read(result) for read, result in zip(reads, call(0), strict=True)]
        row["errors"][name] = max(problem.error(p, result) for p, result in zip(products, results, strict=True))
        variants.append(Variant(name, call, calls[1]))
    row["ms"] = dict(zip(("hot", "cool"), timed(variants, row, arguments), strict=True))
    row["ratio"] = {state: ratios(times) for state, times in row["ms"].items() if times}
    work = 2e-9 * len(products) * problem.shape[0] * problem.dense.numel()
    row["dense_tflops"] = {state: work / times["dense"] for state, times in row["ms"].items() if times}
    row["state"], row["floor"], row["goal"] = target(row)
    row["verdict"] = verdict(row)
    return row, variants[0]


def asked(arguments, kind):
    return arguments.peers if kind == "balanced" and not arguments.quick else ()


def timed(variants, row, arguments):
    """Both states; a variant that cannot be captured is named as absent."""
    kept = []
    for variant in variants:
        try:
            variant.prepare()
            kept.append(variant)
        except RuntimeError as error:
            if variant.name in ("dense", "bsparse"):
                raise
            row["absent"][variant.name] = str(error).splitlines()[0][:160]
            torch.cuda.synchronize()
    return race(kept, arguments.hot, arguments.cool)


def ratios(times):
    over = {name: times["dense"] / ms for name, ms in times.items() if name != "dense"}
    if "eager" in over:
        over["eager"] = times["dense_eager"] / times["eager"]
        over.pop("dense_eager")
    return over


def eager(problem, products):
    """The torch layer beside F.linear, both called from Python: without gradients, or with those that are named."""
    pattern = BlockPattern.from_mask(problem.on_device, problem.block)
    needs = "grad_input" in products, "grad_weight" in products
    variants = []
    for name, weight, forward in (
        ("dense_eager", problem.dense, torch.nn.functional.linear),
        ("eager", problem.values, lambda x, values: F.block_sparse_linear(x, values, pattern)),
    ):
        inputs = [tensor.detach().requires_grad_(need) for tensor, need in zip((problem.x, weight), needs, strict=True)]
        variants.append(Variant(name, _autograd_call(forward, inputs, problem.dy, "forward" in products), eager=True))
    return variants


def _autograd_call(forward, inputs, dy, anew):
    """The forward; with gradients the forward and backward; or, not anew, only the backward of one forward."""
    needed = [tensor for tensor in inputs if tensor.requires_grad]
    if not needed:
        return lambda i: forward(*inputs)
    if anew:
        return lambda i: torch.autograd.grad(forward(*inputs), needed, dy)
    y = forward(*inputs)
    return lambda i: torch.autograd.grad(y, needed, dy, retain_graph=True)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [*SQUARES, *LAYERS]
    for name, values in {"what": WHAT, "sizes": sizes, "blocks": BLOCKS, "patterns": ("balanced", "bernoulli")}.items():
        parser.add_argument(f"--{name}", nargs="+", choices=values, default=list(values))
    parser.add_argument("--densities", nargs="+", type=float, choices=DENSITIES, default=list(DENSITIES))
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=["bsr", "torchao", "stk"])
    parser.add_argument("--hot", type=int, default=6, help="rounds without a pause")
    parser.add_argument("--cool", type=int, default=4, help="rounds with 40 ms of idling before each replay; 0: none")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so many; the rest is named")
    parser.add_argument("--commit", help="of these sources, where git does not tell")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of bench_gpu.jsonl and .md")
    parser.add_argument("--all", action="store_true", help="also cells without a target")
    parser.add_argument(
        "--quick", action="store_true", help="three hot rounds and two cool ones, dense and bsparse only"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a floor is missed or not measured")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.hot, arguments.cool = 3, min(2, arguments.cool)
    return arguments


def main(argv=None):
    arguments = parse(argv)
    if bc.devices("cuda") == 0:
        sys.exit("bench_gpu: no NVIDIA device that bsparse can use here")
    context, started = bc.Context("cuda"), time.perf_counter()
    facts = environment(context.name, torch.get_num_threads())
    facts |= {"commit": arguments.commit or facts["commit"], "driver, clock, most, power, limit, temperature": card()}
    todo = [cell for cell in cells(arguments) if wanted(cell, arguments)]
    rows, host, left, loads = [], {}, [], {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(todo):
        if time.perf_counter() - started > arguments.seconds:
            left = todo[number:]
            break
        row, load = measure(context, cell, arguments)
        rows.append(row)
        if cell[0] not in loads:
            loads[cell[0]] = card(load)  # dense runs meanwhile
        summary = {state: f"{found.get('bsparse', 0):.2f}x" for state, found in row["ratio"].items()}
        print(f"{time.perf_counter() - started:6.1f} s", *cell, summary, row["verdict"], file=sys.stderr, flush=True)
        write_jsonl(arguments.out / "bench_gpu.jsonl", rows, facts)
    if "host" in arguments.what:
        host = host_costs(context, arguments.out)
    facts |= {f"the same under dense {what}": found for what, found in loads.items()}
    text = "\n".join([", ".join(f"{name}: {fact}" for name, fact in facts.items()), "", table(rows, host)])
    text += "".join(f"\nnot run, for want of time: {' '.join(map(str, cell))}" for cell in left)
    print(text)
    (arguments.out / "bench_gpu.md").write_text(text + "\n")
    write_jsonl(arguments.out / "bench_gpu.jsonl", [*rows, *([{"what": "host"} | host] if host else [])], facts)
    verdicts = [row["verdict"] for row in rows] + list(host.values())
    short = left or any("MISSED" in verdict or "not measured" in verdict for verdict in verdicts)
    return 1 if arguments.strict and short else 0


if __name__ == "__main__":
    sys.exit(main())
