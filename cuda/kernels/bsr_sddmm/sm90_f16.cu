#include "sm90_launch.cuh"

void bsparse::gpu::sddmm_sm90::launch_f16(const Task &task, bool pairs, CUstream_st *stream) {
    launch<__half>(task, pairs, BSPARSE_F16, stream);
}
