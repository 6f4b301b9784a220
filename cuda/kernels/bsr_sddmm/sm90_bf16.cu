#include "sm90_launch.cuh"

void bsparse::gpu::sddmm_sm90::launch_bf16(const Task &task, const Launcher &launcher, CUstream_st *stream) {
    launch<__nv_bfloat16>(task, BSPARSE_BF16, launcher, stream);
}
