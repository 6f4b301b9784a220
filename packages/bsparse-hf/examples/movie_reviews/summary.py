"""The results of the demo and of `accuracy.py`, each as one table."""

from collections import defaultdict
from io import StringIO
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

Line = dict[str, Any]  # of results.jsonl
WIDTH = 120


def accuracy_table(lines: list[Line]) -> str:
    """A row for the teachers, one for the dense baseline, one for each density and block; means and ranges of seeds."""
    dense = {line["seed"]: line["test"] for line in lines if line["kind"] == "dense"}
    groups: dict[tuple[str, float, int], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line["kind"], line["density"], line["block"] if line["kind"] == "sparse" else 0].append(line)
    table = Table(title="Movie polarity, 2,000 test rows; accuracy in %, mean (lowest to highest seed)")
    for heading in ("model", "density", "block", "seeds", "test", "against dense", "training rows", "encoder bytes"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for (kind, density, block), group in sorted(groups.items(), key=_order):
        gaps = [100 * (line["test"] - dense[line["seed"]]) for line in group if line["seed"] in dense]
        table.add_row(
            {"teacher": "fine-tuned on labels", "dense": "dense, distilled", "sparse": "sparse, distilled"}[kind],
            f"{density:g}",
            f"{block}x{block}" if block else "",
            str(len(group)),
            _spread([100 * line["test"] for line in group]),
            _spread(gaps, "+") if gaps and kind != "dense" else "",
            f"{100 * mean(line['train'] for line in group):.1f}",
            f"{mean(line['bytes_ratio'] for line in group):.3f}x",
        )
    return _text(table) + _limits(groups)


def accuracy_curves(lines: list[Line]) -> tuple[dict[str, dict[float, float]], float]:
    """For each block {density: accuracy}, and the dense baseline's accuracy: means of the seeds, on test rows."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        name = "{0}x{0}".format(line["block"]) if line["kind"] == "sparse" else line["kind"]
        found[name][line["density"]].append(line["test"])
    means = {name: {density: mean(tests) for density, tests in points.items()} for name, points in found.items()}
    means.pop("teacher", None)
    dense = means.pop("dense", {}).get(1.0, float("nan"))
    return means, dense


def demo_table(result: dict[str, Any], facts: str) -> str:
    """One row a measure: dense, block-sparse, and the one as a multiple of the other."""
    table = Table(title=f"MiniLM on movie reviews: {facts}")
    for heading in ("", "dense", "block-sparse", ""):
        table.add_column(heading, justify="right" if heading else "left")
    dense, sparse = result["dense"], result["sparse"]
    scores = [100 * part["accuracy"] for part in (dense, sparse)]
    table.add_row(
        "accuracy, 2,000 test rows", f"{scores[0]:.1f} %", f"{scores[1]:.1f} %", f"{scores[1] - scores[0]:+.1f} points"
    )
    for name, key in (
        ("encoder parameters", "parameters"),
        ("encoder on disk, bytes", "file_encoder_bytes"),
        ("encoder in memory, bytes", "memory_bytes"),
        ("whole file, bytes", "file_bytes"),
        ("peak memory of a process that evaluates it, bytes", "peak_bytes"),
    ):
        table.add_row(name, f"{dense[key]:,}", f"{sparse[key]:,}", f"{sparse[key] / dense[key]:.2f}x")
    for batch in next(iter(result["latency"].values())):
        for memory, latency in result["latency"].items():
            times = latency[batch]
            name = f"encoder latency, batch {batch}, length 128, {memory}"
            row = (f"{times['dense']:.1f} ms", f"{times['sparse']:.1f} ms")
            table.add_row(name, *row, f"{times['dense'] / times['sparse']:.2f}x faster")
    return _text(table)


def _text(table: Table) -> str:
    console = Console(width=WIDTH, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def _limits(groups: dict[tuple[str, float, int], list[Line]]) -> str:
    """How far each density falls on rows it was trained on, and how much further on new ones."""
    dense = [line for (kind, _, _), group in groups.items() if kind == "dense" for line in group]
    sparse = [line for (kind, _, _), group in groups.items() if kind == "sparse" for line in group]
    if not dense or not sparse:
        return ""
    sentences = []
    for density in sorted({line["density"] for line in sparse}, reverse=True):
        group = [line for line in sparse if line["density"] == density]
        seen = 100 * (mean(line["train"] for line in dense) - mean(line["train"] for line in group))
        new = 100 * (mean(line["test"] for line in dense) - mean(line["test"] for line in group))
        sentences.append(f"density {density:g}: {seen:.1f} points below dense on training rows, {new:.1f} on test rows")
    return "\n".join(["What limits it, over all blocks:", *sentences]) + "\n"


def _order(item: tuple[tuple[str, float, int], list[Line]]) -> tuple[int, int, float]:
    (kind, density, block), _ = item
    return ("teacher", "dense", "sparse").index(kind), block, -density


def _spread(numbers: list[float], sign: str = "") -> str:
    text = f"{mean(numbers):{sign}.1f}"
    return text if len(numbers) == 1 else f"{text} ({min(numbers):{sign}.1f} to {max(numbers):{sign}.1f})"
