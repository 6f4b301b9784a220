"""What was, or would be, done to each module of a model, printable in 120 columns."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

WIDTH = 120
NAME_WIDTH = 42


@dataclass(frozen=True)
class ModuleReport:
    """One Linear, Conv1D or stack of fused experts.

    rule: number of the rule that matched first, from 1; None where none did.
    bytes_before, bytes_after: of the module's weights, indices and bias; equal where it is skipped.
    padding_bytes: part of bytes_after that pads ragged edges to whole blocks.
    reason: why the module is skipped; None where it is patched.
    refused: True where a rule asks for what cannot be done; `patch_model` then raises.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    rule: int | None
    block: tuple[int, int] | None
    blocks: int | None
    grid_blocks: int | None
    bytes_before: int
    bytes_after: int
    padding_bytes: int = 0
    reason: str | None = None
    refused: bool = False

    @property
    def density(self) -> float | None:
        """Stored blocks over all blocks; None where the module is skipped."""
        return self.blocks / self.grid_blocks if self.blocks is not None and self.grid_blocks else None


@dataclass(frozen=True)
class PatchReport:
    """A plan, or what became of it: a row for each module, and the rules in words.

    notes: what is good to know. warnings: what was probably not meant; `patch_model` also warns of these.
    parameter_bytes: of the whole model, dense.
    """

    modules: tuple[ModuleReport, ...]
    rules: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    parameter_bytes: int

    @property
    def patched(self) -> tuple[ModuleReport, ...]:
        """The modules that become block-sparse."""
        return tuple(row for row in self.modules if row.reason is None)

    @property
    def skipped(self) -> tuple[ModuleReport, ...]:
        """The modules that stay dense, each with its reason."""
        return tuple(row for row in self.modules if row.reason is not None)

    def to_dict(self) -> dict[str, Any]:
        """The same as data: plain dicts, lists, numbers and strings, ready for JSON."""
        rows = [{**asdict(row), "density": row.density} for row in self.modules]
        for row in rows:
            row["shape"] = list(row["shape"])
            row["block"] = list(row["block"]) if row["block"] else None
        return {
            "modules": rows,
            "rules": list(self.rules),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "bytes_before": _total(self.patched, "bytes_before"),
            "bytes_after": _total(self.patched, "bytes_after"),
            "parameter_bytes": self.parameter_bytes,
        }

    def __str__(self) -> str:
        width = min(NAME_WIDTH, max([len("module"), *(len(row.name) for row in self.modules)]))
        head = _cells(width, "module", "kind", "out x in", "dense", "rule", "block", "blocks", "density", "sparse")
        lines = [head, "-" * WIDTH]
        for row in self.modules:
            lines += _row_lines(width, row)
        before, after = _total(self.patched, "bytes_before"), _total(self.patched, "bytes_after")
        share = f" ({after / before:.2f}x)" if before else ""
        lines += [
            "-" * WIDTH,
            f"{len(self.patched)} of {len(self.modules)} modules block-sparse: {size(before)} dense -> {size(after)} "
            f"sparse{share}; the whole model {size(self.parameter_bytes)} -> "
            f"{size(self.parameter_bytes - before + after)}",
        ]
        for number, rule in enumerate(self.rules, start=1):
            lines += _wrap(f"rule {number}: {rule}")
        for note in self.notes:
            lines += _wrap(f"note: {note}")
        for warning in self.warnings:
            lines += _wrap(f"warning: {warning}")
        return "\n".join(lines)


def size(count: int) -> str:
    """Bytes for people: 2359296 -> "2.25 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _total(rows: Sequence[ModuleReport], field: str) -> int:
    return sum(getattr(row, field) for row in rows)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _cells(width: int, name: str, kind: str, shape: str, dense: str, *rest: str) -> str:
    shown = name if len(name) <= width else "…" + name[-(width - 1) :]
    left = f"{shown:<{width}} {kind:<7} {shape:<13} {dense:>10} "
    if len(rest) == 1:
        return left + rest[0]
    rule, block, blocks, density, sparse = rest
    return left + f"{rule:>4} {block:>7} {blocks:>11} {density:>7} {sparse:>10}"


def _row_lines(width: int, row: ModuleReport) -> list[str]:
    fields = (row.name, row.kind, "x".join(map(str, row.shape)), size(row.bytes_before))
    if row.reason is None and row.block is not None:
        block = f"{row.block[0]}x{row.block[1]}"
        blocks = f"{row.blocks}/{row.grid_blocks}"
        cells = (f"#{row.rule}", block, blocks, f"{row.density:.3f}", size(row.bytes_after))
        lines = [_cells(width, *fields, *cells)]
        if row.padding_bytes:
            lines.append(f"{'':<{width}} of which {size(row.padding_bytes)} pad the edges to whole blocks")
        return lines
    verb = "refused" if row.refused else "skipped"
    left = _cells(width, *fields, "")
    first, *more = textwrap.wrap(f"{verb}: {row.reason}", WIDTH - len(left), break_on_hyphens=False)
    return [left + first, *(" " * len(left) + line for line in more)]
