// What a launch of the sm_90 spmm kernels needs: the kernel, and what it is given.
#pragma once

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../common/epilogue.cuh"
#include "../common/launch.h"
#include "sm90_merge_schedule.h"
#include "sm90_schedule.h"

namespace bsparse::gpu::spmm_sm90 {

struct Arguments {
    CUtensorMap value_map, input_map, output_map; // output_map: unused in the staged kernels
    CUtensorMap narrow_map;                       // merged: of half the inputs of a step
    const int4 *tiles;                            // Tile or MergeTile, two each
    const int4 *steps;                            // Step, or MergeStep, three each
    const int32_t *units;                         // [rounds][workers]
    int workers, units_end, period, supergroup;   // units_end: rounds * workers
    int groups;                                   // of tokens
    int cluster;                                  // thread blocks in a cluster
    int tokens, outputs;
    Epilogue epilogue;
};

constexpr int kThreads = 3 * 128; // a producer and two consumer warpgroups

struct KernelChoice {
    const void *function; // of Arguments, kThreads
    int shared_bytes;
};

// Which kernel a launch needs.
struct Variant {
    bool merged;     // 32x32 blocks: of what follows, only staged counts
    int depth;       // 16, 32, 64, as in Schedule
    bool across;     // spmm_t: its blocks are read across; those of f32 are transposed before
    bool paired;     // as in Schedule
    int tokens;      // of a thread block: 256; 128 at depths of 128 bytes only, as 64, of 16 bits a number
    bool staged;     // for beta * C, aux, another dtype of D than that of S, and any alignment of C, D and aux
};

KernelChoice choose_bf16(const Variant &variant); // sm90_bf16.cu
KernelChoice choose_f16(const Variant &variant);  // sm90_f16.cu
KernelChoice choose_tf32(const Variant &variant); // sm90_tf32.cu: of f32, depths 16 and 32, neither merged nor across

// Blocks of f32 one after the other, [rows, cols] each, to [cols, rows]; cols is a multiple of 32.
struct Transposition {
    const float *from;
    float *to;
    int64_t blocks;
    int rows, cols;
};
void transpose_blocks(const Launcher &launcher, const Transposition &task, cudaStream_t stream); // sm90_transpose.cu

} // namespace bsparse::gpu::spmm_sm90
