// Launches the kernels of one dtype; each sm90_<dtype>.cu instantiates them.
#pragma once

#include "../../src/error.h"
#include "../common/tensor_map.h"
#include "sm90_kernel.cuh"

namespace bsparse::gpu::sddmm_sm90 {

static __global__ void clear_counters(uint32_t *counters, int count) {
    sm90::let_next_kernel_start();
    sm90::wait_for_previous_kernel(); // whose workspace this may be
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        counters[i] = 0;
    }
}

// The kernel may be launched while the one before it in the stream still runs; it waits for it itself.
template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), int blocks, int cluster, int threads, int shared_bytes,
                  cudaStream_t stream, const Arguments &...arguments) {
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error == cudaSuccess) {
        error = cudaLaunchKernelEx(&config, kernel, arguments...);
    }
    if (error != cudaSuccess) {
        cudaGetLastError(); // or CUDA would report it again to the next caller of the process
        backend_error("the sm90 sddmm kernel did not start, and CUDA answers \"%s\": check the device with nvidia-smi",
                      cudaGetErrorString(error));
    }
}

template <class T, class Layout> void launch_as(const Task &task, bsparse_dtype dtype, cudaStream_t stream) {
    using S = Shared<Layout>;
    Params params = task.params;
    params.steps = static_cast<int32_t>((task.tokens + S::kTokens - 1) / S::kTokens);
    const CUtensorMap dy =
        make_tensor_map({dtype, task.dy.data, params.rows, task.tokens, task.dy.pitch}, kEdge, S::kTokens);
    const CUtensorMap x =
        make_tensor_map({dtype, task.x.data, params.cols, task.tokens, task.x.pitch}, kEdge, S::kTokens);
    if (task.meetings > 0) {
        constexpr int kClearThreads = 256;
        launch_early(clear_counters, 1, 1, kClearThreads, 0, stream, params.counters, task.meetings * kCounters);
    }
    launch_early(sddmm_sm90<T, Layout>, task.clusters * S::kHalves, S::kHalves, kThreads, S::kBytes + S::kAlign, stream,
                 dy, x, params);
}

template <class T> void launch(const Task &task, bsparse_dtype dtype, cudaStream_t stream) {
    switch (task.layout) {
    case Layout::kPair:
        return task.halves == 2 ? launch_as<T, PairLayout>(task, dtype, stream)
                                : launch_as<T, LonePairLayout>(task, dtype, stream);
    case Layout::kUnion:
        return launch_as<T, UnionLayout>(task, dtype, stream);
    case Layout::kStrip:
        return launch_as<T, StripLayout>(task, dtype, stream);
    }
}

} // namespace bsparse::gpu::sddmm_sm90
