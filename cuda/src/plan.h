// From a plan's description to a plan: every enum checked, every default resolved, the kernel chosen.
#pragma once

#include "backend.h"

namespace bsparse {

// Fills an empty plan. Throws Error naming the field; desc has been read by abi.h. The context must outlive the plan.
void make_plan(Plan &plan, const Context &context, const Pattern &pattern, const bsparse_plan_desc &desc);

// Sizes of the dense operands of a plan for some tokens, each [rows, cols] as the header states them.
struct DenseShape {
    int64_t rows, cols;
};
DenseShape a_shape(const Plan &plan, int64_t tokens); // sddmm only
DenseShape b_shape(const Plan &plan, int64_t tokens);
DenseShape d_shape(const Plan &plan, int64_t tokens); // also C and aux; not in sddmm

// Throws unless some tokens can be addressed at all: 0 up to a bound that no memory reaches.
void check_tokens(const Plan &plan, int64_t tokens, const char *field);

} // namespace bsparse
