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

template <class T, Layout kLayout, int kHalves>
void launch_as(const Task &task, bsparse_dtype dtype, const Launcher &launcher, cudaStream_t stream) {
    using S = Shared<kLayout, kHalves>;
    Params params = task.params;
    params.steps = static_cast<int32_t>(steps_of(task.tokens));
    const CUtensorMap dy =
        make_tensor_map({dtype, task.dy.data, params.rows, task.tokens, task.dy.pitch}, kEdge, kTokens);
    const CUtensorMap x = make_tensor_map({dtype, task.x.data, params.cols, task.tokens, task.x.pitch}, kEdge, kTokens);
    if (task.counters > 0) {
        constexpr int kClearThreads = 256;
        launcher("bsr_sddmm (sm90, counters)", clear_counters, {1, kClearThreads, 0, 1, true}, stream, params.counters,
                 task.counters);
    }
    const LaunchShape shape{static_cast<unsigned>(task.clusters * kHalves), kThreads, S::kBytes + S::kAlign, kHalves,
                            true};
    launcher("bsr_sddmm (sm90)", sddmm_sm90<T, kLayout, kHalves>, shape, stream, dy, x, params);
}

template <class T, Layout kLayout>
void launch_in(const Task &task, bsparse_dtype dtype, const Launcher &launcher, cudaStream_t stream) {
    return task.halves == 2 ? launch_as<T, kLayout, 2>(task, dtype, launcher, stream)
                            : launch_as<T, kLayout, 1>(task, dtype, launcher, stream);
}

template <class T> void launch(const Task &task, bsparse_dtype dtype, const Launcher &launcher, cudaStream_t stream) {
    return task.layout == Layout::kPair ? launch_in<T, Layout::kPair>(task, dtype, launcher, stream)
                                        : launch_in<T, Layout::kFree>(task, dtype, launcher, stream);
}

} // namespace bsparse::gpu::sddmm_sm90
