"""Plan: one product on one pattern, for any number of tokens."""

import struct
from typing import Any

from bsparse_core._handle import Frozen, address, create, describe, handle, integer
from bsparse_core._library import ffi, lib, text
from bsparse_core.context import Context
from bsparse_core.errors import InvalidArgument, check
from bsparse_core.pattern import Pattern
from bsparse_core.types import DType, Epilogue, Op, Order


def _args_format() -> str:
    """The struct format of bsparse_args, from its fields as cffi laid them out."""
    codes = {"size_t": "N", "int64_t": "q", "double": "d"}  # pointers too are "N": "P" takes negative numbers
    form = "@"
    for name, field in ffi.typeof("bsparse_args").fields:
        form += "N" if field.type.kind == "pointer" else codes[field.type.cname]
        if struct.calcsize(form) - ffi.sizeof(field.type) != field.offset:
            raise ImportError(f"bsparse_args.{name} lies at {field.offset}; {form!r} puts it elsewhere")
    return form


# The order in which Plan.run packs.
_FIELDS = (
    "struct_size", "tokens", "a", "lda", "b", "ldb", "s_values", "s_metadata", "prepared", "c", "ldc", "d", "ldd",
    "aux", "ldaux", "bias", "alpha", "beta", "row_scales", "token_scales", "batch", "b_stride", "c_stride", "d_stride",
)  # fmt: skip
_RESERVED = (0,) * 6  # row_scales to d_stride
_FORMAT = _args_format()
_PACK = struct.Struct(_FORMAT).pack
_SIZE = ffi.sizeof("bsparse_args")
_ARGS = ffi.typeof("bsparse_args *")
_from_buffer, _run = ffi.from_buffer, lib.bsparse_plan_run  # looked up once: a run is called often

if tuple(name for name, _ in ffi.typeof("bsparse_args").fields) != _FIELDS or struct.calcsize(_FORMAT) != _SIZE:
    raise ImportError("bsparse_core.plan does not know the fields of bsparse_args in bsparse.h: update _FIELDS")


