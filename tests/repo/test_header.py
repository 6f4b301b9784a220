"""bsparse.h is read the same by C99, C++11 and cffi."""

import re
import shutil
import subprocess
from pathlib import Path

import cffi
import pytest

HEADER = Path(__file__).resolve().parents[2] / "cuda/include/bsparse/bsparse.h"
REGION = HEADER.read_text().split("/* cffi: begin */")[1].split("/* cffi: end */")[0].replace("BSPARSE_API ", "")
STRUCTS = re.findall(r"typedef struct (\w+) \{", REGION)
FIELDS = """#include <stdio.h>
#include "bsparse/bsparse.h"
int main(void) {
%s
    return 0;
}
"""


def compile_text(folder, text, *command):
    """Compiles a text with warnings as errors; returns the program's path."""
    source = folder / ("program.cc" if "++" in command[0] else "program.c")
    source.write_text(text)
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{HEADER.parents[1]}"]
    subprocess.run([*command, *flags, str(source), "-o", str(folder / "program")], check=True)
    return folder / "program"


@pytest.mark.parametrize("command", [("cc", "-std=c99"), ("c++", "-std=c++11")], ids=["c99", "c++11"])
def test_header_compiles_without_a_warning(command, tmp_path):
    compile_text(tmp_path, FIELDS % '    printf("%d", BSPARSE_ABI);', *command)


def test_cffi_sees_the_layout_that_the_compiler_sees(tmp_path):
    ffi = cffi.FFI()
    ffi.cdef(REGION)
    expected = {name: ffi.sizeof(name) for name in STRUCTS}
    for name in STRUCTS:
        expected |= {f"{name}.{field}": ffi.offsetof(name, field) for field, _ in ffi.typeof(name).fields}
    asks = [f"offsetof({key.replace('.', ', ')})" if "." in key else f"sizeof({key})" for key in expected]
    lines = [f'    printf("%s %zu\\n", "{key}", {ask});' for key, ask in zip(expected, asks, strict=True)]
    program = compile_text(tmp_path, FIELDS % "\n".join(lines), "cc", "-std=c99")
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert dict(line.split() for line in printed.splitlines()) == {key: str(size) for key, size in expected.items()}


def test_every_sized_struct_begins_with_struct_size():
    ffi = cffi.FFI()
    ffi.cdef(REGION)
    assert STRUCTS
    for name in STRUCTS:
        assert ffi.typeof(name).fields[0][0] == "struct_size"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not on PATH")
def test_header_compiles_with_nvcc(tmp_path):
    source = tmp_path / "program.cu"
    source.write_text('#include "bsparse/bsparse.h"\n')
    subprocess.run(["nvcc", "-c", f"-I{HEADER.parents[1]}", str(source), "-o", str(tmp_path / "program.o")], check=True)
