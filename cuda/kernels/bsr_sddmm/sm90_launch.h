// Between the host code of the sm_90 family of sddmm and its kernels: one launch function for each dtype.
#pragma once

#include <cstdint>

#include "../common/launch.h"
#include "sm90_schedule.h"

namespace bsparse::gpu::sddmm_sm90 {

constexpr int kCounters = kMostHalves * 2; // of a meeting: one for each warpgroup of a cluster

// What the kernels need besides tensor maps. Lists and buffers lie in device memory.
struct Params {
    const int32_t *first_segment; // [clusters + 1]
    const Segment *segments;
    const Chunk *chunks;
    const int32_t *quorum; // [paced_tiles]
    uint32_t lists_bytes; // of all four, which lie in this order
    int32_t paced_tiles;  // how many tiles of each cluster keep pace with those of others
    int32_t steps;        // of all tokens; set by the launch
    void *values;    // [blocks, block_rows, block_cols]
    bool f32_values; // otherwise of the operands' dtype
    int32_t block_cols, rows, cols;
    float alpha, beta;
    float *sums;        // of parts of tiles
    uint32_t *counters; // [meetings, kCounters]
    uint32_t *passed;   // [paced_tiles, milestones_of(steps)], behind the counters; the launch zeroes both
};

// Row-major [tokens, features].
struct Operand {
    const void *data;
    int64_t pitch; // elements
};

struct Task {
    Params params;
    Operand dy, x; // [tokens, rows], [tokens, cols]
    int64_t tokens;
    int clusters, halves;
    int counters; // to be zeroed
    Layout layout;
};

// Throws Error if a launch fails.
void launch_bf16(const Task &task, const Launcher &launcher, CUstream_st *stream);
void launch_f16(const Task &task, const Launcher &launcher, CUstream_st *stream);

} // namespace bsparse::gpu::sddmm_sm90
