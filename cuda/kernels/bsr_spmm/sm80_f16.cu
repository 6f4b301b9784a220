#include "sm80_launch.cuh"

namespace bsparse::gpu::sm80 {

void launch_spmm_f16(SpmmKernel kernel, bool transposed, const SpmmTask &task, const Launcher &launcher,
                     CUstream_st *stream) {
    launch_spmm<F16>(kernel, transposed, task, launcher, stream);
}

} // namespace bsparse::gpu::sm80
