"""Planned: one product with its tensors on the device."""

import torch
from core.products import pattern_of

import bsparse_core as bc

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class Planned:
    """A plan, its work lists, and its operands: values [blocks, block_rows, block_cols], x [tokens, cols], dy [tokens,
    rows]. `run` enqueues it on the current stream."""

    def __init__(self, context, pattern, op, dtype, values, x, dy, flags=0):
        self.values, self.x, self.dy, self.tokens = values, x, dy, len(x)
        self.op, self.plan = op, bc.Plan(context, pattern, op=op, dtype=dtype, flags=flags)
        self.schedule = torch.empty(max(self.plan.schedule_bytes, 1), dtype=torch.uint8, device="cuda")
        if self.plan.schedule_bytes:
            self.plan.upload(self.schedule.data_ptr(), torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()

    @property
    def kernel(self):
        return self.plan.kernel(self.tokens)

    def empty(self):
        """A result full of NaN."""
        return torch.full_like({"spmm": self.dy, "spmm_t": self.x, "sddmm": self.values}[self.op], torch.nan)

    def run(self, out):
        """Writes the result into out, and returns it."""
        workspace = torch.empty(self.plan.workspace_bytes(self.tokens), dtype=torch.uint8, device="cuda")
        run = {"schedule": self.schedule.data_ptr(), "workspace": workspace.data_ptr()}
        rows, cols = self.dy.shape[1], self.x.shape[1]
        if self.op == "sddmm":
            run |= {"a": self.dy.data_ptr(), "lda": rows, "b": self.x.data_ptr(), "ldb": cols, "values": out.data_ptr()}
        else:
            b = self.x if self.op == "spmm" else self.dy
            run |= {"b": b.data_ptr(), "ldb": b.shape[1], "values": self.values.data_ptr()}
            run |= {"d": out.data_ptr(), "ldd": out.shape[1]}
        self.plan.run(tokens=self.tokens, stream=torch.cuda.current_stream().cuda_stream, **run)
        return out


def of_case(context, case, op, dtype, flags=0):
    """The product of a case."""
    data = case.operands(dtype)
    operands = (torch.from_numpy(found).to("cuda", DTYPES[dtype]) for found in (data.values, data.x, data.dy))
    return Planned(context, pattern_of(case), op, dtype, *operands, flags)
