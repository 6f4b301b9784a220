"""Who may import whom: the table of CONTRIBUTING.md, kept by reading imports and includes."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STDLIB = set(sys.stdlib_module_names)
PACKAGES = {
    "bsparse_core": {"cffi"},
    "bsparse_torch": {"torch", "typing_extensions", "bsparse_core"},  # typing_extensions comes with torch
    "bsparse_hf": {"torch", "transformers", "safetensors", "huggingface_hub", "bsparse_torch"},
}
SEAMS = {"bsparse.h", "backend.h", "dtype.h", "error.h", "pattern.h", "positions.h"}  # cuda/cpu sees these of the host
SOURCES = {name: sorted(ROOT.glob(f"packages/*/src/{name}/**/*.py")) for name in PACKAGES}


def imports(path):
    """Dotted names that a file imports from outside its own package; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def includes(path):
    return re.findall(r'^\s*#\s*include\s*([<"][^>"]+)', path.read_text(), flags=re.M)


def module_name(path, package):
    """bsparse_core/plan.py is plan; a folder's __init__.py is the folder."""
    inside = path.relative_to(next(parent for parent in path.parents if parent.name == package))
    return ".".join(inside.with_suffix("").parts).removesuffix(".__init__")


def inner_imports(path, package):
    """Modules of the same package that a file imports at its top level, relatively or by full name."""
    folder = module_name(path, package).split(".")[:-1] if path.name != "__init__.py" else []
    known = {module_name(other, package) for other in SOURCES[package]}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == package):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            parts = (node.module or "").split(".") if node.level else (node.module or "").split(".")[1:]
            stem = ".".join(filter(None, [*base, *parts]))
            candidates = {stem} | {".".join(filter(None, [stem, alias.name])) for alias in node.names}
            yield from candidates & known


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_the_layer_below(package):
    assert SOURCES[package], f"no sources of {package} were found"
    for path in SOURCES[package]:
        allowed = PACKAGES[package] | STDLIB | {package}
        if path.parent.name == "numpy" and package == "bsparse_core":
            allowed = allowed | {"numpy"}
        foreign = {name for name in imports(path) if name.split(".")[0] not in allowed}
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


@pytest.mark.parametrize(("package", "below"), [("bsparse_torch", "bsparse_core"), ("bsparse_hf", "bsparse_torch")])
def test_package_uses_public_names_of_the_layer_below(package, below):
    for path in SOURCES[package]:
        private = {name for name in imports(path) if name.startswith(f"{below}.") and "._" in name}
        assert not private, f"{path.relative_to(ROOT)} reaches into {sorted(private)}"


@pytest.mark.parametrize("package", ["bsparse_torch", "bsparse_hf"])
def test_only_core_speaks_to_c(package):
    for path in SOURCES[package]:
        assert not {"cffi", "ctypes"} & {name.split(".")[0] for name in imports(path)}, path.relative_to(ROOT)


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_import_downwards(package):
    graph = {module_name(path, package): set(inner_imports(path, package)) for path in SOURCES[package]}
    done = set()
    while len(done) < len(graph):
        ready = {name for name, below in graph.items() if name not in done and below - {name} <= done}
        assert ready, f"{package} has an import cycle among {sorted(set(graph) - done)}"
        done |= ready


def test_header_includes_two_standard_headers():
    headers = list(ROOT.glob("cuda/include/**/*.h"))
    assert [path.name for path in headers] == ["bsparse.h"]
    assert includes(headers[0]) == ["<stddef.h", "<stdint.h"]


@pytest.mark.parametrize("folder", ["src", "cpu"])
def test_host_code_includes_no_cuda(folder):
    for path in ROOT.glob(f"cuda/{folder}/**/*.*"):
        found = [name[1:] for name in includes(path) if re.search(r"cuda|cutlass|cute|nvrtc", name)]
        if path.name == "backend_cuda.cu":
            found = [name for name in found if "cutlass" in name or "cute" in name]
        assert not found, f"{path.relative_to(ROOT)} includes {found}"


def test_cpu_backend_sees_only_the_seams_of_src():
    for path in ROOT.glob("cuda/cpu/**/*.*"):
        own = {other.name for other in ROOT.glob("cuda/cpu/**/*.*")}
        quoted = {name[1:] for name in includes(path) if name[0] == '"'}
        foreign = {name for name in quoted if Path(name).name not in own | SEAMS}
        assert not foreign, f"{path.relative_to(ROOT)} includes {sorted(foreign)}"


def test_kernel_families_do_not_know_each_other():
    kernels = ROOT / "cuda" / "kernels"
    for path in kernels.glob("*/*.*"):
        for name in (name[1:] for name in includes(path) if name[0] == '"' and not name.startswith('"bsparse/')):
            allowed = {path.parent, kernels / "common", ROOT / "cuda" / "src"}
            folder = (path.parent / name).resolve().parent
            assert folder in allowed, f"{path.relative_to(ROOT)} includes {name}"


def test_oracle_imports_numpy_only():
    names = {name.split(".")[0] for name in imports(ROOT / "tests" / "oracle.py")}
    assert names - STDLIB == {"numpy"}
