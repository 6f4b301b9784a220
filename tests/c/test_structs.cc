// Callers older and newer than the library, and handles that are not there.
#include <cstring>
#include <thread>

#include "inputs.h"

namespace {

bool says(const char *words) { return std::strstr(bsparse_last_error(), words) != nullptr; }

// A caller compiled against a later header, with one more field.
struct NewerPlanDesc {
    bsparse_plan_desc known;
    int64_t unknown;
};

void test_newer_caller_who_leaves_the_new_field_zero() {
    Inputs inputs;
    const ContextHandle context = make_context(inputs.context);
    const PatternHandle pattern = make_pattern(inputs.pattern);
    NewerPlanDesc desc{inputs.plan, 0};
    desc.known.struct_size = sizeof(desc);
    CHECK(bsparse_plan_supports(context.get(), pattern.get(), &desc.known) == BSPARSE_OK);
}

void test_newer_caller_who_sets_the_new_field() {
    Inputs inputs;
    const ContextHandle context = make_context(inputs.context);
    const PatternHandle pattern = make_pattern(inputs.pattern);
    NewerPlanDesc desc{inputs.plan, 1};
    desc.known.struct_size = sizeof(desc);
    CHECK(bsparse_plan_supports(context.get(), pattern.get(), &desc.known) == BSPARSE_UNSUPPORTED);
    CHECK(says("plan_desc.struct_size is 56, 48 in this version") && says("use a newer libbsparse"));
}

void test_null_handles_and_descriptions() {
    Inputs inputs;
    const ContextHandle context = make_context(inputs.context);
    const PatternHandle pattern = make_pattern(inputs.pattern);
    const PlanHandle plan = make_plan(context, pattern, inputs.plan);
    bsparse_pattern *pattern_out = nullptr;
    bsparse_plan *plan_out = nullptr;
    CHECK(bsparse_context_create(nullptr, &inputs.context) == BSPARSE_INVALID_ARGUMENT && says("out is NULL"));
    CHECK(bsparse_pattern_create(&pattern_out, nullptr) == BSPARSE_INVALID_ARGUMENT && says("pattern_desc is NULL"));
    CHECK(bsparse_plan_create(&plan_out, nullptr, pattern.get(), &inputs.plan) == BSPARSE_INVALID_ARGUMENT);
    CHECK(says("context is NULL: pass the handle that bsparse_context_create made"));
    CHECK(bsparse_plan_create(&plan_out, context.get(), nullptr, &inputs.plan) == BSPARSE_INVALID_ARGUMENT);
    CHECK(says("pattern is NULL"));
    CHECK(bsparse_plan_run(nullptr, &inputs.args, nullptr, nullptr, nullptr) == BSPARSE_INVALID_ARGUMENT);
    CHECK(says("plan is NULL"));
    CHECK(bsparse_plan_run(plan.get(), nullptr, nullptr, nullptr, nullptr) == BSPARSE_INVALID_ARGUMENT);
    CHECK(says("args is NULL"));
    CHECK(pattern_out == nullptr && plan_out == nullptr);
}

void test_values_instead_of_statuses() {
    Inputs inputs;
    const ContextHandle context = make_context(inputs.context);
    const PatternHandle pattern = make_pattern(inputs.pattern);
    const PlanHandle plan = make_plan(context, pattern, inputs.plan);
    CHECK(std::strcmp(bsparse_context_name(nullptr), "") == 0 && says("context is NULL"));
    CHECK(std::strcmp(bsparse_plan_kernel(nullptr, 1), "") == 0 && says("plan is NULL"));
    CHECK(std::strcmp(bsparse_plan_kernel(plan.get(), -3), "") == 0 && says("tokens is -3"));
    CHECK(std::strlen(bsparse_plan_kernel(plan.get(), 1)) > 0);
    CHECK(bsparse_plan_workspace_bytes(plan.get(), -1) == 0 && says("tokens is -1"));
    CHECK(bsparse_plan_schedule_bytes(plan.get()) == 0);
    CHECK(bsparse_plan_prepared_bytes(plan.get()) == 0);
    CHECK(bsparse_plan_upload(plan.get(), nullptr, nullptr) == BSPARSE_OK);
    CHECK(bsparse_plan_prepare(plan.get(), inputs.values.data(), nullptr, nullptr, nullptr) == BSPARSE_OK);
}

void test_pattern_sizes() {
    Inputs inputs;
    const PatternHandle pattern = make_pattern(inputs.pattern);
    size_t values = 0, metadata = 1;
    CHECK(bsparse_pattern_sizes(pattern.get(), BSPARSE_BF16, &values, &metadata) == BSPARSE_OK);
    CHECK(values == 4 * 2 * 4 * 2 && metadata == 0);
    CHECK(bsparse_pattern_sizes(pattern.get(), BSPARSE_F64, nullptr, nullptr) == BSPARSE_OK);
    CHECK(bsparse_pattern_sizes(pattern.get(), 17, &values, &metadata) == BSPARSE_INVALID_ARGUMENT);
    CHECK(says("dtype is 17") && values == 4 * 2 * 4 * 2);
}

void test_each_thread_has_its_own_last_error() {
    CHECK(bsparse_pattern_create(nullptr, nullptr) == BSPARSE_INVALID_ARGUMENT && says("out is NULL"));
    std::thread([] { CHECK(std::strcmp(bsparse_last_error(), "") == 0); }).join();
    CHECK(says("out is NULL"));
}

} // namespace

int main() {
    test_newer_caller_who_leaves_the_new_field_zero();
    test_newer_caller_who_sets_the_new_field();
    test_null_handles_and_descriptions();
    test_values_instead_of_statuses();
    test_pattern_sizes();
    test_each_thread_has_its_own_last_error();
    return 0;
}
