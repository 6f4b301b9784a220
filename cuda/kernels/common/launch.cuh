// Starting a kernel with dynamic shared memory, and what is said where it does not start.
#pragma once

#include <cuda_runtime.h>

#include "../../src/error.h"

namespace bsparse::gpu {

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, dim3 grid, unsigned threads, int shared_bytes, cudaStream_t stream, const char *name,
            const Arguments &...arguments) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error == cudaSuccess) { // not <<<>>>: after it, an earlier failure of the process would look like this launch's
        cudaLaunchConfig_t config{};
        config.gridDim = grid;
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
        config.stream = stream;
        error = cudaLaunchKernelEx(&config, kernel, arguments...);
    }
    if (error != cudaSuccess) {
        cudaGetLastError(); // or CUDA would report it again to the next caller of the process
        backend_error("the %s kernel did not start, and CUDA answers \"%s\": check the device with nvidia-smi", name,
                      cudaGetErrorString(error));
    }
}

} // namespace bsparse::gpu
