"""Makes bsparse_core/_bindings.py of the public header, by cffi's ABI mode: no compiler, no Python version in it.

CMake calls it with the paths of bsparse.h and of the module to write.
"""

import sys
from pathlib import Path

import cffi

BEGIN, END = "/* cffi: begin */", "/* cffi: end */"


def declarations(header: str) -> str:
    """The marked region of the header, as cffi reads it: BSPARSE_API means nothing to a parser."""
    if header.count(BEGIN) != 1 or header.count(END) != 1:
        raise SystemExit(f"bsparse.h must hold {BEGIN} and {END} once each: they mark what Python may call")
    region = header[header.index(BEGIN) + len(BEGIN) : header.index(END)]
    return region.replace("BSPARSE_API ", "")


def main(header: str, output: str) -> None:
    ffi = cffi.FFI()
    ffi.cdef(declarations(Path(header).read_text(encoding="utf-8")))
    ffi.set_source("bsparse_core._bindings", None)
    ffi.emit_python_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
