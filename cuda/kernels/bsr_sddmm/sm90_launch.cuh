// Launches the kernels of one dtype; each sm90_<dtype>.cu instantiates them.
#pragma once

#include "../../src/error.h"
#include "../common/tensor_map.h"
#include "sm90_kernel.cuh"

namespace bsparse::gpu::sddmm_sm90 {

// The main kernel may start while this one runs; it waits for it before its first use of a counter.
static __global__ void clear_counters(uint32_t *counters, int count) {
    sm90::let_next_kernel_start();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        counters[i] = 0;
    }
}

inline void check(cudaError_t error, const char *kernel) {
    if (error != cudaSuccess) {
        cudaGetLastError(); // or CUDA would report it again to the next caller of the process
        backend_error("the sm90 sddmm kernel %s did not start, and CUDA answers \"%s\": check the device with "
                      "nvidia-smi",
                      kernel, cudaGetErrorString(error));
    }
}

template <class T, class Layout> void launch_as(const Task &task, bsparse_dtype dtype, cudaStream_t stream) {
    using S = Shared<Layout>;
    const auto map = [&](const Operand &operand) {
        return make_tensor_map({dtype, operand.data, operand.features, task.tokens, operand.pitch}, kEdge, S::kTokens);
    };
    Params params;
    params.first_segment = task.first_segment;
    params.segments = task.segments;
    params.tiles = task.tiles;
    params.chunks = task.chunks;
    params.steps = static_cast<int32_t>((task.tokens + S::kTokens - 1) / S::kTokens);
    params.values = task.values;
    params.f32_values = task.f32_values;
    params.block_cols = task.block_cols;
    params.rows = static_cast<int32_t>(task.dy.features);
    params.cols = static_cast<int32_t>(task.x.features);
    params.alpha = task.alpha;
    params.beta = task.beta;
    params.sums = reinterpret_cast<float4 *>(task.sums);
    params.counters = task.counters;

    if (task.meetings > 0) {
        clear_counters<<<1, 256, 0, stream>>>(task.counters, task.meetings * kCountersOfMeeting);
        check(cudaGetLastError(), "that clears counters");
    }
    const auto kernel = sddmm_sm90<T, Layout>;
    constexpr int kBytes = S::kBytes + S::kAlign;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "itself");
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {kHalves, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = task.clusters * kHalves;
    config.blockDim = kThreads;
    config.dynamicSmemBytes = kBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = task.meetings > 0 ? 2 : 1; // alone it starts when all before it in the stream is done
    check(cudaLaunchKernelEx(&config, kernel, map(task.dy), map(task.x), params), "itself");
}

template <class T> void launch(const Task &task, bool pairs, bsparse_dtype dtype, cudaStream_t stream) {
    if (pairs) {
        launch_as<T, PairLayout>(task, dtype, stream);
    } else {
        launch_as<T, UnionLayout>(task, dtype, stream);
    }
}

} // namespace bsparse::gpu::sddmm_sm90
