"""Runs one product of a case on addresses, as a C caller would, and compares it with the oracle.

Memory is laid out as the case says; outputs are poisoned with NaN beforehand, and so is all that lies between rows.
It is prepared and judged in NumPy arrays; a run happens where `memory` puts them (HostMemory: where they are).
"""

from dataclasses import dataclass, field

import compare
import numpy as np
import oracle
import tolerances

import bsparse_core as bc

DTYPES = oracle.DTYPES
OPS = ("spmm", "spmm_t", "sddmm")


def pattern_of(case):
    return bc.Pattern(case.rows, case.cols, case.block, case.row_offsets, case.col_indices, case.format)


def address(array):
    return array.__array_interface__["data"][0]


def poison(shape, dtype):
    """An encoded array of NaN."""
    return oracle.encode(np.full(shape, np.nan), dtype)


def place(case, array, order):
    """A 2-D array in the order, with the case's pad and offset: a view of that shape."""
    return case.strided(array) if order == "row_major" else case.strided(array.T).T


def leading(view, order):
    """The leading dimension of a placed array: the elements from one row (column) to the next."""
    step = view.strides[0] if order == "row_major" else view.strides[1]
    lines, line = view.shape if order == "row_major" else view.shape[::-1]
    return step // view.itemsize if lines > 1 else line


def workspace(plan, tokens):
    """Scratch for one run, aligned to 64 bytes and full of ones: a plan must not rely on what it finds there."""
    room = np.full(plan.workspace_bytes(tokens) + 64, 0xFF, np.uint8)
    return room[-address(room) % 64 :]


class HostMemory:
    """The memory of a run on the CPU: that of the arrays themselves. Another memory offers the same three methods."""

    arithmetic = "scalar"  # see tolerances.py

    def address(self, array):
        """Where a run finds this array."""
        return address(array)

    def buffers(self, plan, tokens):
        """Workspace and schedule of one run, as arguments of Plan.run."""
        self.scratch = workspace(plan, tokens)
        return {"workspace": address(self.scratch)}

    def fetch(self):
        """Brings what the run wrote back to the arrays."""


@dataclass
class Dense:
    """spmm or spmm_t of a case. `run` gives D and aux as they are stored, [rows of D, tokens]."""

    case: object
    op: str
    dtype: str
    out_dtype: str | None = None
    bias: str | None = None  # dtype
    c: str | None = None  # dtype
    c_is_d: bool = False
    aux: bool = False
    epilogue: str = "none"
    alpha: float = 1.0
    beta: float = 0.0
    b_order: str = "col_major"
    d_order: str = "col_major"
    flags: int = 0
    out: str = field(init=False)

    def __post_init__(self):
        self.out = self.out_dtype or self.dtype
        data = self.case.operands(self.dtype)
        transposed = self.op == "spmm_t"
        self.s = data.s.T if transposed else data.s
        self.b = (data.dy if transposed else data.x).T
        self.bias_exact = oracle.round_to(data.bias_t if transposed else data.bias, self.bias) if self.bias else None
        shape = len(self.s), self.case.tokens
        self.c_exact = oracle.round_to(np.random.default_rng(3).standard_normal(shape), self.c) if self.c else None
        self.values, self.metadata = oracle.encode(data.values, self.dtype), data.metadata

    def plan(self, context):
        return bc.Plan(
            context,
            pattern_of(self.case),
            op=self.op,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            bias_dtype=self.bias,
            c_dtype=self.c,
            epilogue=self.epilogue,
            b_order=self.b_order,
            d_order=self.d_order,
            flags=self.flags,
        )

    def run(self, context, plan=None, memory=None):
        """D and aux, encoded, [rows of D, tokens]."""
        memory = memory or HostMemory()
        shape = len(self.s), self.case.tokens
        b = place(self.case, oracle.encode(self.b, self.dtype), self.b_order)
        c = place(self.case, oracle.encode(self.c_exact, self.c), self.d_order) if self.c else None
        d = c if self.c_is_d else place(self.case, poison(shape, self.out), self.d_order)
        aux = place(self.case, poison(shape, self.out), self.d_order) if self.aux else None
        bias = oracle.encode(self.bias_exact, self.bias) if self.bias else None
        plan = plan or self.plan(context)
        plan.run(
            tokens=self.case.tokens,
            values=memory.address(self.values),
            **({} if self.metadata is None else {"metadata": memory.address(self.metadata)}),
            b=memory.address(b),
            ldb=leading(b, self.b_order),
            d=memory.address(d),
            ldd=leading(d, self.d_order),
            alpha=self.alpha,
            beta=self.beta,
            **memory.buffers(plan, self.case.tokens),
            **({} if c is None else {"c": memory.address(c), "ldc": leading(c, self.d_order)}),
            **({} if bias is None else {"bias": memory.address(bias)}),
            **({} if aux is None else {"aux": memory.address(aux), "ldaux": leading(aux, self.d_order)}),
        )
        memory.fetch()
        for written in (d, aux) if self.aux else (d,):
            assert_untouched_between(written, self.out)
        return d.copy(), aux.copy() if self.aux else None

    def exact(self):
        """The oracle's D and aux."""
        added = {"c": self.c_exact, "bias": self.bias_exact, "epilogue": self.epilogue}
        return oracle.spmm(self.s, self.b, alpha=self.alpha, beta=self.beta, **added)

    def check(self, context, memory=None, beside=None):
        """Runs, and compares D and aux with the oracle, and D with the result of another context, `beside`."""
        memory = memory or HostMemory()
        d, aux = self.run(context, memory=memory)
        exact, before = self.exact()
        size = abs(self.alpha) * oracle.magnitude(self.s, self.b)
        size += 0 if self.beta == 0 else abs(self.beta * self.c_exact)
        size += 0 if self.bias is None else abs(self.bias_exact[:, None])
        how = self.s.shape[1], self.dtype, self.out
        allowed = tolerances.bound(exact, size, *how, self.epilogue, before, arithmetic=memory.arithmetic)
        compare.assert_close(oracle.decode(d, self.out), exact, allowed, "D")
        if beside is not None:
            assert_alike(d, self.run(beside)[0], allowed, self.out, "D")
        if self.aux:
            allowed = tolerances.bound(before, size, *how, arithmetic=memory.arithmetic)
            compare.assert_close(oracle.decode(aux, self.out), before, allowed, "aux")


