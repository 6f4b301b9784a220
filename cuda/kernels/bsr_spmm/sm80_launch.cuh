// Launches the kernels of one arithmetic; each sm80_<dtype>.cu instantiates it once.
#pragma once

#include "../common/launch.cuh"
#include "sm80_kernel.cuh"

namespace bsparse::gpu::sm80 {

template <typename Math, bool kTransposed, bool kAny, int kTokens>
void launch_spmm_as(const SpmmTask &task, cudaStream_t stream) {
    const int64_t grid = task.tile_count * ((task.tokens + kTokens - 1) / kTokens);
    launch(spmm_sm80<Math, kTransposed, kAny, kTokens>, static_cast<unsigned>(grid), kThreads,
           SpmmTraits<Math, kTransposed, kAny, kTokens>::kSharedBytes, stream, "sm80 spmm", task);
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

} // namespace bsparse::gpu::sm80
