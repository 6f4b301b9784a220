// The CPU backend's seat in the backend table; the work is in cuda/cpu.
#include <algorithm>
#if defined(__linux__)
#include <sched.h>
#endif
#include <string>
#include <thread>

#include "../cpu/bsr.h"
#include "../cpu/isa.h"
#include "../cpu/pack_24.h"
#include "backend.h"
#include "error.h"
#include "positions.h"

namespace bsparse {
namespace {

constexpr int32_t kMostThreads = 1024; // far beyond any machine: a wrong number, not a wish

int32_t devices() { return 1; }

// Cores that the calling thread may use: fewer than there are under taskset, in containers, beside other workers.
int32_t cores() {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        return CPU_COUNT(&allowed);
    }
#endif
    return static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
}

void open(Context &context) {
    bsparse_context_desc &desc = context.desc;
    if (desc.device != 0) {
        invalid_argument("context_desc.device is %d; the CPU backend has one device: pass 0", desc.device);
    }
    if (desc.threads < 0 || desc.threads > kMostThreads) {
        invalid_argument("context_desc.threads is %d; it must be 1 to %d: pass 0 for one thread per core", desc.threads,
                         kMostThreads);
    }
    if (desc.cpu_isa < BSPARSE_CPU_BEST || desc.cpu_isa > BSPARSE_CPU_AVX512_BF16) {
        invalid_argument("context_desc.cpu_isa is %d, which is no instruction set: pass 0 for the best there is",
                         desc.cpu_isa);
    }
    if (desc.cpu_isa == BSPARSE_CPU_BEST) {
        desc.cpu_isa = cpu::best_isa();
    }
    if (!cpu::runs(desc.cpu_isa)) {
        unsupported("context_desc.cpu_isa is %d (%s), which this processor does not run: pass 0 for its best, %s",
                    desc.cpu_isa, cpu::isa_name(desc.cpu_isa), cpu::isa_name(cpu::best_isa()));
    }
    if (desc.threads == 0) {
        desc.threads = std::min(cores(), kMostThreads);
    }
    context.name = std::string("cpu ") + cpu::isa_name(desc.cpu_isa) + ", " + std::to_string(desc.threads) +
                   (desc.threads == 1 ? " thread" : " threads");
    context.state = std::make_shared<cpu::State>(desc.threads, cpu::kernels_of(desc.cpu_isa));
}

void select(Plan &plan) { cpu::bsr_select(plan); }

const char *kernel(const Plan &plan, int64_t tokens) { return cpu::bsr_kernel(plan, tokens); }

size_t schedule_bytes(const Plan &) { return 0; }

size_t workspace_bytes(const Plan &plan, int64_t tokens) { return cpu::bsr_workspace_bytes(plan, tokens); }

size_t prepared_bytes(const Plan &) { return 0; }

void upload(const Plan &, void *, void *) {} // the work lists are read where they are

void prepare(const Plan &, const void *, const void *, void *, void *) {}

void run(const Plan &plan, const bsparse_args &args, const void *, void *workspace, void *) {
    check_positions(args.s_metadata, plan.pattern.metadata_bytes(), "args.s_metadata");
    cpu::bsr_run(plan, args, workspace);
}

void pack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
          void *values, void *metadata, void *) {
    if (pattern.is_24()) {
        cpu::pack_24(context, pattern, dtype, dense, ld, values, static_cast<uint8_t *>(metadata));
    } else {
        cpu::bsr_pack(context, pattern, dtype, dense, ld, values);
    }
}

void unpack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values,
            const void *metadata, void *dense, int64_t ld, void *) {
    if (pattern.is_24()) {
        check_positions(metadata, pattern.metadata_bytes(), "metadata");
        cpu::unpack_24(context, pattern, dtype, values, static_cast<const uint8_t *>(metadata), dense, ld);
    } else {
        cpu::bsr_unpack(context, pattern, dtype, values, dense, ld);
    }
}

void pack_at(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
             const void *metadata, void *values, void *) {
    check_positions(metadata, pattern.metadata_bytes(), "metadata");
    cpu::pack_24_at(context, pattern, dtype, dense, ld, static_cast<const uint8_t *>(metadata), values);
}

} // namespace

const BackendOps kCpuBackend = {BSPARSE_BACKEND_CPU, devices, open,    select, kernel, schedule_bytes, workspace_bytes,
                                prepared_bytes,      upload,  prepare, run,    pack,   unpack,         pack_at};

} // namespace bsparse
