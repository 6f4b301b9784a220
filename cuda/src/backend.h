// The function table a backend fills in. api.cc validates, then calls through it and never asks which
// backend it is. Functions throw Error. A third backend would add one file and one line in backend.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bsparse/bsparse.h"
#include "pattern.h"

namespace bsparse {

struct BackendOps;

struct Context {
    const BackendOps *ops;
    bsparse_context_desc desc;   // as given, threads and cpu_isa resolved by open
    std::string name;            // "cpu avx512, 2 threads"
    std::shared_ptr<void> state; // the backend's own: thread pool, device facts
};

// What a plan keeps. The backend's select fills kernel state; everything else is set by plan.cc. A plan never moves,
// so that its state may refer to the rest of it.
struct Plan {
    const Context *context = nullptr;
    Pattern pattern;                   // the plan's own copy
    bsparse_plan_desc desc{};          // defaults resolved: no 0 in a dtype or an order
    std::shared_ptr<const void> state; // the backend's: kernel table, work lists

    Plan() = default;
    Plan(const Plan &) = delete;
    Plan &operator=(const Plan &) = delete;
};

struct BackendOps {
    bsparse_backend backend;
    int32_t (*devices)();
    void (*open)(Context &context);
    void (*select)(Plan &plan); // throws UNSUPPORTED, or fills plan.state
    const char *(*kernel)(const Plan &plan, int64_t tokens);
    size_t (*schedule_bytes)(const Plan &plan);
    size_t (*workspace_bytes)(const Plan &plan, int64_t tokens);
    size_t (*prepared_bytes)(const Plan &plan);
    void (*upload)(const Plan &plan, void *schedule, void *stream);
    void (*prepare)(const Plan &plan, const void *values, const void *metadata, void *prepared, void *stream);
    // args are validated: pointers, leading dimensions, overlap rules; tokens may be 0.
    void (*run)(const Plan &plan, const bsparse_args &args, const void *schedule, void *workspace, void *stream);
    void (*pack)(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
                 void *values, void *metadata, void *stream);
    void (*unpack)(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values,
                   const void *metadata, void *dense, int64_t ld, void *stream);
    // 2:4 formats only
    void (*pack_at)(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
                    const void *metadata, void *values, void *stream);
};

// Never NULL: throws on an unknown number, which the caller knows as this field.
const BackendOps *find_backend(bsparse_backend backend, const char *field);

extern const BackendOps kCpuBackend;  // src/backend_cpu.cc
extern const BackendOps kCudaBackend; // src/backend_cuda.cu, or src/backend_cuda_absent.cc

} // namespace bsparse