class Plan(Frozen):
    """One product on one pattern: kernel and order of work. Threads may share it and run it at once.

    Args:
        context: where it runs.
        pattern: what is stored of S [rows, cols].
        op: "spmm" D = act(alpha S B + beta C + bias), "spmm_t" with S^T, "sddmm" values = alpha A B + beta values.
        dtype: of S, A and B: "f32", "f16", "bf16" or "f64".
        out_dtype: of D, in sddmm of the values: dtype or "f32"; None: dtype.
        bias_dtype, c_dtype: of bias and C: out_dtype or "f32"; None: out_dtype.
        epilogue: "none", "relu", "gelu", "gelu_tanh" or "silu"; "none" in sddmm.
        a_order, b_order, d_order: "row_major" or "col_major"; None: that of row-major activations. C and aux lie as D.
        flags: Flags combined by |.

    Raises:
        InvalidArgument: an unknown name, or a combination that bsparse.h rules out.
        Unsupported: a valid plan that no kernel here serves.
    """

    __slots__ = ("_handle", "context", "dtype", "epilogue", "op", "out_dtype", "pattern")

    _handle: Any
    context: Context
    pattern: Pattern
    op: Op
    dtype: DType
    out_dtype: DType
    epilogue: Epilogue

    def __init__(
        self,
        context: Context,
        pattern: Pattern,
        *,
        op: Op | str,
        dtype: DType | str,
        out_dtype: DType | str | None = None,
        bias_dtype: DType | str | None = None,
        c_dtype: DType | str | None = None,
        epilogue: Epilogue | str = Epilogue.NONE,
        a_order: Order | str | None = None,
        b_order: Order | str | None = None,
        d_order: Order | str | None = None,
        flags: int = 0,
    ) -> None:
        handles = handle("context", context, Context), handle("pattern", pattern, Pattern)
        description = _describe(
            op=op,
            dtype=dtype,
            out_dtype=out_dtype,
            bias_dtype=bias_dtype,
            c_dtype=c_dtype,
            epilogue=epilogue,
            a_order=a_order,
            b_order=b_order,
            d_order=d_order,
            flags=flags,
        )
        self.context, self.pattern = context, pattern
        self.op, self.dtype = Op(description.op), DType(description.dtype)
        self.out_dtype = DType(description.out_dtype or description.dtype)
        self.epilogue = Epilogue(description.epilogue)
        self._handle = create(lib.bsparse_plan_create, lib.bsparse_plan_destroy, *handles, description)

    @staticmethod
    def supports(context: Context, pattern: Pattern, **request: Any) -> None:
        """Raises what Plan(context, pattern, **request) would raise, without making the plan."""
        handles = handle("context", context, Context), handle("pattern", pattern, Pattern)
        check(lib.bsparse_plan_supports(*handles, _describe(**request)))

    @property
    def schedule_bytes(self) -> int:
        """Bytes of the device copy of the plan's work lists; 0 on the CPU."""
        return int(lib.bsparse_plan_schedule_bytes(self._handle))

    def workspace_bytes(self, tokens: int) -> int:
        """Bytes of scratch that one run needs, aligned to 64. Raises InvalidArgument for tokens that run refuses."""
        size = int(lib.bsparse_plan_workspace_bytes(self._handle, integer("tokens", tokens, 64)))
        if size == 0:  # C's answer to what it refuses, too
            self.kernel(tokens)
        return size

    def kernel(self, tokens: int) -> str:
        """The name of the kernel that serves this many tokens. Raises InvalidArgument for tokens that run refuses."""
        name = text(lib.bsparse_plan_kernel(self._handle, integer("tokens", tokens, 64)))
        if not name:
            raise InvalidArgument(text(lib.bsparse_last_error()))
        return name

    def upload(self, schedule: int, stream: int = 0) -> None:
        """Copies the work lists to schedule_bytes of device memory at this address, on a stream, asynchronously."""
        check(lib.bsparse_plan_upload(self._handle, address("schedule", schedule), address("stream", stream)))

    def run(
        self,
        *,
        tokens: int,
        a: int = 0,
        lda: int = 0,
        b: int = 0,
        ldb: int = 0,
        values: int = 0,
        metadata: int = 0,
        d: int = 0,
        ldd: int = 0,
        c: int = 0,
        ldc: int = 0,
        bias: int = 0,
        aux: int = 0,
        ldaux: int = 0,
        alpha: float = 1.0,
        beta: float = 0.0,
        schedule: int = 0,
        workspace: int = 0,
        stream: int = 0,
    ) -> None:
        """Runs the product on memory at these addresses, which C cannot check: they must hold what is said here.

        Args:
            tokens: columns of B and D, in sddmm the inner size; 0 is fine.
            a: [rows, tokens], sddmm only.
            b: [cols, tokens] in spmm, [rows, tokens] in spmm_t, [tokens, cols] in sddmm.
            values: pattern.values_shape; read by spmm and spmm_t, written by sddmm.
            metadata: uint8 pattern.metadata_shape: the positions of 2:4 values, sddmm's too; 0 for "bsr". The CPU
                checks it in every run, before it writes; a GPU does not: see check_metadata.
            d, c, aux: [rows, tokens] in spmm, [cols, tokens] in spmm_t; aux receives the value before the activation.
            bias: one entry for each row of D.
            lda, ldb, ldc, ldd, ldaux: leading dimensions: elements from one row (column) to the next.
            alpha, beta: C is read where beta is not 0; it may be D itself.
            schedule, workspace: schedule_bytes once uploaded, and workspace_bytes(tokens); 0 where their bytes are 0.
            stream: a CUDA stream; on the CPU the call returns when done.
        """
        fields = (
            _SIZE, tokens, a, lda, b, ldb, values, metadata, 0, c, ldc, d, ldd, aux, ldaux, bias, alpha, beta,
            *_RESERVED,
        )  # fmt: skip
        try:
            args = _from_buffer(_ARGS, _PACK(*fields))
        except (struct.error, TypeError):
            raise _misfit(fields) from None
        memory = address("schedule", schedule), address("workspace", workspace)
        status = _run(self._handle, args, *memory, address("stream", stream))
        if status:
            check(status)

    def __repr__(self) -> str:
        types = f"{self.dtype}" if self.out_dtype is self.dtype else f"{self.dtype} to {self.out_dtype}"
        end = "" if self.epilogue is Epilogue.NONE else f" + {self.epilogue}"
        return f"<bsparse Plan: {self.op} {types}{end} on {self.context.name}, {self.pattern!r}>"


def _describe(
    *,
    op: Op | str,
    dtype: DType | str,
    out_dtype: DType | str | None = None,
    bias_dtype: DType | str | None = None,
    c_dtype: DType | str | None = None,
    epilogue: Epilogue | str = Epilogue.NONE,
    a_order: Order | str | None = None,
    b_order: Order | str | None = None,
    d_order: Order | str | None = None,
    flags: int = 0,
) -> Any:
    """A bsparse_plan_desc; None is C's 0, its default."""
    types = {"out_dtype": out_dtype, "bias_dtype": bias_dtype, "c_dtype": c_dtype}
    orders = {"a_order": a_order, "b_order": b_order, "d_order": d_order}
    return describe(
        "plan_desc",
        op=Op.of("op", op),
        dtype=DType.of("dtype", dtype),
        epilogue=Epilogue.of("epilogue", epilogue),
        flags=flags,
        **{field: 0 if value is None else DType.of(field, value) for field, value in types.items()},
        **{field: 0 if value is None else Order.of(field, value) for field, value in orders.items()},
    )


def _misfit(fields: tuple[Any, ...]) -> InvalidArgument:
    """The error that names the argument which bsparse_args cannot hold."""
    for code, name, value in zip(_FORMAT[1:], _FIELDS, fields, strict=True):
        try:
            struct.pack(code, value)
        except (struct.error, TypeError):
            wanted = {"d": "a number", "q": "an integer of 64 bits", "N": "an address, an int"}[code]
            return InvalidArgument(f"args.{name} is {value!r}; it must be {wanted}")
    raise AssertionError("every field fits alone, but not together")
