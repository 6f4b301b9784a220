"""One training run of `accuracy.py`: a teacher, a dense baseline or a sparse model, trained, patched and evaluated."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import data
import torch
from model import encoder_linears, load_pretrained, make_sparse, quiet
from torch import nn
from train import Recipe, accuracy, distil, fine_tune

from bsparse_torch.pruning import GradualPruner

TEACHER = Recipe(lr=1e-4, epochs=3, batch=32)
DISTIL = Recipe(lr=6e-4, epochs=12, batch=128, warmup=0.05, hidden=10.0, word_drop=0.1)
RAMP = 0.6  # fraction of the steps over which the density falls
TICK = 20  # steps between two reports of a run


@dataclass(frozen=True)
class Job:
    """One model to train. density None: the teacher; 1: the dense baseline."""

    seed: int
    density: float | None
    block: int

    @property
    def kind(self) -> str:
        return "teacher" if self.density is None else "dense" if self.density == 1 else "sparse"

    def __str__(self) -> str:
        what = f"density {self.density:g}, block {self.block}" if self.kind == "sparse" else self.kind
        return f"{what}, seed {self.seed}"


@dataclass(frozen=True)
class Setting:
    """What all runs share."""

    model: Path
    texts: Path
    scratch: Path  # for the teachers' weights
    device: str
    threads: int
    scale: float  # of the epochs
    rows: int | None  # of each part; None: all

    def teacher_file(self, seed: int) -> Path:
        return self.scratch / f"teacher-{seed}.pt"

    def recipe(self, job: Job) -> Recipe:
        recipe = TEACHER if job.kind == "teacher" else DISTIL
        return Recipe(**{**asdict(recipe), "epochs": recipe.epochs * self.scale})


@cache
def reviews(setting: Setting) -> data.Reviews:
    """The rows, on the CPU; read once in each process."""
    found = data.read_reviews(setting.texts, setting.model)
    part = slice(setting.rows)
    return data.Reviews(found.train[part], found.validation[part], found.test[part], found.other[part])


def training_rows(setting: Setting, job: Job) -> data.Rows:
    """Labelled rows for the teacher; every sentence but those of validation and test for distillation."""
    found = reviews(setting)
    return found.train if job.kind == "teacher" else found.train + found.other


def steps(setting: Setting, job: Job) -> int:
    return setting.recipe(job).steps(len(training_rows(setting, job)))


def run(setting: Setting, job: Job, ticks: Any) -> dict[str, Any]:
    """Trains one model and evaluates it on the CPU, a sparse one through bsparse; returns its line of the results.

    ticks: a queue that receives the number of steps made since the last time.
    """
    quiet()
    torch.set_num_threads(setting.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(job.seed)
    started = time.monotonic()
    model = _train(setting, job, _ticker(ticks)).to("cpu")
    ratio = 1.0
    if job.kind == "sparse":
        report = make_sparse(model, (job.block, job.block)).to_dict()
        ratio = report["bytes_after"] / report["bytes_before"]
    ticks.put(steps(setting, job) % TICK)
    trained = time.monotonic()
    found = reviews(setting)
    return {
        "kind": job.kind,
        "seed": job.seed,
        "density": job.density or 1.0,
        "block": job.block,
        "test": accuracy(model, found.test),
        "validation": accuracy(model, found.validation),
        "train": accuracy(model, found.train[: len(found.validation)]),
        "bytes_ratio": ratio,
        "steps": steps(setting, job),
        "train_seconds": round(trained - started, 1),
        "evaluation_seconds": round(time.monotonic() - trained, 1),
        "device": setting.device,
    }


def _train(setting: Setting, job: Job, tick: Callable[[], None]) -> nn.Module:
    rows, recipe = training_rows(setting, job).to(setting.device), setting.recipe(job)
    model = _pretrained(setting, dropout=0.1 if job.kind == "teacher" else 0.0)
    if job.kind == "teacher":
        fine_tune(model, rows, recipe, job.seed, tick)
        torch.save(model.state_dict(), setting.teacher_file(job.seed))
        return model
    teacher = _pretrained(setting)
    weights = torch.load(setting.teacher_file(job.seed), map_location=setting.device)
    teacher.load_state_dict(weights)
    model.load_state_dict(weights)
    if job.kind == "dense":
        distil(model, teacher, rows, recipe, job.seed, tick)
        return model
    assert job.density is not None
    ramp = max(1, int(RAMP * recipe.steps(len(rows))))
    pruner = GradualPruner(encoder_linears(model), job.density, job.block, steps=ramp, score="taylor")
    distil(model, teacher, rows, recipe, job.seed, tick, pruner)
    pruner.finish()
    return model


def _pretrained(setting: Setting, dropout: float = 0.0) -> nn.Module:
    model: nn.Module = load_pretrained(setting.model, dropout)
    return model.to(setting.device)


def _ticker(ticks: Any) -> Callable[[], None]:
    """A function to call after each step; it reports every TICK of them."""
    made = 0

    def tick() -> None:
        nonlocal made
        made += 1
        if made % TICK == 0:
            ticks.put(TICK)

    return tick
