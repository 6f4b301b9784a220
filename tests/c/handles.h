// Handles that destroy themselves, for tests in C++.
#pragma once

#include <memory>

#include "check.h"

struct Destroy {
    void operator()(bsparse_context *context) const { bsparse_context_destroy(context); }
    void operator()(bsparse_pattern *pattern) const { bsparse_pattern_destroy(pattern); }
    void operator()(bsparse_plan *plan) const { bsparse_plan_destroy(plan); }
};

using ContextHandle = std::unique_ptr<bsparse_context, Destroy>;
using PatternHandle = std::unique_ptr<bsparse_pattern, Destroy>;
using PlanHandle = std::unique_ptr<bsparse_plan, Destroy>;

inline bsparse_context_desc cpu_desc(int32_t threads, bsparse_cpu_isa isa = BSPARSE_CPU_BEST) {
    return {sizeof(bsparse_context_desc), BSPARSE_BACKEND_CPU, 0, threads, isa};
}

inline ContextHandle make_context(const bsparse_context_desc &desc) {
    bsparse_context *context = nullptr;
    CHECK(bsparse_context_create(&context, &desc) == BSPARSE_OK);
    return ContextHandle(context);
}

inline PatternHandle make_pattern(const bsparse_pattern_desc &desc) {
    bsparse_pattern *pattern = nullptr;
    CHECK(bsparse_pattern_create(&pattern, &desc) == BSPARSE_OK);
    return PatternHandle(pattern);
}

inline PlanHandle make_plan(const ContextHandle &context, const PatternHandle &pattern, const bsparse_plan_desc &desc) {
    bsparse_plan *plan = nullptr;
    CHECK(bsparse_plan_supports(context.get(), pattern.get(), &desc) == BSPARSE_OK);
    CHECK(bsparse_plan_create(&plan, context.get(), pattern.get(), &desc) == BSPARSE_OK);
    return PlanHandle(plan);
}
