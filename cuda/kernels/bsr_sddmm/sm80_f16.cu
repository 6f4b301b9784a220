#include "sm80_launch.cuh"

namespace bsparse::gpu::sm80 {

void launch_sddmm_f16(SddmmKernel kernel, const SddmmTask &task, CUstream_st *stream) {
    launch_sddmm<F16>(kernel, task, stream);
}

} // namespace bsparse::gpu::sm80
