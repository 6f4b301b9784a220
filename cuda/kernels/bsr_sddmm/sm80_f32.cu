#include "sm80_launch.cuh"

void bsparse::gpu::sm80::launch_sddmm_f32(SddmmKernel kernel, const SddmmTask &task, CUstream_st *stream) {
    launch_sddmm<F32>(kernel, task, stream);
}
