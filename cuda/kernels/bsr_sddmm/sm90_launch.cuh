// Launches the kernels of one dtype; each sm90_<dtype>.cu instantiates them.
#pragma once

#include "../common/launch.h"
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

template <class T, class Layout>
void launch_as(const Task &task, bsparse_dtype dtype, const Launcher &launcher, cudaStream_t stream) {
    using S = Shared<Layout>;
    Params params = task.params;
    params.steps = static_cast<int32_t>((task.tokens + S::kTokens - 1) / S::kTokens);
    const CUtensorMap dy =
        make_tensor_map({dtype, task.dy.data, params.rows, task.tokens, task.dy.pitch}, kEdge, S::kTokens);
    const CUtensorMap x =
        make_tensor_map({dtype, task.x.data, params.cols, task.tokens, task.x.pitch}, kEdge, S::kTokens);
    if (task.meetings > 0) {
        constexpr int kClearThreads = 256;
        launcher("bsr_sddmm (sm90, counters)", clear_counters, {1, kClearThreads, 0, 1, true}, stream, params.counters,
                 task.meetings * kCounters);
    }
    const LaunchShape shape{static_cast<unsigned>(task.clusters * S::kHalves), kThreads, S::kBytes + S::kAlign,
                            S::kHalves, true};
    launcher("bsr_sddmm (sm90)", sddmm_sm90<T, Layout>, shape, stream, dy, x, params);
}

template <class T> void launch(const Task &task, bsparse_dtype dtype, const Launcher &launcher, cudaStream_t stream) {
    switch (task.layout) {
    case Layout::kPair:
        return task.halves == 2 ? launch_as<T, PairLayout>(task, dtype, launcher, stream)
                                : launch_as<T, LonePairLayout>(task, dtype, launcher, stream);
    case Layout::kUnion:
        return launch_as<T, UnionLayout>(task, dtype, launcher, stream);
    case Layout::kStrip:
        return launch_as<T, StripLayout>(task, dtype, launcher, stream);
    }
}

} // namespace bsparse::gpu::sddmm_sm90
