"""A failed C call as a Python exception that carries C's sentence."""

from bsparse_core._library import lib, text


class BsparseError(Exception):
    """Any failure of bsparse."""


class InvalidArgument(BsparseError, ValueError):
    """The caller's mistake: the message names the field, its value, the rule and the cure."""


class Unsupported(BsparseError, NotImplementedError):
    """A valid request that no kernel here serves."""


class OutOfMemory(BsparseError, MemoryError):
    """Host memory ran out."""


class BackendError(BsparseError, RuntimeError):
    """A CUDA or operating system call failed; the message holds its text."""


class InternalError(BsparseError, RuntimeError):
    """A bug in bsparse: please report it."""


_KINDS: dict[int, type[BsparseError]] = {
    lib.BSPARSE_INVALID_ARGUMENT: InvalidArgument,
    lib.BSPARSE_UNSUPPORTED: Unsupported,
    lib.BSPARSE_OUT_OF_MEMORY: OutOfMemory,
    lib.BSPARSE_BACKEND_ERROR: BackendError,
    lib.BSPARSE_INTERNAL: InternalError,
}


def check(status: int) -> None:
    """Raises the exception of a bsparse_status other than BSPARSE_OK, with this thread's last error as its text."""
    if status != lib.BSPARSE_OK:
        raise _KINDS.get(status, InternalError)(text(lib.bsparse_last_error()))
