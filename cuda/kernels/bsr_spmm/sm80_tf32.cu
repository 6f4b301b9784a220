#include "sm80_launch.cuh"

void bsparse::gpu::sm80::launch_spmm_tf32(SpmmKernel kernel, bool transposed, const SpmmTask &task, CUstream_st *stream) {
    launch_spmm<Tf32>(kernel, transposed, task, stream);
}
