// The work list of the sm_80 kernels of sddmm. Host code only.
//
// A tile is some rows of one block row by up to 128 columns, those of its stored blocks side by side: where the blocks
// end in the matrix makes no difference to it.
#pragma once

#include <cstdint>
#include <vector>

#include "../../src/backend.h"

namespace bsparse::gpu::sm80 {

constexpr int kTileColumns = 128;

struct SddmmTile {
    int32_t block_row;
    int32_t first_row;    // within the block row
    int32_t first_block;  // the first column is this block's column first_column
    int32_t first_column;
    int32_t columns;      // 1 to 128, counted through the blocks behind it
};

std::vector<SddmmTile> sddmm_tiles(const Pattern &pattern, int tile_rows);

// Parts into which the tokens are cut, so that few tiles fill a device: each part sums by itself.
int sddmm_splits(int64_t tiles, int64_t tokens, int64_t stage_tokens, int multiprocessors);

} // namespace bsparse::gpu::sm80
