"""Context: one backend on one device, with its threads."""

from typing import Any

from bsparse_core._handle import Frozen, create, describe
from bsparse_core._library import lib, text
from bsparse_core.types import Backend, CpuIsa


def devices(backend: Backend | str) -> int:
    """How many devices a backend has: 1 for "cpu"; 0 for "cuda" where it is not built, or has no driver or device."""
    return int(lib.bsparse_backend_devices(Backend.of("backend", backend)))


class Context(Frozen):
    """One backend on one device. Threads may share it; on the CPU it owns the threads that products run on.

    Args:
        backend: "cpu" or "cuda".
        device: CUDA ordinal; 0 on the CPU.
        threads: CPU only: threads of one run, the caller's included; None: one per core.
        isa: CPU only, for tests: "portable", "avx2", "avx512" or "avx512_bf16"; None: the best there is.

    Raises:
        InvalidArgument: an unknown name, a device that does not exist, a negative number of threads.
        Unsupported: a backend that is not built in, or an instruction set that this processor lacks.
    """

    __slots__ = ("_handle", "backend", "device", "name")

    _handle: Any
    backend: Backend
    device: int
    name: str  # what it runs on: "cpu avx512, 2 threads"

    def __init__(
        self,
        backend: Backend | str = "cpu",
        device: int = 0,
        threads: int | None = None,
        isa: CpuIsa | str | None = None,
    ) -> None:
        self.backend = Backend.of("backend", backend)
        self.device = device
        description = describe(
            "context_desc",
            backend=self.backend,
            device=device,
            threads=0 if threads is None else threads,
            cpu_isa=CpuIsa.BEST if isa is None else CpuIsa.of("isa", isa),
        )
        self._handle = create(lib.bsparse_context_create, lib.bsparse_context_destroy, description)
        self.name = text(lib.bsparse_context_name(self._handle))

    def __repr__(self) -> str:
        return f"<bsparse Context: {self.name}>"
