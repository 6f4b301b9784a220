// Launches the kernels of one arithmetic; each sm80_<dtype>.cu instantiates it once.
#pragma once

#include "sm80_kernel.cuh"

namespace bsparse::gpu::sm80 {

template <typename Math, bool kTransposed, bool kAny, int kTokens>
void launch_spmm_as(const SpmmTask &task, const Launcher &launcher, cudaStream_t stream) {
    const int64_t grid = task.tile_count * ((task.tokens + kTokens - 1) / kTokens);
    launcher("bsr_spmm (sm80)", spmm_sm80<Math, kTransposed, kAny, kTokens>,
             {static_cast<unsigned>(grid), kThreads, SpmmTraits<Math, kTransposed, kAny, kTokens>::kSharedBytes},
             stream, task);
}

template <typename Math>
void launch_spmm(SpmmKernel kernel, bool transposed, const SpmmTask &task, const Launcher &launcher,
                 cudaStream_t stream) {
    switch (kernel) {
    case SpmmKernel::kWide:
        return transposed ? launch_spmm_as<Math, true, false, 128>(task, launcher, stream)
                          : launch_spmm_as<Math, false, false, 128>(task, launcher, stream);
    case SpmmKernel::kNarrow:
        return transposed ? launch_spmm_as<Math, true, false, 32>(task, launcher, stream)
                          : launch_spmm_as<Math, false, false, 32>(task, launcher, stream);
    default: // fills shared memory in the same order for both products
        return launch_spmm_as<Math, false, true, 128>(task, launcher, stream);
    }
}

} // namespace bsparse::gpu::sm80
