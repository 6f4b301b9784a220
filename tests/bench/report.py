"""What a benchmark prints: where it ran, a table in Markdown, JSON lines, the time left."""

import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

import bsparse_core as bc

# Speed over torch dense f32 on the same threads: floor (not to be missed) and goal, by density, for these blocks.
TARGETS = {"blocks": ("32x32", "64x64"), "ratios": {0.5: (1.5, 1.8), 0.25: (2.8, 3.4), 0.1: (6.0, 7.5)}}
# bf16 takes at most so much of f32's time.
BF16_LIMIT = 1.25


def environment(context_name, threads):
    """The circumstances without which no number means anything."""
    return {
        "processor": _processor(),
        "context": context_name,
        "threads": threads,
        "torch": torch.__version__,
        "bsparse": bc.__version__,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
    }


class Disturbance:
    """How much of the cores other processes took meanwhile: above a few percent, two threads wait for each other."""

    def __init__(self):
        self.start = time.perf_counter(), self._busy(), self._own()

    def share(self):
        """0 to 1 since the start; None where the system does not say."""
        started, busy, own = self.start
        if busy is None:
            return None
        core_seconds = (time.perf_counter() - started) * os.cpu_count()
        return round(max(0.0, (self._busy() - busy) - (self._own() - own)) / core_seconds, 3)

    @staticmethod
    def _busy():
        """Core seconds since boot that were neither idle nor waiting, of all processes: see proc(5), /proc/stat."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        ticks = [int(number) for number in stat.read_text().splitlines()[0].split()[1:9]]
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _own():
        times = os.times()
        return times.user + times.system


def _processor():
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def _commit():
    def git(*arguments):
        here = Path(__file__).parent
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def verdict(row):
    """How a row stands to its target."""
    if "floor" not in row:
        return ""
    if row["ratio"] >= row["goal"]:
        return "goal met"
    return "floor met" if row["ratio"] >= row["floor"] else "MISSED"


def table(rows, facts):
    """Markdown: the circumstances, a row a cell, what torch BSR cannot do, and bf16 beside f32."""
    lines = [", ".join(f"{name}: {value}" for name, value in facts.items()), ""]
    lines += [
        "| tokens x out x in | block | density (stored) | pattern | dtype | product | dense ms | bsparse ms "
        "| over dense | floor / goal | | torch BSR | error: bsparse, dense |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        target = f"{row['floor']} / {row['goal']}x" if "floor" in row else ""
        bsr = f"{row['bsr_ms']:.2f} ms, {row['bsr_ratio']:.2f}x" if "bsr_ms" in row else "n/a"
        lines.append(
            f"| {row['shape']} | {row['block']} | {row['density']} ({row['stored']:.3f}) | {row['pattern']} "
            f"| {row['dtype']} | {row['product']} | {row['dense_ms']:.3f} | {row['bsparse_ms']:.3f} "
            f"| {row['ratio']:.2f}x | {target} | {verdict(row)} | {bsr} "
            f"| {row['error']:.1e}, {row['dense_error']:.1e} |"
        )
    missing = sorted({(row["dtype"], row["product"], row["bsr_missing"]) for row in rows if "bsr_missing" in row})
    lines += ["", *(f"torch BSR n/a, {dtype} {product}: {why}" for dtype, product, why in missing)]
    return "\n".join([*lines, "", *_bf16_lines(rows)])


def _bf16_lines(rows):
    def cell(row):
        return row["shape"], row["block"], row["density"], row["pattern"], row["product"]

    f32, bf16 = ({cell(row): row["bsparse_ms"] for row in rows if row["dtype"] == dtype} for dtype in ("f32", "bf16"))
    shares = {key: bf16[key] / f32[key] for key in bf16.keys() & f32.keys()}
    if not shares:
        return []
    worst = max(shares, key=shares.get)
    state = "met" if shares[worst] <= BF16_LIMIT else "MISSED"
    return [f"bf16 takes at most {shares[worst]:.2f} of f32's time (limit {BF16_LIMIT}: {state}), at {worst}."]


def write_jsonl(path, rows, facts):
    """One line a row, each with its circumstances."""
    path.write_text("".join(json.dumps(facts | row) + "\n" for row in rows))


def show_progress(done, total, started):
    """A line on stderr: how far, and how long still."""
    left = (time.perf_counter() - started) / done * (total - done)
    end = "\n" if done == total else ""
    print(f"\r{done} of {total} cells, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)
