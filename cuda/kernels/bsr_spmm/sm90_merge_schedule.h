// The work of the sm_90 kernel for spmm with 32x32 blocks: a tile is four block rows, two for each strip, and a step
// the blocks that they store in two neighbouring block columns, its halves.
#pragma once

#include <cstdint>

#include "../../src/pattern.h"
#include "sm90_order.h"

namespace bsparse::gpu::spmm_sm90 {

constexpr int kMergeNarrow = 16; // bit of a step's mask: it has inputs for one half only
constexpr int kMergeLines = 16;  // the copy engine's view of a block in s_values: lines of 64 elements

// As the kernel reads them. Block rows that match are merged wherever they lie; one that is missing has its output at
// or beyond the end of D.
struct MergeTile {
    int32_t first, steps;
    int32_t only[2];   // as in Tile
    int32_t output[4]; // first row of D of each block row: two of strip 0, two of strip 1
};

// A tile without blocks has one step, of mask 0.
struct MergeStep {
    int32_t input_and_mask; // first row of B, a multiple of 32, of what is loaded; mask: bit 2 * half + strip where the
                            // strip takes part in that half
    int32_t unused[3];
    int32_t row[2][4]; // [half][block row]: line of the block, or one beyond the last block, which reads as zeros
};

bool has_merge_schedule(const Pattern &pattern, bool transposed);

Schedule make_merge_schedule(const Pattern &pattern, int multiprocessors);

} // namespace bsparse::gpu::spmm_sm90
