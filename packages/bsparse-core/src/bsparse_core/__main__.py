"""What `python -m bsparse_core` prints."""

import argparse
from collections.abc import Iterator

import bsparse_core as bc
from bsparse_core._library import PATH, ROOT, lib

DESCRIPTION = "Versions, backends, devices and what each can run; or the paths that a C build needs."
PATHS = {"include": ROOT / "include", "cmake-dir": ROOT / "lib" / "cmake" / "bsparse", "lib": PATH}


def serves(context: bc.Context, format: bc.Format, op: bc.Op, dtype: bc.DType) -> bool:
    """Whether the context runs this product, asked for a single block of 64 x 64."""
    try:
        pattern = bc.Pattern(64, 64, (64, 64), [0, 1], [0], format)
        bc.Plan.supports(context, pattern, op=op, dtype=dtype)
    except bc.Unsupported:
        return False
    return True


def describe_backend(backend: bc.Backend) -> Iterator[str]:
    """Lines on a backend: its devices, and for each a table of formats and products by dtype."""
    count = bc.devices(backend)
    if not count:
        yield f"{backend}: no device (not built in, or no driver or device here)"
    for device in range(count):
        context = bc.Context(backend, device)
        yield f"{backend} {device}: {context.name}"
        yield "  format  product" + "".join(f"{dtype.label:>8}" for dtype in bc.DType)
        for format in bc.Format:
            for op in bc.Op:
                answers = ("yes" if serves(context, format, op, dtype) else "-" for dtype in bc.DType)
                yield f"  {format.label:<8}{op.label:<7}" + "".join(f"{answer:>8}" for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bsparse_core", description=DESCRIPTION)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--include", action="store_true", help="print the folder of bsparse/bsparse.h")
    chosen.add_argument("--cmake-dir", action="store_true", help="print the folder for -Dbsparse_DIR=")
    chosen.add_argument("--lib", action="store_true", help="print the library's path")
    arguments = vars(parser.parse_args())
    for name, path in PATHS.items():
        if arguments[name.replace("-", "_")]:
            print(path)
            return
    print(f"bsparse-core {bc.__version__}, ABI {lib.bsparse_abi()}")
    print(f"library {PATH}")
    for backend in bc.Backend:
        print("\n" + "\n".join(describe_backend(backend)))


if __name__ == "__main__":
    main()
