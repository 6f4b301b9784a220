#include "sm90_launch.cuh"

void bsparse::gpu::sddmm_sm90::launch_f16(const Task &task, const Launcher &launcher, CUstream_st *stream) {
    launch<__half>(task, BSPARSE_F16, launcher, stream);
}
