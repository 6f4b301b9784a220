"""Host time of a forward as Python makes it, and of the C call alone, which host_cost.cu measures; see bench_gpu.py."""

import subprocess
import sys
from pathlib import Path

import torch
from gpu_products import Planned, Problem, peers
from gpu_report import HOST
from gpu_timing import host_microseconds

from bsparse_torch import BlockSparseLinear
from bsparse_torch import functional as F

SOURCE = Path(__file__).with_name("host_cost.cu")


def host_costs(context, folder):
    """Lines by name: microseconds, beside what they may be at most. The program is compiled into folder."""
    found = python_costs(context) | c_costs(folder)
    return {f"host us, {name}": _line(name, microseconds) for name, microseconds in found.items()}


def python_costs(context):
    """Host microseconds of one call of small products: torch's, the layer's, the functional's and bsparse_core's."""
    problem = Problem((16, 1024, 1024), (64, 64), 0.25, "balanced", "bf16")
    layer = BlockSparseLinear.from_linear(_linear(problem), mask=problem.on_device, block=problem.block)
    pattern, values, planned = layer.pattern, layer.values, Planned(context, problem, "forward")
    x, linear, plan, arguments = problem.x, _linear(problem), planned.plan, planned.arguments()
    with torch.no_grad():
        functions = {
            "F.linear": lambda: torch.nn.functional.linear(x, problem.dense),
            "nn.Linear": lambda: linear(x),
            "layer": lambda: layer(x),
            "functional": lambda: F.block_sparse_linear(x, values, pattern),
            "Plan.run": lambda: plan.run(**arguments),
        }
        for name, call, _ in peers(problem, ("forward",), ("bsr", "torchao"))[0]:
            functions[name] = lambda call=call: call(0)
        found = host_microseconds(functions)
    found["layer over F.linear"] = found["layer"] - found["F.linear"]
    return found


def c_costs(folder):
    """Host microseconds by what was called, as host_cost.cu prints them; a sentence where it cannot be compiled."""
    include, library = (_installed(what) for what in ("--include", "--lib"))
    link = ["-Xlinker", library, "-Xlinker", f"-rpath={Path(library).parent}"]
    program = folder.resolve() / "host_cost"
    command = ["nvcc", "-std=c++17", "-O2", "-arch=native", f"-I{include}", str(SOURCE), *link, "-o", str(program)]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return {"C call": f"not measured: {error}"}
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    lines = (line.split(" ns  ", 1) for line in printed.splitlines())
    return {what: float(nanoseconds) / 1000 for nanoseconds, what in lines}


def _installed(what):
    command = [sys.executable, "-m", "bsparse_core", what]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _line(name, microseconds):
    if isinstance(microseconds, str):
        return microseconds
    most = next((most for start, most in HOST.items() if name.startswith(start)), None)
    if most is None:
        return f"{microseconds:.2f}"
    return f"{microseconds:.2f} (at most {most:.0f}: {'met' if microseconds <= most else 'MISSED'})"


def _linear(problem):
    linear = torch.nn.Linear(1, 1, bias=False, device="meta")
    linear.weight = torch.nn.Parameter(problem.dense, requires_grad=False)
    return linear
