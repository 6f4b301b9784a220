"""Habits that a script can keep: short files, no left-overs, no paths of one machine."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = {".py", ".c", ".cc", ".cu", ".h", ".cuh", ".cmake", ".toml", ".md"}
FOLDERS = ["cuda", "packages", "tests", "docs", ".ci"]
MADE = {"build", "dist", "__pycache__"}
OURS = [
    path
    for path in sorted([*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))])
    if path.suffix in KINDS and path.is_file() and not MADE & set(path.relative_to(ROOT).parts)
]
CODE = [path for path in OURS if path.suffix not in {".md", ".toml"}]
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|breakpoint\(\)|pdb\.set_trace")
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(tmp|work|root|home|opt)/\w")


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", CODE, ids=name)
def test_file_is_short(path):
    """About 300 lines is the aim, and about 500 for kernels; these are the ends of "about"."""
    limit = 550 if name(path).startswith(("cuda/cpu/", "cuda/kernels/")) else 350
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", OURS, ids=name)
def test_nothing_is_left_over(path):
    if path != Path(__file__).resolve():
        assert not LEFTOVER.search(path.read_text())
        assert not MACHINE_PATH.search(path.read_text())


@pytest.mark.parametrize("path", [path for path in CODE if "/src/" in name(path) and path.suffix == ".py"], ids=name)
def test_packages_print_only_from_their_commands(path):
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    prints = [func for func in calls if isinstance(func, ast.Name) and func.id == "print"]
    assert not prints or path.name in {"__main__.py", "cli.py"}


def test_library_never_prints():
    for path in (path for path in CODE if name(path).startswith(("cuda/src/", "cuda/cpu/", "cuda/kernels/"))):
        assert not re.search(r"\b(f?printf|puts|std::c(out|err))\b\s*[(<]", path.read_text()), name(path)
