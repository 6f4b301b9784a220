// Between the host code of the sm_90 family of sddmm and its kernels: one launch function for each dtype.
#pragma once

#include <cstdint>

#include "sm90_schedule.h"

struct CUstream_st;

namespace bsparse::gpu::sddmm_sm90 {

struct Operand {
    const void *data;
    int64_t features, pitch; // row-major [tokens, features], elements
};

// Lists and buffers lie in device memory.
struct Task {
    const int32_t *first_segment; // [clusters + 1]
    const Segment *segments;
    const Tile *tiles;
    const Chunk *chunks;
    int clusters, meetings;
    Operand dy, x;
    int64_t tokens;
    void *values; // [blocks, block_rows, block_cols]
    bool f32_values; // otherwise of the operands' dtype
    int32_t block_cols;
    float alpha, beta;
    float *sums;        // of parts of tiles
    uint32_t *counters; // [meetings, kCountersOfMeeting], zeroed by the launch
};
constexpr int kCountersOfMeeting = kHalves * 2; // one for each half and warpgroup

// Throws Error if a launch fails. pairs: the kernel of kPairShape, or that of kUnionShape.
void launch_bf16(const Task &task, bool pairs, CUstream_st *stream);
void launch_f16(const Task &task, bool pairs, CUstream_st *stream);

} // namespace bsparse::gpu::sddmm_sm90