@dataclass
class Sampled:
    """sddmm of a case. `run` gives the values as they are stored."""

    case: object
    dtype: str
    out_dtype: str | None = None
    alpha: float = 1.0
    beta: float = 0.0
    a_order: str = "col_major"
    b_order: str = "row_major"
    flags: int = 0
    out: str = field(init=False)

    def __post_init__(self):
        self.out = self.out_dtype or self.dtype
        data = self.case.operands(self.dtype)
        self.a, self.b = data.dy.T, data.x
        self.before, self.metadata = oracle.round_to(data.values, self.out), data.metadata

    def plan(self, context):
        request = {"dtype": self.dtype, "out_dtype": self.out_dtype, "a_order": self.a_order, "b_order": self.b_order}
        return bc.Plan(context, pattern_of(self.case), op="sddmm", flags=self.flags, **request)

    def run(self, context, plan=None, memory=None):
        """Values, encoded, in their shape."""
        memory = memory or HostMemory()
        a = place(self.case, oracle.encode(self.a, self.dtype), self.a_order)
        b = place(self.case, oracle.encode(self.b, self.dtype), self.b_order)
        values = poison(self.before.shape, self.out) if self.beta == 0 else oracle.encode(self.before, self.out)
        plan = plan or self.plan(context)
        plan.run(
            tokens=self.case.tokens,
            a=memory.address(a),
            lda=leading(a, self.a_order),
            b=memory.address(b),
            ldb=leading(b, self.b_order),
            values=memory.address(values),
            **({} if self.metadata is None else {"metadata": memory.address(self.metadata)}),
            alpha=self.alpha,
            beta=self.beta,
            **memory.buffers(plan, self.case.tokens),
        )
        memory.fetch()
        return values

    def exact(self):
        """The oracle's values."""
        given = {"alpha": self.alpha, "beta": self.beta, "values": self.before}
        return self.case.sddmm(self.a, self.b, self.metadata, **given)

    def check(self, context, memory=None, beside=None):
        """Runs, and compares the values with the oracle and with those of `beside`; padding must be exactly zero."""
        case, memory = self.case, memory or HostMemory()
        values = self.run(context, memory=memory)
        exact = self.exact()
        size = case.sddmm(np.abs(self.a), np.abs(self.b), self.metadata, alpha=abs(self.alpha))
        size += abs(self.beta * self.before)
        allowed = tolerances.bound(exact, size, case.tokens, self.dtype, self.out, arithmetic=memory.arithmetic)
        compare.assert_close(oracle.decode(values, self.out), exact, allowed, "values")
        if beside is not None:
            assert_alike(values, self.run(beside), allowed, self.out, "values")
        outside = case.pack(np.ones(case.shape), self.metadata) == 0
        assert not oracle.decode(values, self.out)[outside].any(), "the padding of edge blocks is not zero"


def product(case, op, dtype, **rest):
    """A Dense or a Sampled."""
    return Sampled(case, dtype, **rest) if op == "sddmm" else Dense(case, op, dtype, **rest)


def assert_alike(ours, theirs, allowed, dtype, what):
    """Two results that each lie within `allowed` of the oracle lie within twice that of each other."""
    compare.assert_close(
        oracle.decode(ours, dtype), oracle.decode(theirs, dtype), 2 * allowed, f"beside the CPU, {what}"
    )


def assert_untouched_between(view, dtype):
    """All elements of the memory below a placed array, but for its own, are NaN still."""
    saved = view.copy()
    view[...] = poison((), dtype)
    untouched = np.isnan(oracle.decode(view.base, dtype)).all()
    view[...] = saved
    assert untouched, "something was written between the rows of D"
