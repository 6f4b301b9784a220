// Between the host code of the sm_80 family and its kernels: one launch function for each arithmetic.
#pragma once

#include "../common/epilogue.cuh"
#include "../common/launch.h"
#include "sm80_schedule.h"

namespace bsparse::gpu::sm80 {

struct SddmmTask {
    const SddmmTile *tiles;
    const int32_t *minors; // [blocks], block column of each
    int32_t tile_count;
    int64_t tokens, rows, cols;
    DenseView a, b; // [tokens, rows], [tokens, cols]
    int32_t block_rows, block_cols;
    float alpha, beta;
    char *values; // [splits, blocks, block_rows, block_cols]
    bsparse_dtype values_dtype;
    int32_t splits;         // parts of the tokens
    int64_t split_tokens;   // of one part
    int64_t split_elements; // from one part's sums to the next one's
};

enum class SddmmKernel {
    kRows128, // of a tile
    kRows64,
    kRows32,
    kAny, // 32 rows of a tile, every order, alignment and block
};
constexpr int tile_rows(SddmmKernel kernel) {
    return kernel == SddmmKernel::kRows128 ? 128 : kernel == SddmmKernel::kRows64 ? 64 : 32;
}

// Throw Error if the launch fails.
void launch_sddmm_bf16(SddmmKernel kernel, const SddmmTask &task, const Launcher &launcher, CUstream_st *stream);
void launch_sddmm_f16(SddmmKernel kernel, const SddmmTask &task, const Launcher &launcher, CUstream_st *stream);
void launch_sddmm_f32(SddmmKernel kernel, const SddmmTask &task, const Launcher &launcher, CUstream_st *stream);
void launch_sddmm_tf32(SddmmKernel kernel, const SddmmTask &task, const Launcher &launcher, CUstream_st *stream);

} // namespace bsparse::gpu::sm80
