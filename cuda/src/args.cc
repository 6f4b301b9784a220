#include "args.h"

#include <cinttypes>
#include <initializer_list>
#include <limits>

#include "dtype.h"
#include "error.h"
#include "plan.h"
#include "positions.h"

namespace bsparse {
namespace {

constexpr uintptr_t kBufferAlignment = 64; // a cache line, and what vector loads like

// An operand's memory: so many lines of so many bytes, each pitch bytes after the one before.
struct Operand {
    const char *field;
    uintptr_t begin;
    int64_t lines, line_bytes, pitch;

    uintptr_t end() const { return begin + (lines - 1) * pitch + line_bytes; }
};

constexpr Operand kNothing{"", 0, 0, 0, 0};

const char *order_name(bsparse_order order) { return order == BSPARSE_ROW_MAJOR ? "row-major" : "column-major"; }

void check_alignment(const void *data, bsparse_dtype dtype, const char *field) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    if (address % dtype_bytes(dtype) != 0) {
        invalid_argument("%s is 0x%" PRIxPTR "; an address of %s must be a multiple of %" PRId64
                         ": pass the start of an element",
                         field, address, dtype_name(dtype), dtype_bytes(dtype));
    }
}

// A dense matrix; with 0 elements neither address nor ld matters.
Operand check_dense(const char *field, const char *ld_field, const void *data, int64_t ld, DenseShape shape,
                    bsparse_order order, bsparse_dtype dtype) {
    if (shape.rows == 0 || shape.cols == 0) {
        return kNothing;
    }
    if (data == nullptr) {
        invalid_argument("%s is NULL; a matrix [%" PRId64 ", %" PRId64 "] of %s is needed: pass its address", field,
                         shape.rows, shape.cols, dtype_name(dtype));
    }
    check_alignment(data, dtype, field);
    const bool by_rows = order == BSPARSE_ROW_MAJOR;
    const int64_t lines = by_rows ? shape.rows : shape.cols;
    const int64_t line = by_rows ? shape.cols : shape.rows;
    if (ld < line) {
        invalid_argument("%s is %" PRId64 "; with %s [%" PRId64 ", %" PRId64 "] %s it must be at least %" PRId64
                         ": pass the elements from one %s to the next",
                         ld_field, ld, field, shape.rows, shape.cols, order_name(order), line,
                         by_rows ? "row" : "column");
    }
    int64_t pitch = 0;
    int64_t bytes = 0; // of all lines, the gap behind the last one included
    if (__builtin_mul_overflow(ld, dtype_bytes(dtype), &pitch) || __builtin_mul_overflow(pitch, lines, &bytes)) {
        invalid_argument("%s is %" PRId64 "; %" PRId64
                         " lines that far apart exceed the address space: check it and the "
                         "sizes",
                         ld_field, ld, lines);
    }
    return {field, reinterpret_cast<uintptr_t>(data), lines, line * dtype_bytes(dtype), pitch};
}

// A plain array of a dtype.
Operand check_array(const char *field, const void *data, int64_t elements, bsparse_dtype dtype) {
    if (elements == 0) {
        return kNothing;
    }
    if (data == nullptr) {
        invalid_argument("%s is NULL; %" PRId64 " elements of %s are needed: pass their address", field, elements,
                         dtype_name(dtype));
    }
    check_alignment(data, dtype, field);
    return {field, reinterpret_cast<uintptr_t>(data), 1, elements * dtype_bytes(dtype), 0};
}

// Metadata where the format has it.
Operand check_metadata(const char *field, const Pattern &pattern, const void *data) {
    const int64_t bytes = pattern.metadata_bytes();
    if (!pattern.is_24() && data != nullptr) {
        invalid_argument("%s is set, but only 2:4 formats have metadata: pass NULL", field);
    }
    if (bytes == 0) {
        return kNothing;
    }
    if (data == nullptr) {
        invalid_argument("%s is NULL; %s has %" PRId64 " bytes of positions: pass what bsparse_pack wrote", field,
                         format_name(pattern.format), bytes);
    }
    return {field, reinterpret_cast<uintptr_t>(data), 1, bytes, 0};
}

bool overlap(const Operand &x, const Operand &y) {
    if (x.lines == 0 || y.lines == 0 || x.begin >= y.end() || y.begin >= x.end()) {
        return false;
    }
    if (x.pitch != y.pitch || x.pitch == 0) {
        return true;
    }
    // Two slices of one buffer, side by side, interleave without sharing an element.
    const auto pitch = static_cast<uintptr_t>(x.pitch);
    const uintptr_t ahead =
        y.begin >= x.begin ? (y.begin - x.begin) % pitch : pitch - 1 - (x.begin - y.begin - 1) % pitch;
    return ahead < static_cast<uintptr_t>(x.line_bytes) || ahead + static_cast<uintptr_t>(y.line_bytes) > pitch;
}

void check_apart(const Operand &written, std::initializer_list<Operand> others) {
    for (const Operand &other : others) {
        if (overlap(written, other)) {
            invalid_argument("%s overlaps %s, which is written in the same run: give them separate memory", other.field,
                             written.field);
        }
    }
}

void check_absent(const void *data, const char *field, const char *reason) {
    if (data != nullptr) {
        invalid_argument("%s is set, but %s: pass NULL", field, reason);
    }
}

void check_reserved(const bsparse_args &args) {
    const struct {
        const char *field;
        bool used;
    } fields[] = {
        {"row_scales", args.row_scales != nullptr},
        {"token_scales", args.token_scales != nullptr},
        {"batch", args.batch != 0},
        {"b_stride", args.b_stride != 0},
        {"c_stride", args.c_stride != 0},
        {"d_stride", args.d_stride != 0},
    };
    for (const auto &field : fields) {
        if (field.used) {
            unsupported("args.%s is set, but it is reserved for a later version: leave it zero", field.field);
        }
    }
}

void check_spmm(const Plan &plan, const bsparse_args &args) {
    const bsparse_plan_desc &desc = plan.desc;
    check_absent(args.a, "args.a", "only sddmm reads A");
    const Operand b =
        check_dense("args.b", "args.ldb", args.b, args.ldb, b_shape(plan, args.tokens), desc.b_order, desc.dtype);
    const Operand values = check_array("args.s_values", args.s_values, plan.pattern.values(), desc.dtype);
    const Operand metadata = check_metadata("args.s_metadata", plan.pattern, args.s_metadata);
    const DenseShape shape = d_shape(plan, args.tokens);
    const Operand d = check_dense("args.d", "args.ldd", args.d, args.ldd, shape, desc.d_order, desc.out_dtype);
    Operand c = kNothing, aux = kNothing, bias = kNothing;
    if (args.beta != 0) {
        c = check_dense("args.c (beta is not 0)", "args.ldc", args.c, args.ldc, shape, desc.d_order, desc.c_dtype);
    }
    if (args.aux != nullptr) {
        aux = check_dense("args.aux", "args.ldaux", args.aux, args.ldaux, shape, desc.d_order, desc.out_dtype);
    }
    if (args.bias != nullptr) {
        bias = check_array("args.bias", args.bias, shape.rows, desc.bias_dtype);
    }
    check_apart(d, {b, values, metadata, aux, bias});
    check_apart(aux, {b, values, metadata, c, bias});
    const bool same_lines = d.lines == 1 || c.pitch == d.pitch; // the pitch of a single line says nothing
    const bool c_is_d = c.begin == d.begin && same_lines && desc.c_dtype == desc.out_dtype;
    if (!c_is_d && overlap(d, c)) {
        invalid_argument("args.c overlaps args.d without being it; C may be D itself (same address, leading dimension "
                         "and dtype) or lie apart: give C memory of its own");
    }
}

void check_sddmm(const Plan &plan, const bsparse_args &args) {
    const bsparse_plan_desc &desc = plan.desc;
    check_absent(args.c, "args.c", "sddmm adds beta * s_values, not C");
    check_absent(args.d, "args.d", "sddmm writes s_values, not D");
    check_absent(args.aux, "args.aux", "sddmm has no activation");
    check_absent(args.bias, "args.bias", "sddmm has no bias");
    const Operand a =
        check_dense("args.a", "args.lda", args.a, args.lda, a_shape(plan, args.tokens), desc.a_order, desc.dtype);
    const Operand b =
        check_dense("args.b", "args.ldb", args.b, args.ldb, b_shape(plan, args.tokens), desc.b_order, desc.dtype);
    const Operand values = check_array("args.s_values", args.s_values, plan.pattern.values(), desc.out_dtype);
    const Operand metadata = check_metadata("args.s_metadata", plan.pattern, args.s_metadata);
    check_apart(values, {a, b, metadata});
}

} // namespace

