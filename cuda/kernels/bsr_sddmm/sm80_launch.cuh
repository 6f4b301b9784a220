// Launches the kernels of one arithmetic; each sm80_<dtype>.cu instantiates it once.
#pragma once

#include "sm80_kernel.cuh"

namespace bsparse::gpu::sm80 {

template <typename Math, bool kAny, int kRows>
void launch_sddmm_as(const SddmmTask &task, const Launcher &launcher, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(task.tile_count), static_cast<unsigned>(task.splits));
    launcher("bsr_sddmm (sm80)", sddmm_sm80<Math, kAny, kRows>,
             {grid, kThreads, SddmmTraits<Math, kAny, kRows>::kSharedBytes}, stream, task);
}

template <typename Math>
void launch_sddmm(SddmmKernel kernel, const SddmmTask &task, const Launcher &launcher, cudaStream_t stream) {
    switch (kernel) {
    case SddmmKernel::kRows128:
        return launch_sddmm_as<Math, false, 128>(task, launcher, stream);
    case SddmmKernel::kRows64:
        return launch_sddmm_as<Math, false, 64>(task, launcher, stream);
    case SddmmKernel::kRows32:
        return launch_sddmm_as<Math, false, 32>(task, launcher, stream);
    default:
        return launch_sddmm_as<Math, true, 32>(task, launcher, stream);
    }
}

} // namespace bsparse::gpu::sm80
