"""Opens the C library that lies beside the bindings in this package, once, and compares its ABI with theirs.

`ffi` and `lib` are cffi's: `lib.bsparse_plan_run(...)` is the C function of that name. Calls release the GIL.
"""

from pathlib import Path
from typing import Any

_BUILD = "install bsparse-core from its wheel or sdist (pip install ./packages/bsparse-core)"

try:
    from bsparse_core import _bindings
except ImportError as error:
    raise ImportError(f"bsparse_core was imported from a source tree that has not been built: {_BUILD}") from error

ffi: Any = _bindings.ffi
ROOT = Path(_bindings.__file__).resolve().parent  # the install prefix: include/ and lib/ are here
PATH = ROOT / "lib" / "libbsparse.so.1"


def _open(path: Path) -> Any:
    """The library at path. Raises ImportError where it is missing, cannot be loaded, or speaks another ABI."""
    if not path.is_file():
        raise ImportError(f"{path} is missing, so this installation of bsparse-core is incomplete: {_BUILD}")
    try:
        library = ffi.dlopen(str(path))
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded ({error}): {_BUILD} on this machine") from error
    abi = library.bsparse_abi()
    if abi != library.BSPARSE_ABI:
        raise ImportError(
            f"{path} has ABI {abi}, and these bindings were made for ABI {library.BSPARSE_ABI}: "
            f"two versions of bsparse-core are mixed; uninstall it, then {_BUILD}"
        )
    return library


lib: Any = _open(PATH)


def text(c_string: Any) -> str:
    """A C string as str."""
    return ffi.string(c_string).decode("utf-8", "replace")  # type: ignore[no-any-return]


def version() -> str:
    """The version of the library that runs: "0.1.0"."""
    number = lib.bsparse_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
