"""A real encoder made block-sparse, in minutes on a CPU: accuracy, size and speed beside the dense model.

MiniLM is fine-tuned on movie reviews. A copy of it is patched: the 36 linear layers of its encoder become block-sparse.
The copy learns to answer as the dense model does, without labels, while it loses more blocks. Both are
saved and measured in fresh processes. The table, the plots and the two models are left in the output folder.
"""

import argparse
import copy
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import data
import fetch
import plots
import summary
import torch
from model import EMBEDDINGS, load_pretrained, make_sparse, quiet, sparse_layers
from show import progress
from train import Recipe, accuracy, adamw, distil, fine_tune
from transformers import PreTrainedModel

from bsparse_torch.pruning import BlockShrinker

HERE = Path(__file__).resolve().parent
DENSE = Recipe(lr=1e-4, epochs=1, batch=32)
DISTIL = Recipe(lr=6e-4, epochs=2, batch=16, warmup=0.05, hidden=10.0, word_drop=0.1)
LONGER = """\
Some minutes on a CPU give this. `nox -s accuracy` is the long recipe, for a GPU: 12 passes over 20,555 sentences.
There 32x32 blocks came to 88.5 % at density 0.5 and 88.0 % at 0.25, beside 88.6 % dense (means of three seeds)."""
FIRST_DENSITY = 0.9  # of the patched model before it has learnt anything; at 1 nothing would be patched
SHRINK = 0.6  # fraction of the steps over which it falls to the one asked for
# For glibc to keep what is freed. By default it gives results of 25 MB back to Linux and fetches them page by page
# again, which takes up to 10 ms each time, whatever the layer.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


def train_dense(folder: Path, rows: data.Rows, seed: int) -> PreTrainedModel:
    """The dense model: MiniLM with a head, fine-tuned on the labels."""
    torch.manual_seed(seed)
    model = load_pretrained(folder, dropout=0.1)
    with progress() as bar:
        task = bar.add_task("fine-tuning, dense", total=DENSE.steps(len(rows)))
        fine_tune(model, rows, DENSE, seed, lambda: bar.advance(task))
    return model


def train_sparse(
    dense: PreTrainedModel, rows: data.Rows, watched: data.Rows, block: tuple[int, int], density: float, seed: int
) -> tuple[PreTrainedModel, list[dict[str, float]]]:
    """A block-sparse copy of the dense model that has learnt to answer as it does, and how it went.

    Returns also ten points of the way: {step, density, accuracy on the watched rows}.
    """
    model, way = copy.deepcopy(dense), []
    model.get_submodule(EMBEDDINGS).requires_grad_(False)  # half of the model's parameters, and dense
    make_sparse(model, block, FIRST_DENSITY)
    steps, layers = DISTIL.steps(len(rows)), sparse_layers(model)
    optimizer = adamw(model, DISTIL)
    shrinker = BlockShrinker(layers, density, steps=math.ceil(SHRINK * steps), optimizer=optimizer)
    with progress() as bar:
        task = bar.add_task("distilling, block-sparse", total=steps)

        def look() -> None:
            bar.advance(task)
            step = int(bar.tasks[task].completed)
            if step % max(1, steps // 10) == 0:
                blocks = sum(len(layer.values) for layer in layers)
                grid = sum(layer.pattern.grid[0] * layer.pattern.grid[1] for layer in layers)
                way.append({"step": step, "density": blocks / grid, "accuracy": accuracy(model, watched)})
                model.train()

        distil(model, dense, rows, DISTIL, seed, look, shrinker, optimizer)
    return model, way


def measured(*arguments: object, variables: dict[str, str] | None = None) -> Any:
    """What measure.py prints, run in a fresh process, with these environment variables besides."""
    command = [sys.executable, str(HERE / "measure.py"), *map(str, arguments)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | (variables or {}))
    if result.returncode != 0:
        raise SystemExit(f"measuring failed: {' '.join(command)}")
    return json.loads(result.stdout)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--density", type=float, default=0.25, help="blocks kept over all blocks")
    parser.add_argument("--block", type=int, nargs="+", default=[32], help="one number, or rows (out) and columns (in)")
    parser.add_argument("--rows", type=int, default=3000, help="labelled rows for the dense model")
    parser.add_argument("--sentences", type=int, default=6000, help="sentences for the distillation, read twice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--cache", type=Path, default=fetch.CACHE, help="where downloads are kept")
    options = parser.parse_args()
    if not 0 < options.density <= FIRST_DENSITY:
        parser.error(f"--density is {options.density}; it must be in (0, {FIRST_DENSITY}]: pass 0.25 to keep a quarter")
    return options


def main() -> None:
    started = time.monotonic()
    options = arguments()
    block = (options.block[0], options.block[-1])
    quiet()
    torch.set_num_threads(options.threads)
    folder, texts = fetch.model_folder(options.cache), fetch.text_folder(options.cache)
    reviews = data.read_reviews(texts, folder)
    sentences = (reviews.train + reviews.other)[: options.sentences]

    dense = train_dense(folder, reviews.train[: options.rows], options.seed)
    sparse, way = train_sparse(dense, sentences, reviews.validation[:200], block, options.density, options.seed)
    saved = {"dense": options.out / "dense", "sparse": options.out / "sparse"}
    dense.save_pretrained(saved["dense"])
    sparse.save_pretrained(saved["sparse"])

    shared = ("--threads", options.threads)
    of_rows = ("--texts", texts, "--tokenizer", folder, *shared)
    result: dict[str, Any] = {name: measured("quality", path, *of_rows) for name, path in saved.items()}
    result["latency"] = {
        "malloc's defaults": measured("latency", *saved.values(), *shared),
        "freed memory kept": measured("latency", *saved.values(), *shared, variables=KEEP_MEMORY),
    }
    layers = measured("layers", "--block", *block, *shared, variables=KEEP_MEMORY)

    circumstance = f"blocks {block[0]}x{block[1]}, threads: {options.threads}"
    plots.draw_latency(layers, f"One layer, 4,096 tokens, {circumstance}", options.out / "latency.png")
    plots.draw_way(way, result["dense"]["accuracy"], options.out / "accuracy.png")
    plots.draw_pattern(sparse, "encoder.layer.3", options.out / "pattern.png")
    result |= {"way": way, "layers": layers, "density": options.density, "block": block, "threads": options.threads}
    (options.out / "demo.json").write_text(json.dumps(result, indent=1))
    table = summary.demo_table(result, f"density {options.density:g}, {circumstance}")
    (options.out / "table.txt").write_text(table)
    kept = " ".join(f"{name}={value}" for name, value in KEEP_MEMORY.items())
    print(f"{table}\nFreed memory is kept under {kept}, for both models.\n{LONGER}")
    print(f"Plots, models and demo.json are in {options.out}; {time.monotonic() - started:.0f} s in all.")


if __name__ == "__main__":
    main()
