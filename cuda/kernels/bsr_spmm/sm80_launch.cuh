// Launches the kernels of one arithmetic; each sm80_<dtype>.cu instantiates it once.
#pragma once

#include <cuda_runtime.h>

#include "../../src/error.h"
#include "sm80_kernel.cuh"

namespace bsparse::gpu {

template <typename Math, bool kTransposed, bool kAny, int kTokens>
void launch_spmm_as(const SpmmTask &task, cudaStream_t stream) {
    using Traits = SpmmTraits<Math, kTransposed, kAny, kTokens>;
    const auto kernel = spmm_sm80<Math, kTransposed, kAny, kTokens>;
    const int64_t grid = task.tile_count * ((task.tokens + kTokens - 1) / kTokens);
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
    if (error == cudaSuccess) {
        kernel<<<static_cast<unsigned>(grid), kThreads, Traits::kSharedBytes, stream>>>(task);
        error = cudaGetLastError();
    }
    if (error != cudaSuccess) {
        cudaGetLastError(); // or CUDA would report it again to the next caller of the process
        backend_error("the sm80 spmm kernel did not start, and CUDA answers \"%s\": check the device with nvidia-smi",
                      cudaGetErrorString(error));
    }
}

template <typename Math>
void launch_spmm(SpmmKernel kernel, bool transposed, const SpmmTask &task, cudaStream_t stream) {
    switch (kernel) {
    case SpmmKernel::kWide:
        return transposed ? launch_spmm_as<Math, true, false, 128>(task, stream)
                          : launch_spmm_as<Math, false, false, 128>(task, stream);
    case SpmmKernel::kNarrow:
        return transposed ? launch_spmm_as<Math, true, false, 32>(task, stream)
                          : launch_spmm_as<Math, false, false, 32>(task, stream);
    default: // fills shared memory in the same order for both products
        return launch_spmm_as<Math, false, true, 128>(task, stream);
    }
}

} // namespace bsparse::gpu
