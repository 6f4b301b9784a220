"""Block-sparse matrix products on CPUs and NVIDIA GPUs: the C library of bsparse, on raw pointers.

bsparse_core.numpy offers the same on NumPy arrays. `python -m bsparse_core` tells what this machine can run.
"""

from bsparse_core._library import version as _version
from bsparse_core.context import Context, devices
from bsparse_core.errors import BackendError, BsparseError, InternalError, InvalidArgument, OutOfMemory, Unsupported
from bsparse_core.pattern import Pattern
from bsparse_core.plan import Plan
from bsparse_core.types import Backend, CpuIsa, DType, Epilogue, Flags, Format, Op, Order
from bsparse_core.values import check_metadata, pack_values, pack_values_at, unpack_values

__version__ = _version()

__all__ = [
    "Backend",
    "BackendError",
    "BsparseError",
    "Context",
    "CpuIsa",
    "DType",
    "Epilogue",
    "Flags",
    "Format",
    "InternalError",
    "InvalidArgument",
    "Op",
    "Order",
    "OutOfMemory",
    "Pattern",
    "Plan",
    "Unsupported",
    "check_metadata",
    "devices",
    "pack_values",
    "pack_values_at",
    "unpack_values",
]
