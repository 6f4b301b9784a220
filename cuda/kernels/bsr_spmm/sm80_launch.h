// Between the host code of the sm_80 family and its kernels: one launch function for each arithmetic.
#pragma once

#include "../common/epilogue.cuh"
#include "../common/launch.h"
#include "sm80_schedule.h"

namespace bsparse::gpu::sm80 {

struct SpmmTask {
    const SpmmTile *tiles;
    const SpmmStage *stages;
    const SpmmPieces *pieces; // of the loader by 16 bytes
    const SpmmPart *parts;    // of the loader of anything
    int32_t tile_count;
    int64_t tokens, outer, inner;
    DenseView x;        // [tokens, inner]
    const void *values; // [blocks, block_rows, block_cols]
    int32_t block_outer, block_inner;
    int64_t outer_stride, inner_stride; // within a block, elements
    Epilogue epilogue;
};

enum class SpmmKernel {
    kWide,   // 128 tokens at a time
    kNarrow, // 32 tokens at a time
    kAny,    // 128 tokens at a time, every order, alignment and block
};

// Throws Error if the launch fails. The inner dimension lies along the lines of a block, or transposed across them.
void launch_spmm_bf16(SpmmKernel kernel, bool transposed, const SpmmTask &task, const Launcher &launcher,
                      CUstream_st *stream);
void launch_spmm_f16(SpmmKernel kernel, bool transposed, const SpmmTask &task, const Launcher &launcher,
                     CUstream_st *stream);
void launch_spmm_f32(SpmmKernel kernel, bool transposed, const SpmmTask &task, const Launcher &launcher,
                     CUstream_st *stream);
void launch_spmm_tf32(SpmmKernel kernel, bool transposed, const SpmmTask &task, const Launcher &launcher,
                      CUstream_st *stream);

} // namespace bsparse::gpu::sm80
