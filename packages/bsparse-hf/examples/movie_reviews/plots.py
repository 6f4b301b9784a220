"""The pictures of the demo and of `accuracy.py`."""

from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn

from bsparse_torch import BlockSparseLinear

matplotlib.use("Agg")
from matplotlib import pyplot

DENSE_COLOUR, SPARSE_COLOUR = "#7f7f7f", "#1f77b4"


def draw_latency(lines: list[dict[str, Any]], title: str, file: Path) -> None:
    """Bars of milliseconds: one group for each kind of layer, dense first, then falling densities."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    names = list(lines[0]["milliseconds"])
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        heights = [line["milliseconds"][name] for line in lines]
        centres = [group + (place - (len(names) - 1) / 2) * width for group in range(len(lines))]
        shade = 1 - 0.7 * (place - 1) / max(1, len(names) - 2)
        colour = DENSE_COLOUR if name == "dense" else (*matplotlib.colors.to_rgb(SPARSE_COLOUR), shade)
        label = "dense (torch)" if name == "dense" else f"density {name}"
        bars = axes.bar(centres, heights, width, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_xticks(range(len(lines)), ["{} x {}".format(*line["shape"]) for line in lines])
    axes.set_xlabel("layer, out x in features")
    axes.set_ylabel("milliseconds")
    axes.legend(frameon=False)
    _finish(figure, axes, title, file)


def draw_way(way: list[dict[str, float]], dense: float, file: Path) -> None:
    """Accuracy and density while the sparse model learns, with the dense model's accuracy as a level line."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    steps = [point["step"] for point in way]
    axes.axhline(100 * dense, color=DENSE_COLOUR, linestyle="--", label="dense, test rows")
    axes.plot(
        steps, [100 * point["accuracy"] for point in way], marker="o", color=SPARSE_COLOUR, label="sparse, 200 rows"
    )
    axes.set_xlabel("steps of distillation")
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(40, 100)
    right = axes.twinx()
    right.plot(steps, [point["density"] for point in way], color="#d62728", linestyle=":", label="density (right)")
    right.set_ylabel("density: blocks kept over all blocks")
    right.set_ylim(0, 1)
    figure.legend(frameon=False, loc="upper right", bbox_to_anchor=(0.9, 0.88))
    _finish(figure, axes, "Losing blocks while learning", file)


def draw_accuracy(groups: dict[str, dict[float, float]], dense: float, file: Path) -> None:
    """Test accuracy over density, a line for each block, and the dense model's as a level line."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.axhline(100 * dense, color=DENSE_COLOUR, linestyle="--", label=f"dense, {100 * dense:.1f} %")
    for name, points in sorted(groups.items()):
        densities = sorted(points)
        axes.plot(densities, [100 * points[density] for density in densities], marker="o", label=f"blocks {name}")
    axes.set_xlabel("density: blocks kept over all blocks")
    axes.set_ylabel("test accuracy, %")
    axes.legend(frameon=False)
    _finish(figure, axes, "Movie polarity: block-sparse MiniLM, distilled", file)


def draw_pattern(model: nn.Module, layer: str, file: Path) -> None:
    """The blocks that one encoder layer keeps, darker for larger ones; missing blocks are white."""
    names = [name for name, module in model.named_modules() if isinstance(module, BlockSparseLinear) and layer in name]
    layers = [model.get_submodule(name) for name in names]
    figure, grid = pyplot.subplots(2, 3, figsize=(10, 6.5), width_ratios=(1, 1, 1))
    for name, module, axes in zip(names, layers, grid.flat, strict=True):
        assert isinstance(module, BlockSparseLinear)
        norms = block_norms(module)  # [block rows, block columns], NaN where none is stored
        axes.imshow(norms, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
        axes.set_title(f"{name.split(layer)[1].strip('.')}\n{module.out_features} x {module.in_features}", fontsize=9)
        axes.set_xlabel("block column", fontsize=8)
        axes.set_ylabel("block row", fontsize=8)
    figure.suptitle(f"Blocks kept in {layer}; colour: norm of the block")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def block_norms(layer: BlockSparseLinear) -> Tensor:
    """L2 norms of the stored blocks in their places, NaN elsewhere: [block rows, block columns]."""
    norms = torch.full(layer.pattern.grid, float("nan"))
    norms[layer.pattern.row_indices(), layer.col_indices] = layer.values.detach().flatten(1).norm(dim=1)
    return norms


def _finish(figure: Any, axes: Any, title: str, file: Path) -> None:
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
