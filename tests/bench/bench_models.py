"""Whole models on the GPU, dense and block-sparse in one process: prefill and decode of Llama, a training step of BERT.

    python tests/bench/bench_models.py
    python tests/bench/bench_models.py --what decode --models llama-3.1-8b --densities 0.1 --blocks 128x128

transformers' models at the shapes of real ones, with random weights and few layers of Llama (--layers), without the
head that turns hidden states into words. Llama runs in bf16; BERT is trained in bf16 and in f32, torch's TF32 off.
bsparse_hf patches every projection of attention and MLP. Both models get the same treatments, each timed in turn in two
power states (gpu_timing.py): compiled by torch.compile ("compiled") or not ("graph"), both captured in CUDA graphs, and
called eagerly. The judged ratio is that of the treatment which serves the dense model best. `error` is the distance of
the patched model's output from that of the same values multiplied dense, in the same dtype.
"""

import argparse
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

import gpu_models as models
import torch
from gpu_timing import Variant, card, race
from report import environment, write_jsonl
from transformers.utils import logging

import bsparse_core as bc
from bsparse_torch import BlockSparseLinear

TARGETS = {("prefill", 0.1): 2.8, ("decode", 0.1): 2.2, ("train", 0.25): 2.0}  # over dense
TREATMENTS = ("compiled", "graph", "eager")
CALLS = {"prefill": 1, "decode": 5, "train": 1}  # in one graph


def variants(name, model, what, make, treatments):
    """Each treatment of a model, ready to be timed; reasons why others are not, and the seconds of compilation."""
    found, reasons, seconds = [], [], 0.0
    for treatment in treatments:
        torch.compiler.reset()  # what was captured before needs it no more
        start = time.perf_counter()
        run = make(models.compiled(model) if treatment == "compiled" else model)
        for _ in range(3):  # plans, kernels and the optimizer's state are made before a capture
            run()
        torch.cuda.synchronize()
        seconds += time.perf_counter() - start if treatment == "compiled" else 0
        eager = treatment == "eager"
        variant = Variant(f"{name} {treatment}", lambda i, run=run: run(), CALLS[what], eager)
        try:
            variant.prepare()
            found.append(variant)
        except RuntimeError as error:
            torch.cuda.synchronize()
            reasons.append(f"{name} {treatment}: {str(error).splitlines()[0]}")
    return found, reasons, seconds


def error(model, run):
    """Relative distance of the output from the one that the dense product makes of the same values."""
    layers = [module for module in model.modules() if isinstance(module, BlockSparseLinear)]
    ours = run().double()
    for layer in layers:
        layer.backend = "dense"
    theirs = run().double()
    for layer in layers:
        layer.backend = "bsparse"
    return float((ours - theirs).norm() / theirs.norm())


def measure(dense, sparse, what, size, make, arguments):
    """Rows of one workload: each block-sparse model, by density and block, beside the dense one."""
    theirs, reasons, dense_seconds = variants("dense", dense, what, make, arguments.treatments)
    state = card(theirs[0])
    for (density, block), model in sparse.items():
        row = {"what": what, "size": size, "density": density, "block": block, "card": state}
        row["error"] = None if what == "train" else error(model, make(model))
        ours, more, seconds = variants("bsparse", model, what, make, arguments.treatments)
        hot, cool = race([*theirs, *ours], arguments.hot, arguments.cool)
        row |= {"hot_ms": hot, "cool_ms": cool, "ratios": {"hot": ratios(hot), "cool": ratios(cool)}}
        row["judged"] = min(row["ratios"]["hot"], key=lambda treatment, hot=hot: hot[f"dense {treatment}"])
        row |= {"compile_s": {"dense": dense_seconds, "bsparse": seconds}, "not_timed": [*reasons, *more]}
        yield row
        del ours
        torch.cuda.empty_cache()


def ratios(times):
    """By treatment, where both were timed."""
    both = (t for t in TREATMENTS if f"dense {t}" in times and f"bsparse {t}" in times)
    return {t: times[f"dense {t}"] / times[f"bsparse {t}"] for t in both}