void check_host_metadata(const Pattern &pattern, const void *metadata) {
    check_metadata("metadata", pattern, metadata);
    check_positions(metadata, pattern.metadata_bytes(), "metadata");
}

void check_args(const Plan &plan, const bsparse_args &args) {
    check_reserved(args);
    check_tokens(plan, args.tokens, "args.tokens");
    if (plan.desc.op == BSPARSE_SDDMM) {
        check_sddmm(plan, args);
    } else {
        check_spmm(plan, args);
    }
}

void check_buffer(const void *buffer, size_t bytes, const char *field, const char *bytes_function) {
    if (bytes == 0) {
        return;
    }
    const auto address = reinterpret_cast<uintptr_t>(buffer);
    if (buffer == nullptr) {
        invalid_argument("%s is NULL; this plan needs %zu bytes of it: allocate what %s says", field, bytes,
                         bytes_function);
    }
    if (address % kBufferAlignment != 0) {
        invalid_argument("%s is 0x%" PRIxPTR "; its address must be a multiple of %" PRIuPTR
                         ": allocate it with aligned_alloc(%" PRIuPTR ", ...) or round the address up",
                         field, address, kBufferAlignment, kBufferAlignment);
    }
}

void check_pack(const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld, const void *values,
                const void *metadata) {
    check_dtype(dtype, "dtype");
    const Operand positions = check_metadata("metadata", pattern, metadata);
    const Operand matrix =
        check_dense("dense", "ld", dense, ld, {pattern.rows, pattern.cols}, BSPARSE_ROW_MAJOR, dtype);
    const Operand blocks = check_array("values", values, pattern.values(), dtype);
    check_apart(matrix, {blocks, positions});
    check_apart(blocks, {positions});
}

} // namespace bsparse
