// What a launch of the sm_90 spmm kernels needs: the kernel, and what it is given.
#pragma once

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../common/epilogue.cuh"
#include "sm90_schedule.h"

namespace bsparse::gpu::sm90 {

struct Arguments {
    CUtensorMap value_map, input_map, output_map; // output_map: unused in the staged kernels
    const int4 *tiles;                            // Tile, two each
    const int4 *steps;                            // Step
    const int32_t *units;                         // [rounds][workers]
    int workers, units_end, period, supergroup;   // units_end: rounds * workers
    int groups;                                   // of tokens
    int cluster;                                  // thread blocks in a cluster
    int tokens, outputs;
    int beyond; // outputs, rounded up to whole strips
    Epilogue epilogue;
};

constexpr int kThreads = 3 * 128; // a producer and two consumer warpgroups

struct KernelChoice {
    const void *function; // of Arguments, kThreads
    int shared_bytes;
};

// transposed: spmm_t. paired: as Sm90Schedule. tokens: of a thread block, 128 or 256. staged: the kernel for beta * C, aux,
// another dtype of D than that of S, and any alignment of C, D and aux.
KernelChoice choose_bf16(bool transposed, bool paired, int tokens, bool staged); // sm90_bf16.cu
KernelChoice choose_f16(bool transposed, bool paired, int tokens, bool staged);  // sm90_f16.cu

} // namespace bsparse::gpu::sm90
