"""What a saved model takes and does, measured in a process of its own: `python measure.py --help`. Prints JSON."""

import argparse
import json
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import data
import torch
from model import ENCODER, load_saved, quiet
from show import progress
from torch import Tensor, nn
from train import accuracy

from bsparse_torch import BlockSparseLinear

LENGTH = 128  # tokens a row in all timings
BATCHES = (1, 32)
SHAPES = ((384, 384), (1536, 384), (384, 1536))  # (out, in) of the encoder's layers
DENSITIES = (0.5, 0.35, 0.25, 0.15)


def quality(folder: Path, texts: Path, tokenizer: Path) -> dict[str, Any]:
    """Accuracy on the test rows, the encoder's size on disk and in memory, and what the process took at most."""
    loaded = load_saved(folder)
    rows = data.read_reviews(texts, tokenizer).test
    with progress() as bar:
        task = bar.add_task(f"evaluating {folder.name}", total=-(-len(rows) // 64))
        score = accuracy(loaded, rows, after_batch=lambda: bar.advance(task))
    encoder = [tensor for name, tensor in loaded.state_dict().items() if _in_encoder(name)]
    return {
        "accuracy": score,
        "parameters": sum(p.numel() for name, p in loaded.named_parameters() if _in_encoder(name)),
        "memory_bytes": sum(tensor.nbytes for tensor in encoder if isinstance(tensor, Tensor)),
        **file_bytes(folder / "model.safetensors"),
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """The most memory that this process has held, as Linux counts it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def file_bytes(file: Path) -> dict[str, int]:
    """Bytes of a safetensors file, and of the encoder's tensors in it; its header is JSON behind its length."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    spans = [entry["data_offsets"] for name, entry in header.items() if _in_encoder(name)]
    return {"file_bytes": file.stat().st_size, "file_encoder_bytes": sum(end - begin for begin, end in spans)}


def latency(dense: Path, sparse: Path, seconds: float) -> dict[str, Any]:
    """Milliseconds of both encoders at each batch size, by turns in one process: {batch: {folder name: median}}."""
    encoders = {folder.name: load_saved(folder).get_submodule(ENCODER.rstrip(".")) for folder in (dense, sparse)}
    found = {}
    with progress() as bar:
        task = bar.add_task("timing the encoders", total=seconds * len(BATCHES))
        for batch in BATCHES:
            x = torch.randn(batch, LENGTH, 384)
            calls = {name: _call(encoder, x) for name, encoder in encoders.items()}
            found[str(batch)] = medians(calls, seconds, lambda took: bar.advance(task, took))
    return found


def layer_latency(block: tuple[int, int], seconds: float) -> list[dict[str, Any]]:
    """Milliseconds of each kind of layer at batch 32, dense and at each density."""
    found = []
    with progress() as bar:
        task = bar.add_task("timing layers", total=seconds * len(SHAPES))
        for rows, cols in SHAPES:
            x = torch.randn(BATCHES[-1] * LENGTH, cols)
            layers: dict[str, nn.Module] = {"dense": nn.Linear(cols, rows)}
            for density in DENSITIES:
                layers[f"{density:g}"] = BlockSparseLinear(cols, rows, density=density, block=block)
            calls = {name: _call(layer, x) for name, layer in layers.items()}
            times = medians(calls, seconds, lambda took: bar.advance(task, took))
            found.append({"shape": [rows, cols], "milliseconds": times})
    return found


def medians(calls: dict[str, Callable[[], object]], seconds: float, took: Callable[[float], None]) -> dict[str, float]:
    """Median milliseconds of each call, made by turns for so many seconds, five times at least."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # plans are made, memory is touched
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(next(iter(times.values()))) < 5:
        round_begun = time.perf_counter()
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1000 * (time.perf_counter() - start))
        took(time.perf_counter() - round_begun)
    return {name: median(values) for name, values in times.items()}


def _call(module: nn.Module, x: Tensor) -> Callable[[], object]:
    def call() -> object:
        with torch.inference_mode():
            return module(x)

    return call


def _in_encoder(name: str) -> bool:
    return name.startswith(ENCODER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["quality", "latency", "layers"])
    parser.add_argument(
        "folders", type=Path, nargs="*", help="saved models: one for quality, dense and sparse for latency"
    )
    parser.add_argument("--texts", type=Path, help="folder of the rated sentences")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer")
    parser.add_argument("--block", type=int, nargs=2, default=(32, 32))
    parser.add_argument("--seconds", type=float, default=8, help="for each comparison")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    quiet()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.what == "quality":
        print(json.dumps(quality(options.folders[0], options.texts, options.tokenizer)))
    elif options.what == "latency":
        print(json.dumps(latency(options.folders[0], options.folders[1], options.seconds)))
    else:
        print(json.dumps(layer_latency(tuple(options.block), options.seconds)))


if __name__ == "__main__":
    main()
