// The work of the sm_90 kernels for spmm and spmm_t with blocks of at least 64 outputs.
//
// A tile is two strips of 64 outputs (rows of D), one for each consumer warpgroup; a step multiplies a piece of a
// stored block, 64 outputs by depth inputs, for each strip by these inputs (rows of B), which the strips share: depth
// is a line of 128 bytes, 64 elements of 16 bits or 32 of f32, or 32 or 16 in blocks that this does not divide. Blocks
// 128 high give tiles whose strips share every step; 64-high block rows are paired by the columns they share.
#pragma once

#include <cstdint>

#include "../../src/pattern.h"
#include "sm90_order.h"

namespace bsparse::gpu::spmm_sm90 {

constexpr int kStrip = 64; // outputs of a strip

// A step as the kernel reads it. A strip takes no part where its row is -1. A tile without blocks has one step in which
// neither does, and which counts as both's own.
struct Step {
    int32_t input; // first row of B
    int32_t row[2]; // of each strip's piece in the values seen as [blocks * block_rows, block_cols]
    int32_t cols; // its column there: strip 0 in the low 16 bits, strip 1 in the high ones
};

struct Tile {
    int32_t first, steps;
    int32_t only[2]; // steps in which the other strip takes no part: those of strip 0 come first, of strip 1 last
    int32_t output[2]; // first row of D of each strip; at or beyond the end of D: nothing to write
    int32_t unused[2];
};

// Elements in a line: kLineOf32Bits are of f32, which wgmma takes K-major alone, so that spmm_t's values are those of
// the blocks transposed, one after the other.
constexpr int32_t kLineOf16Bits = 64, kLineOf32Bits = 32;

// The values as a matrix of lines: of a block's own, or of so many elements, several of its lines, where it has fewer
// columns.
int32_t value_width(const Pattern &pattern, bool transposed = false, int32_t line = kLineOf16Bits);

// Whether there is a schedule: blocks have a multiple of 64 outputs and 16, 32 or a multiple of a line of inputs
// (spmm_t: of 16), and every number fits its field.
bool has_schedule(const Pattern &pattern, bool transposed, int32_t line = kLineOf16Bits);

// transposed: spmm_t, whose outputs are the columns of S.
Schedule make_schedule(const Pattern &pattern, bool transposed, int multiprocessors, int32_t line = kLineOf16Bits);

} // namespace bsparse::gpu::spmm_sm90
