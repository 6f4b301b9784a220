"""Host patterns and their plans: one of each for everything in the process that has the same pattern.

Graphs and op calls carry a pattern as its key, a digest of its contents, with its index tensors. `find` turns the key
into the host pattern. Where the process has not seen the key (an exported program in a fresh process) it rebuilds
the pattern from the index tensors, once; otherwise it never reads them.
"""

import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

import bsparse_core as bc

REBUILT_KEPT = 1024  # patterns rebuilt for graphs that no BlockPattern keeps alive: more than a large model's layers
TOKENS_KEPT = 256  # numbers of tokens whose workspace a plan remembers

DTYPE_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Prepared:
    """A plan, ready to run on its device."""

    __slots__ = ("_streams", "_workspace_bytes", "plan", "schedule")

    plan: bc.Plan
    schedule: Tensor | None  # uint8 [schedule_bytes] on the device; None where a plan needs none

    def __init__(self, plan: bc.Plan, schedule: Tensor | None, stream: int = 0) -> None:
        self.plan, self.schedule = plan, schedule
        self._streams = {stream}  # those that torch's allocator waits for before it reuses the schedule's memory
        self._workspace_bytes: dict[int, int] = {}  # by tokens

    def workspace_bytes(self, tokens: int) -> int:
        """Scratch memory for a run of so many tokens."""
        found = self._workspace_bytes.get(tokens)
        if found is None:
            if len(self._workspace_bytes) >= TOKENS_KEPT:
                self._workspace_bytes.clear()
            found = self._workspace_bytes[tokens] = self.plan.workspace_bytes(tokens)
        return found

    def schedule_for(self, stream: int) -> int:
        """The schedule's address, 0 where there is none, for a run on the current stream, a CUDA one."""
        if self.schedule is None:
            return 0
        if stream not in self._streams:
            self.schedule.record_stream(torch.cuda.current_stream(self.schedule.device))
            self._streams.add(stream)
        return self.schedule.data_ptr()


class HostPattern:
    """A validated pattern in host memory, with the plans made for it so far. Threads may share it."""

    def __init__(self, pattern: bc.Pattern) -> None:
        self.pattern = pattern
        self.format = pattern.format.label
        self.geometry = (pattern.rows, pattern.cols, *pattern.block, pattern.blocks, self.format)
        self._plans: dict[tuple[object, ...], Prepared] = {}
        self._lock = threading.Lock()

    def plan(
        self, op: str, dtype: torch.dtype, device: torch.device, epilogue: str, bias_dtype: torch.dtype | None
    ) -> Prepared:
        """The plan of one product, made at the first call. Raises bc.Unsupported where no kernel serves it."""
        threads = torch.get_num_threads() if device.type == "cpu" else 0
        key = (op, dtype, device, epilogue, bias_dtype, threads, _flags(dtype, device))
        found = self._plans.get(key)
        if found is None:
            with self._lock:
                found = self._plans.get(key) or self._make(*key)
                self._plans[key] = found
        return found

    def _make(
        self,
        op: str,
        dtype: torch.dtype,
        device: torch.device,
        epilogue: str,
        bias_dtype: torch.dtype | None,
        threads: int,
        flags: int,
    ) -> Prepared:
        plan = bc.Plan(
            _context(device, threads),
            self.pattern,
            op=op,
            dtype=DTYPE_NAMES[dtype],
            bias_dtype=None if bias_dtype is None else DTYPE_NAMES[bias_dtype],
            epilogue=epilogue,
            flags=flags,
        )
        if not plan.schedule_bytes:
            return Prepared(plan, None)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the plan of {op} in {DTYPE_NAMES[dtype]} is made at its first call, and a CUDA graph is being "
                "captured, which cannot hold that: run the same forward and backward once before the capture"
            )
        # A thread of its own: while torch.compile prepares a CUDA graph, what this thread allocates belongs to the
        # graph, which takes it back when it is made.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_upload, plan, device).result()


_lock = threading.Lock()
_hosts: "weakref.WeakValueDictionary[int, HostPattern]" = weakref.WeakValueDictionary()  # by key
_rebuilt: "OrderedDict[int, HostPattern]" = OrderedDict()  # keeps the latest REBUILT_KEPT of _hosts alive
_contexts: dict[tuple[str, int, int], bc.Context] = {}


def _upload(plan: bc.Plan, device: torch.device) -> Prepared:
    """The plan with its schedule on the device."""
    schedule = torch.empty(plan.schedule_bytes, dtype=torch.uint8, device=device)
    stream = torch.cuda.current_stream(device)
    plan.upload(schedule.data_ptr(), stream.cuda_stream)
    stream.synchronize()  # once per plan: any stream may use the schedule from here on
    return Prepared(plan, schedule, stream.cuda_stream)


def _flags(dtype: torch.dtype, device: torch.device) -> int:
    """TF32 is allowed where torch's own matrix products may use it (torch.set_float32_matmul_precision)."""
    if dtype is torch.float32 and device.type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32":
        return int(bc.Flags.ALLOW_TF32)
    return 0


def register(pattern: bc.Pattern) -> HostPattern:
    """The process's host pattern equal to this one; it lives as long as someone holds it."""
    with _lock:
        host = _hosts.get(pattern.key)
        if host is None:
            host = _hosts[pattern.key] = HostPattern(pattern)
    return host


def find(
    key: int, row_offsets: Tensor, col_indices: Tensor, shape: tuple[int, int], block: tuple[int, int], format: str
) -> HostPattern:
    """The host pattern of a key; rebuilt from the index tensors where this process has not seen the key.

    Raises:
        bc.InvalidArgument: the key stands for a pattern of other sizes, or the index tensors have another digest.
    """
    host = _hosts.get(key) or _rebuild(key, row_offsets, col_indices, shape, block, format)
    if host.geometry != (*shape, *block, col_indices.shape[0], format):
        raise bc.InvalidArgument(
            f"pattern_key {key} stands for {host.pattern!r}; the call has a matrix {list(shape)} of format {format} "
            f"with {col_indices.shape[0]} blocks of {list(block)}: pass the key and the tensors of one BlockPattern"
        )
    return host


def _rebuild(
    key: int, row_offsets: Tensor, col_indices: Tensor, shape: tuple[int, int], block: tuple[int, int], format: str
) -> HostPattern:
    pattern = bc.Pattern(*shape, block, row_offsets.tolist(), col_indices.tolist(), format)
    if pattern.key != key:
        raise bc.InvalidArgument(
            f"row_offsets and col_indices have the digest {pattern.key}; pattern_key is {key}: "
            "the index tensors of this graph were changed after it was made; make it again"
        )
    host = register(pattern)
    with _lock:
        _rebuilt[key] = host
        while len(_rebuilt) > REBUILT_KEPT:
            _rebuilt.popitem(last=False)
    return host


def _context(device: torch.device, threads: int) -> bc.Context:
    """The process's context on a device; on the CPU one for each number of threads."""
    index = device.index or 0
    with _lock:
        context = _contexts.get((device.type, index, threads))
        if context is None:
            context = bc.Context(device.type, index, threads=threads or None)
            _contexts[device.type, index, threads] = context
    return context
