// What a family of CUDA kernels is to the backend: one class for each (product, architecture), made when a plan is
// made. Host code only; nothing here needs a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../../src/backend.h"
#include "../../src/dtype.h"
#include "../../src/select.h"

struct CUstream_st; // cudaStream_t without CUDA's headers

namespace bsparse::gpu {

// What the host code asks of a device, read once when its context is opened.
struct DeviceFacts {
    int device;          // CUDA ordinal
    int arch;            // 80, 86, 90, ...
    int multiprocessors;
    int shared_bytes;    // most that one thread block may ask for
};

// What a kernel's name says of its numbers: their dtype, or "tf32" where f32 is multiplied as TF32.
inline const char *arithmetic_name(const Plan &plan) {
    return multiplies_as_tf32(plan.desc) ? "tf32" : dtype_name(plan.desc.dtype);
}

// One run, validated: args of tokens > 0.
struct Run {
    const bsparse_args &args;
    const int32_t *schedule; // device: the family's own part of the uploaded lists, 64-byte aligned
    char *workspace;         // device, 64-byte aligned, workspace_bytes(args.tokens) of it
    CUstream_st *stream;
};

class Family {
public:
    virtual ~Family() = default;

    // The kernel for so many tokens: "cuda.bsr_spmm.bf16.sm90.128x256"; lives as long as the family.
    virtual const std::string &name(int64_t tokens) const = 0;
    // Whether this run's alignment, strides and options suit it. The last family of a plan serves every run.
    virtual bool serves(const bsparse_args &args) const = 0;
    virtual size_t workspace_bytes(int64_t tokens) const = 0;
    // Enqueues on run.stream and nothing else: no allocation, no synchronisation. Throws Error on a failed launch.
    virtual void run(const Run &run) const = 0;

    // Work lists in the order of the kernel, uploaded once per plan; they do not depend on the number of tokens.
    const std::vector<int32_t> &schedule() const { return schedule_; }

protected:
    std::vector<int32_t> schedule_;
};

// Each returns NULL where the family cannot serve the plan at all (architecture, dtype, block, orders).
// The plan outlives the family and never moves.
std::unique_ptr<Family> make_spmm_sm90(const Plan &plan, const DeviceFacts &device);   // spmm and spmm_t, wgmma
std::unique_ptr<Family> make_spmm_sm80(const Plan &plan, const DeviceFacts &device);   // spmm and spmm_t, mma.sync
std::unique_ptr<Family> make_spmm_decode(const Plan &plan, const DeviceFacts &device); // spmm of few tokens
std::unique_ptr<Family> make_sddmm_sm90(const Plan &plan, const DeviceFacts &device);
std::unique_ptr<Family> make_sddmm_sm80(const Plan &plan, const DeviceFacts &device);

} // namespace bsparse::gpu
