// One small valid problem that a test may spoil in one place, and what the library then answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "handles.h"

struct Answer {
    bsparse_status status;
    std::string sentence; // "" when all went well
};

// 3 x 3 blocks of 2 x 4: [x . x], [. . .], [x x .]; 5 tokens, f32.
struct Inputs {
    std::vector<int32_t> offsets{0, 2, 2, 4};
    std::vector<int32_t> columns{0, 2, 0, 1};
    std::vector<float> values = std::vector<float>(4 * 2 * 4, 1.0f); // [blocks, block_rows, block_cols]
    std::vector<float> tall = std::vector<float>(12 * 5, 1.0f);      // [cols, tokens], column-major
    std::vector<float> flat = std::vector<float>(6 * 5, 7.0f);       // [rows, tokens], column-major
    std::vector<float> bias = std::vector<float>(12, 1.0f);

    bsparse_context_desc context{sizeof(context), BSPARSE_BACKEND_CPU, 0, 1, BSPARSE_CPU_BEST};
    bsparse_pattern_desc pattern{
        sizeof(pattern), BSPARSE_BSR, 2, 4, 0, 6, 12, 4, offsets.data(), columns.data(),
    };
    bsparse_plan_desc plan{};
    bsparse_args args{};

    // A matrix that is one block of the format semi24; the operands stay as they are.
    void make_semi24(int32_t rows, int32_t cols) {
        offsets = {0, 1};
        columns = {0};
        pattern = {sizeof(pattern), BSPARSE_SEMI24, rows, cols, 0, rows, cols, 1, offsets.data(), columns.data()};
    }

    explicit Inputs(bsparse_op op = BSPARSE_SPMM) {
        plan.struct_size = sizeof(plan);
        plan.op = op;
        plan.dtype = BSPARSE_F32;
        args.struct_size = sizeof(args);
        args.tokens = 5;
        args.s_values = values.data();
        args.alpha = 1.0;
        if (op == BSPARSE_SDDMM) {
            args.a = flat.data();
            args.lda = 6;
            args.b = tall.data();
            args.ldb = 12;
        } else {
            const bool transposed = op == BSPARSE_SPMM_T;
            args.b = transposed ? flat.data() : tall.data();
            args.ldb = transposed ? 6 : 12;
            args.d = transposed ? tall.data() : flat.data();
            args.ldd = transposed ? 12 : 6;
        }
    }
    Inputs(const Inputs &) = delete; // the descriptions point into the vectors

    // Creates everything and runs; stops at the first failure.
    Answer run() const {
        bsparse_context *context_out = nullptr;
        bsparse_status status = bsparse_context_create(&context_out, &context);
        const ContextHandle context_handle(context_out);
        if (status != BSPARSE_OK) {
            return {status, bsparse_last_error()};
        }
        bsparse_pattern *pattern_out = nullptr;
        status = bsparse_pattern_create(&pattern_out, &pattern);
        const PatternHandle pattern_handle(pattern_out);
        if (status != BSPARSE_OK) {
            return {status, bsparse_last_error()};
        }
        bsparse_plan *plan_out = nullptr;
        status = bsparse_plan_create(&plan_out, context_handle.get(), pattern_handle.get(), &plan);
        CHECK(bsparse_plan_supports(context_handle.get(), pattern_handle.get(), &plan) == status);
        const PlanHandle plan_handle(plan_out);
        if (status != BSPARSE_OK) {
            return {status, bsparse_last_error()};
        }
        const size_t bytes = bsparse_plan_workspace_bytes(plan_handle.get(), args.tokens);
        std::vector<char> memory(bytes + 64);
        char *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
        status = bsparse_plan_run(plan_handle.get(), &args, nullptr, workspace, nullptr);
        return {status, status == BSPARSE_OK ? "" : bsparse_last_error()};
    }
};
