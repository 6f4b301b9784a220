#include "sm80_launch.cuh"

namespace bsparse::gpu::sm80 {

void launch_sddmm_tf32(SddmmKernel kernel, const SddmmTask &task, CUstream_st *stream) {
    launch_sddmm<Tf32>(kernel, task, stream);
}

} // namespace bsparse::gpu::sm80
