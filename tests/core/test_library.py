"""Opening the library, the package's surface, and `python -m bsparse_core`."""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bsparse_core as bc
from bsparse_core import _library


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def python(*arguments, **options):
    done = run(sys.executable, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_version_is_the_distributions():
    assert bc.__version__ == importlib.metadata.version("bsparse-core")


def test_all_is_the_surface():
    from types import ModuleType

    public = {name for name, value in vars(bc).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert public == set(bc.__all__)


def test_imports_neither_torch_nor_numpy():
    code = "import sys, bsparse_core; print({'torch', 'numpy', 'transformers'} & set(sys.modules))"
    assert python("-c", code) == "set()"


def test_the_tests_import_no_torch():
    assert "torch" not in sys.modules


def test_missing_library(tmp_path):
    path = tmp_path / "libbsparse.so.1"
    with pytest.raises(ImportError, match=rf"{path} is missing.*incomplete: install bsparse-core"):
        _library._open(path)


def test_library_that_is_none(tmp_path):
    path = tmp_path / "libbsparse.so.1"
    path.write_bytes(b"not a library")
    with pytest.raises(ImportError, match=rf"{path} cannot be loaded.*install bsparse-core.*on this machine"):
        _library._open(path)


def test_library_of_another_abi(monkeypatch):
    class Library:
        BSPARSE_ABI = 1

        @staticmethod
        def bsparse_abi():
            return 2

    class Ffi:
        @staticmethod
        def dlopen(path):
            return Library

    monkeypatch.setattr(_library, "ffi", Ffi)
    with pytest.raises(ImportError, match="has ABI 2, and these bindings were made for ABI 1: two versions"):
        _library._open(_library.PATH)


def test_source_tree_says_that_it_is_not_built(tmp_path):
    package = tmp_path / "bsparse_core"
    ignore = shutil.ignore_patterns("_bindings.py", "__pycache__", "lib")
    shutil.copytree(Path(bc.__file__).parent, package, ignore=ignore)
    done = run(sys.executable, "-c", "import bsparse_core", cwd=tmp_path)
    assert "ImportError: bsparse_core was imported from a source tree that has not been built: install" in done.stderr


def test_works_from_a_path_with_a_space(tmp_path):
    room = tmp_path / "a room with spaces"
    shutil.copytree(Path(bc.__file__).parent, room / "bsparse_core")
    where = python("-c", "import bsparse_core as bc; print(bc.Context().name, bc.__file__)", cwd=room)
    assert where.startswith("cpu ")
    assert where.endswith(f"{room}/bsparse_core/__init__.py")


def test_main_tells_what_runs():
    told = python("-m", "bsparse_core")
    assert f"bsparse-core {bc.__version__}, ABI 1" in told
    assert bc.Context().name in told
    for format in ("bsr", "semi24", "bsr24"):
        assert [format, "spmm", "yes", "yes", "yes", "-", "-", "yes"] in [line.split() for line in told.splitlines()]
    assert "cuda" in told


def test_main_runs_without_docstrings():
    assert "Versions, backends, devices" in python("-OO", "-m", "bsparse_core", "--help")


@pytest.mark.parametrize(
    ("option", "holds"),
    [("--include", "bsparse/bsparse.h"), ("--cmake-dir", "bsparse-config.cmake"), ("--lib", "")],
)
def test_main_prints_paths(option, holds):
    assert (Path(python("-m", "bsparse_core", option)) / holds).exists()


PROGRAM = r"""
#include <bsparse/bsparse.h>
#include <stdio.h>
int main(void) {
    printf("%u %d\n", bsparse_abi(), bsparse_backend_devices(BSPARSE_BACKEND_CPU));
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler here, so no C program was built")
def test_a_c_program_builds_with_the_paths(tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    include, library = python("-m", "bsparse_core", "--include"), python("-m", "bsparse_core", "--lib")
    rpath = f"-Wl,-rpath,{Path(library).parent}"
    built = run("cc", "-std=c99", "program.c", "-o", "program", f"-I{include}", library, rpath, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert run("./program", cwd=tmp_path).stdout == "1 1\n"


CMAKE = """
cmake_minimum_required(VERSION 3.24)
project(consumer LANGUAGES C)
find_package(bsparse CONFIG REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE bsparse::bsparse)
"""


@pytest.mark.skipif(not shutil.which("cmake"), reason="there is no cmake here, so no CMake consumer was built")
def test_a_cmake_consumer_builds_with_the_paths(tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    found = f"-Dbsparse_DIR={python('-m', 'bsparse_core', '--cmake-dir')}"
    for command in (("cmake", "-S", ".", "-B", "build", found), ("cmake", "--build", "build")):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert run("build/program", cwd=tmp_path).stdout == "1 1\n"