def subjects(arguments):
    """(how a model is made, its densities, its workloads: (what, size, how it is run)); for training, its target's."""
    if "train" in arguments.what:
        densities = [density for density in arguments.densities if ("train", density) in TARGETS]
        for dtype in arguments.dtypes:
            size = f"bert-base, {models.BERT_BATCH} x {models.BERT_LENGTH} tokens, {dtype}"
            yield partial(models.bert, models.DTYPES[dtype]), densities, [("train", size, models.train)]
    for name in arguments.models:
        todo = []
        if "decode" in arguments.what:
            todo += [("decode", f"{name}, batch {n}", partial(models.decode, batch=n)) for n in arguments.batches]
        if "prefill" in arguments.what:
            todo += [("prefill", f"{name}, {n} tokens", partial(models.prefill, tokens=n)) for n in arguments.prompts]
        yield partial(models.llama, name, arguments.layers), arguments.densities, todo


def table(rows):
    titles = ["what", "density", "block", "judged", "dense ms", "bsparse ms", "hot", "cool", "at least", ""]
    lines = [titles + [f"{treatment} hot" for treatment in TREATMENTS] + ["error"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        hot, cool, judged = row["ratios"]["hot"], row["ratios"]["cool"], row["judged"]
        least = TARGETS.get((row["what"], row["density"]))
        verdict = "" if least is None else "met" if hot[judged] >= least else "MISSED"
        cells = [f"{row['what']}, {row['size']}", row["density"], row["block"], judged]
        cells += [f"{row['hot_ms'][f'{name} {judged}']:.3f}" for name in ("dense", "bsparse")]
        cells += [f"{hot[judged]:.2f}x", f"{cool[judged]:.2f}x" if judged in cool else ""]
        cells += [f"{least}x" if least else "", verdict]
        cells += [f"{hot[treatment]:.2f}x" if treatment in hot else "" for treatment in TREATMENTS]
        lines.append([*cells, "" if row["error"] is None else f"{row['error']:.1e}"])
    text = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return "\n".join([*text, *sorted({f"{row['size']}, {reason}" for row in rows for reason in row["not_timed"]})])


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = {"treatments": TREATMENTS, "what": tuple(CALLS), "models": tuple(models.LLAMAS)}
    choices |= {"dtypes": tuple(models.DTYPES), "batches": models.BATCHES, "prompts": models.PROMPTS}
    choices |= {"densities": (0.1, 0.25)}
    for name, values in choices.items():
        parser.add_argument(f"--{name}", nargs="+", type=type(values[0]), choices=values, default=list(values))
    parser.add_argument("--blocks", nargs="+", default=["128x128", "64x64"])
    parser.add_argument("--layers", type=int, default=4, help="of Llama; BERT has its twelve")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no workload after so many; the rest is named")
    parser.add_argument("--hot", type=int, default=5, help="rounds without a pause")
    parser.add_argument("--cool", type=int, default=3, help="rounds with 40 ms of idling before each replay")
    parser.add_argument("--commit", help="of these sources, where git does not tell")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of bench_models.jsonl and .md")
    return parser.parse_args(argv)


def main(argv=None):
    arguments = parse(argv)
    logging.disable_progress_bar()
    if bc.devices("cuda") == 0:
        sys.exit("bench_models: no NVIDIA device that bsparse can use here")
    facts = environment(bc.Context("cuda").name, torch.get_num_threads()) | {"llama layers": arguments.layers}
    facts["commit"] = arguments.commit or facts["commit"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows, left, started = [], [], time.perf_counter()
    for build, densities, todo in subjects(arguments):
        torch.manual_seed(0)
        dense = build()
        sparse = {cell: models.patched(dense, *cell) for cell in product(densities, arguments.blocks)}
        for what, size, make in todo:
            if time.perf_counter() - started > arguments.seconds:
                left.append(f"{what}, {size}: no time left")
                continue
            try:
                for row in measure(dense, sparse, what, size, make, arguments):
                    rows.append(row)
                    print(f"{time.perf_counter() - started:.0f} s", row, file=sys.stderr, flush=True)
            except RuntimeError as error:
                left.append(f"{what}, {size}: {str(error).splitlines()[0]}")
            write(arguments.out, rows, facts, left)
        del dense, sparse
        torch.cuda.empty_cache()
    print(write(arguments.out, rows, facts, left))


def write(folder, rows, facts, left):
    """What there is so far, into files; returns the Markdown."""
    write_jsonl(folder / "bench_models.jsonl", rows, facts)
    text = "\n".join([", ".join(f"{name}: {fact}" for name, fact in facts.items()), "", table(rows)])
    text += "".join(f"\nnot run: {workload}" for workload in left)
    (folder / "bench_models.md").write_text(text + "\n")
    return text


if __name__ == "__main__":
    main()
