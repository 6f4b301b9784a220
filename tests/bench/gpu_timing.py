"""Times on the GPU: CUDA-graph replay of all variants in turn, in two power states; host time; clocks and power.

The card is power-limited: a kernel's time depends on what ran before it. So two figures are taken of everything.
Hot: all variants one after the other, round after round, without a pause. Cool: the same, but each replay waits until
the card has idled for 40 ms, and then until the host has handed it over, for which one thread of the card spins: what
the host takes to start a graph, 5 to 30 us by host, is no time of a product. Medians of the rounds. No variant is ever
timed in a block of its own.
"""

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

CALLS = 10  # in one graph
IDLE_SECONDS = 0.04
SPIN_CYCLES = 200_000  # of the device's clock, about 0.1 ms
HOST_CALLS = 200  # below the number of launches that a stream holds before the host has to wait


@dataclass
class Variant:
    """One way to compute a product. call(i) enqueues it; i counts calls, for those that take other copies in turn."""

    name: str
    call: Callable[[int], object]
    calls: int = CALLS
    eager: bool = False  # calls as Python makes them, instead of a graph

    def prepare(self):
        """Warms up, and captures the graph."""
        self.call(0)
        torch.cuda.synchronize()
        if self.eager:
            self.replay = lambda: [self.call(i) for i in range(self.calls)]
            return
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.call(0)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for i in range(self.calls):
                    self.call(i)
        self.replay = graph.replay


def race(variants, hot_rounds, cool_rounds):
    """Median milliseconds of one call by name: (hot, cool); cool is empty where cool_rounds is 0."""
    hot = {variant.name: [] for variant in variants}
    cool = {variant.name: [] for variant in variants} if cool_rounds else {}
    _round(variants, {}, idle=False)  # what the first round finds is not what the others find
    for _ in range(hot_rounds):
        _round(variants, hot, idle=False)
    for _ in range(cool_rounds):
        _round(variants, cool, idle=True)
    return tuple({name: statistics.median(times) for name, times in state.items()} for state in (hot, cool))


def _round(variants, times, idle):
    marks = []
    for variant in variants:
        if idle:
            torch.cuda.synchronize()
            time.sleep(IDLE_SECONDS)
            torch.cuda._sleep(SPIN_CYCLES)  # while the host starts the graph
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        variant.replay()
        end.record()
        marks.append((variant, start, end))
    torch.cuda.synchronize()
    for variant, start, end in marks:
        times.setdefault(variant.name, []).append(start.elapsed_time(end) / variant.calls)


def host_microseconds(functions, rounds=15):
    """Median host microseconds of one call by name, in turn; the device's work is small and is not waited for."""
    times = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(HOST_CALLS):
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                function()
            times[name].append((time.perf_counter() - start) / HOST_CALLS * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(found) for name, found in times.items()}


def card(load=None):
    """Clock, power and temperature as nvidia-smi reads them, idle or, with a variant as load, while that runs."""
    if load is not None:
        start = time.perf_counter()
        load.replay()
        torch.cuda.synchronize()
        once = time.perf_counter() - start
        for _ in range(min(4000, max(1, int(1.0 / once)))):
            load.replay()
    fields = "driver_version,clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found = "unknown"
    torch.cuda.synchronize()
    return found
