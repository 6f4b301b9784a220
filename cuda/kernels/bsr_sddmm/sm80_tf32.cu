#include "sm80_launch.cuh"

namespace bsparse::gpu::sm80 {

void launch_sddmm_tf32(SddmmKernel kernel, const SddmmTask &task, const Launcher &launcher, CUstream_st *stream) {
    launch_sddmm<Tf32>(kernel, task, launcher, stream);
}

} // namespace bsparse::gpu::sm80
