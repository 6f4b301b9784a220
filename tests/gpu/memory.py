"""DeviceMemory: runs the products of tests/core/products.py on a CUDA device."""

import numpy as np
import torch

GUARD, GUARD_BYTE = 512, 0xA5  # bytes on either side of each buffer, which nobody may write to


class DeviceMemory:
    """Copies of NumPy arrays on the device, between guards; for one run.

    guard: bytes on each side of a buffer. 0 leaves the edges to compute-sanitizer, and the workspace uninitialised;
        PYTORCH_NO_CUDA_MEMORY_CACHING=1 then makes each buffer an allocation of its own.
    """

    def __init__(self, arithmetic="tensor", guard=GUARD, device=0):
        self.arithmetic, self.guard, self.device = arithmetic, guard, torch.device("cuda", device)
        self._mirrors = {}  # id of the array that owns the memory: (that array or None, the buffer on the device)

    def address(self, array):
        owner = array if array.base is None else array.base
        if id(owner) not in self._mirrors:
            self._mirrors[id(owner)] = owner, self._upload(owner.reshape(-1).view(np.uint8))
        start = owner.__array_interface__["data"][0]
        offset = array.__array_interface__["data"][0] - start if array.size else 0
        return self._mirrors[id(owner)][1].data_ptr() + self.guard + offset

    def buffers(self, plan, tokens):
        stream = torch.cuda.current_stream(self.device).cuda_stream
        found = {"stream": stream}
        for name, size in (("workspace", plan.workspace_bytes(tokens)), ("schedule", plan.schedule_bytes)):
            if size and self.guard:
                buffer = self._upload(np.full(size, 0xFF, np.uint8))
            else:
                buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
            self._mirrors[name] = None, buffer
            found[name] = buffer.data_ptr() + self.guard if size else 0
        if plan.schedule_bytes:
            plan.upload(found["schedule"], stream)
        return found

    def fetch(self):
        torch.cuda.synchronize(self.device)
        for name, (owner, buffer) in self._mirrors.items():
            if not buffer.numel() or (owner is None and not self.guard):
                continue  # nobody reads scratch memory, of which a run may leave parts unwritten
            read = buffer.cpu().numpy()
            end = len(read) - self.guard
            assert (read[: self.guard] == GUARD_BYTE).all(), f"something was written before the start of {_label(name)}"
            assert (read[end:] == GUARD_BYTE).all(), f"something was written behind the end of {_label(name)}"
            if owner is not None:
                owner.reshape(-1).view(np.uint8)[:] = read[self.guard : end]

    def _upload(self, data):
        guard = np.full(self.guard, GUARD_BYTE, np.uint8)
        return torch.from_numpy(np.concatenate([guard, data, guard])).to(self.device)


def _label(name):
    return name if isinstance(name, str) else "an operand"
