// The CPU backend for format bsr: what backend_cpu.cc calls. Arguments are validated before they come here.
#pragma once

#include "../src/backend.h"
#include "kernels.h"
#include "pool.h"

namespace bsparse::cpu {

// What a context keeps.
struct State {
    State(int threads, const Kernels &isa_kernels) : pool(threads), kernels(isa_kernels) {}
    Pool pool;
    const Kernels &kernels;
};

inline State &state_of(const Context &context) { return *static_cast<State *>(context.state.get()); }

// Fills plan.state.
void bsr_select(Plan &plan);
// The kernel that bsr_run takes for so many tokens: "cpu.bsr_spmm.f32.avx512".
const char *bsr_kernel(const Plan &plan, int64_t tokens);
size_t bsr_workspace_bytes(const Plan &plan, int64_t tokens);
void bsr_run(const Plan &plan, const bsparse_args &args, void *workspace);

void bsr_pack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
              void *values);
void bsr_unpack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values, void *dense,
                int64_t ld);

} // namespace bsparse::cpu
