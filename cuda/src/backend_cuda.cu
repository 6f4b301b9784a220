// The CUDA backend's seat at the table: devices and contexts. It has no kernels yet, and says so.
#include <cuda_runtime.h>

#include "backend.h"
#include "error.h"

namespace bsparse {
namespace {

// A failure's text; clears the error, which CUDA would otherwise report again to the next caller of the process.
const char *take_error(cudaError_t error) {
    cudaGetLastError();
    return cudaGetErrorString(error);
}

int32_t devices() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) { // no driver, or one too old: no device that this library can use
        take_error(error);
        return 0;
    }
    return count;
}

void open(Context &context) {
    const int32_t count = devices();
    if (count == 0) {
        unsupported(
            "context_desc.backend is 2 (CUDA), but this machine has no NVIDIA device or no driver for it: check "
            "nvidia-smi, or use BSPARSE_BACKEND_CPU");
    }
    if (context.desc.device < 0 || context.desc.device >= count) {
        invalid_argument("context_desc.device is %d; CUDA devices here are 0 to %d: pass one of them",
                         context.desc.device, count - 1);
    }
    if (context.desc.threads != 0 || context.desc.cpu_isa != 0) {
        invalid_argument("context_desc.threads is %d and context_desc.cpu_isa %d; only the CPU backend has them: set "
                         "both to 0 for CUDA",
                         context.desc.threads, context.desc.cpu_isa);
    }
    cudaDeviceProp facts;
    const cudaError_t error = cudaGetDeviceProperties(&facts, context.desc.device);
    if (error != cudaSuccess) {
        backend_error("context_desc.device is %d, and CUDA answers \"%s\": check the driver with nvidia-smi, or use "
                      "BSPARSE_BACKEND_CPU",
                      context.desc.device, take_error(error));
    }
    context.name = std::string(facts.name) + ", sm" + std::to_string(facts.major * 10 + facts.minor);
}

const char *op_name(bsparse_op op) {
    switch (op) {
    case BSPARSE_SPMM:
        return "spmm";
    case BSPARSE_SPMM_T:
        return "spmm_t";
    default:
        return "sddmm";
    }
}

void select(Plan &plan) {
    unsupported("plan_desc.op is %d, and the CUDA backend of this version has no bsr_%s kernel: use the CPU backend",
                plan.desc.op, op_name(plan.desc.op));
}

void pack(const Context &, const Pattern &, bsparse_dtype, const void *, int64_t, void *, void *, void *) {
    unsupported("the CUDA backend of this version has no bsr_pack kernel: pack with a CPU context and copy the values");
}

void unpack(const Context &, const Pattern &, bsparse_dtype, const void *, const void *, void *, int64_t, void *) {
    unsupported("the CUDA backend of this version has no bsr_unpack kernel: copy the values and unpack with a CPU "
                "context");
}

constexpr BackendOps make_backend() {
    BackendOps ops{}; // what works on a plan stays empty: without kernels there is no plan
    ops.backend = BSPARSE_BACKEND_CUDA;
    ops.devices = devices;
    ops.open = open;
    ops.select = select;
    ops.pack = pack;
    ops.unpack = unpack;
    return ops;
}

} // namespace

const BackendOps kCudaBackend = make_backend();

} // namespace bsparse
