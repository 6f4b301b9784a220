#include "plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <limits>

#include "dtype.h"
#include "error.h"

namespace bsparse {
namespace {

constexpr int32_t kAllFlags = BSPARSE_ALLOW_ATOMICS | BSPARSE_ALLOW_TF32 | BSPARSE_FORCE_SM80;

void check_op(bsparse_op op) {
    if (op < BSPARSE_SPMM || op > BSPARSE_SDDMM) {
        invalid_argument("plan_desc.op is %d, which is no operation: use BSPARSE_SPMM (1), BSPARSE_SPMM_T (2) or "
                         "BSPARSE_SDDMM (3)",
                         op);
    }
}

// What a dtype field of 0 means, and that it is otherwise that default or f32.
bsparse_dtype resolve_dtype(bsparse_dtype given, bsparse_dtype otherwise, const char *field,
                            const char *otherwise_field) {
    if (given == 0) {
        return otherwise;
    }
    check_dtype(given, field);
    if (given == otherwise || given == BSPARSE_F32) {
        return given;
    }
    if (otherwise == BSPARSE_F32) {
        unsupported("%s is %d (%s); with %s = f32 it must be f32: leave it 0", field, given, dtype_name(given),
                    otherwise_field);
    }
    unsupported("%s is %d (%s); with %s = %s it must be %s or f32: leave it 0 for %s", field, given, dtype_name(given),
                otherwise_field, dtype_name(otherwise), dtype_name(otherwise), dtype_name(otherwise));
}

bsparse_order resolve_order(bsparse_order given, bsparse_order otherwise, const char *field) {
    switch (given) {
    case BSPARSE_ORDER_DEFAULT:
        return otherwise;
    case BSPARSE_ROW_MAJOR:
    case BSPARSE_COL_MAJOR:
        return given;
    default:
        invalid_argument("%s is %d, which is no order: use BSPARSE_ROW_MAJOR (1), BSPARSE_COL_MAJOR (2), or 0 for the "
                         "default",
                         field, given);
    }
}

void check_epilogue(bsparse_epilogue epilogue, bsparse_op op) {
    if (epilogue < BSPARSE_EPILOGUE_NONE || epilogue > BSPARSE_EPILOGUE_SILU) {
        invalid_argument("plan_desc.epilogue is %d, which is no epilogue: use 0 (none), 1 (relu), 2 (gelu), "
                         "3 (gelu_tanh) or 4 (silu)",
                         epilogue);
    }
    if (op == BSPARSE_SDDMM && epilogue != BSPARSE_EPILOGUE_NONE) {
        invalid_argument("plan_desc.epilogue is %d in sddmm, which has no activation: set it to BSPARSE_EPILOGUE_NONE "
                         "(0)",
                         epilogue);
    }
}

void check_flags(int32_t flags) {
    const int32_t unknown = flags & ~kAllFlags;
    if (unknown != 0) {
        invalid_argument("plan_desc.flags is 0x%x, of which 0x%x is unknown: combine BSPARSE_ALLOW_ATOMICS (1), "
                         "BSPARSE_ALLOW_TF32 (2) and BSPARSE_FORCE_SM80 (4), or pass 0",
                         static_cast<unsigned>(flags), static_cast<unsigned>(unknown));
    }
}

bsparse_plan_desc resolve(const bsparse_plan_desc &given) {
    bsparse_plan_desc desc = given;
    check_op(desc.op);
    check_dtype(desc.dtype, "plan_desc.dtype");
    desc.out_dtype = resolve_dtype(desc.out_dtype, desc.dtype, "plan_desc.out_dtype", "dtype");
    desc.c_dtype = resolve_dtype(desc.c_dtype, desc.out_dtype, "plan_desc.c_dtype", "out_dtype");
    desc.bias_dtype = resolve_dtype(desc.bias_dtype, desc.out_dtype, "plan_desc.bias_dtype", "out_dtype");
    desc.a_order = resolve_order(desc.a_order, BSPARSE_COL_MAJOR, "plan_desc.a_order");
    desc.b_order = resolve_order(desc.b_order, desc.op == BSPARSE_SDDMM ? BSPARSE_ROW_MAJOR : BSPARSE_COL_MAJOR,
                                 "plan_desc.b_order");
    desc.d_order = resolve_order(desc.d_order, BSPARSE_COL_MAJOR, "plan_desc.d_order");
    check_epilogue(desc.epilogue, desc.op);
    check_flags(desc.flags);
    return desc;
}

} // namespace

void make_plan(Plan &plan, const Context &context, const Pattern &pattern, const bsparse_plan_desc &desc) {
    plan.context = &context;
    plan.desc = resolve(desc);
    plan.pattern = pattern; // after what may throw: it may be large
    context.ops->select(plan);
}

DenseShape a_shape(const Plan &plan, int64_t tokens) { return {plan.pattern.rows, tokens}; }

DenseShape b_shape(const Plan &plan, int64_t tokens) {
    switch (plan.desc.op) {
    case BSPARSE_SPMM:
        return {plan.pattern.cols, tokens};
    case BSPARSE_SPMM_T:
        return {plan.pattern.rows, tokens};
    default:
        return {tokens, plan.pattern.cols};
    }
}

DenseShape d_shape(const Plan &plan, int64_t tokens) {
    return {plan.desc.op == BSPARSE_SPMM ? plan.pattern.rows : plan.pattern.cols, tokens};
}

void check_tokens(const Plan &plan, int64_t tokens, const char *field) {
    if (tokens < 0) {
        invalid_argument("%s is %" PRId64 "; it must be at least 0: pass the number of columns of the dense operand",
                         field, tokens);
    }
    // Backends multiply tokens by padded sizes and element bytes; below this bound none of that overflows.
    const Pattern &pattern = plan.pattern;
    const int64_t longest =
        std::max(int64_t{pattern.row_blocks} * pattern.block_rows, int64_t{pattern.col_blocks} * pattern.block_cols);
    const int64_t most = std::numeric_limits<ptrdiff_t>::max() / 64 / longest;
    if (tokens > most) {
        invalid_argument("%s is %" PRId64 "; with a matrix of %" PRId64 " x %" PRId64 " at most %" PRId64
                         " can be addressed: split the run",
                         field, tokens, pattern.rows, pattern.cols, most);
    }
}

} // namespace bsparse
