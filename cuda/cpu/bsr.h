// The CPU backend for format bsr: what backend_cpu.cc calls.
#pragma once

#include "../src/backend.h"
#include "pool.h"

namespace bsparse::cpu {

// What a context keeps.
struct State {
    explicit State(int threads) : pool(threads) {}
    Pool pool;
};

inline State &state_of(const Context &context) { return *static_cast<State *>(context.state.get()); }

void bsr_pack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
              void *values);
void bsr_unpack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values, void *dense,
                int64_t ld);

// The products by plain loops in f64, one block row (column) an item: for references and gradient checks.
void bsr_plain_run(const Plan &plan, const bsparse_args &args);

} // namespace bsparse::cpu
