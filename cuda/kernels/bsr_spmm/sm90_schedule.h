// The order of work of the sm_90 kernels for spmm and spmm_t, made once per plan and valid for any number of tokens.
//
// A tile is two strips of 64 outputs (rows of D), one for each consumer warpgroup; a step multiplies a piece of a stored
// block, 64 outputs by depth inputs, for each strip by these inputs (rows of B), which the strips share: depth is 64, or 32
// or 16 in blocks that 64 does not divide. A unit is a tile and a group of tokens.
// Blocks 128 high give tiles whose strips share every step; 64-high block rows are paired by the columns they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../src/pattern.h"

namespace bsparse::gpu {

constexpr int kStrip = 64; // outputs of a strip

// Ways to cover the tokens: thread blocks of so many tokens, in clusters of neighbouring groups that share the blocks of
// S. Costs of a step and of a unit's start and end in 1/64 of the time of a step of the first way (measured).
struct Coverage {
    int tokens, cluster;
    int period;     // groups of tokens (tokens * cluster each) that the unit lists hold, to be repeated
    int supergroup; // groups whose units are ordered together, longest first: a power of two
    int step_cost, unit_cost;
};
constexpr int kCoverages = 3;
constexpr Coverage kCoverage[kCoverages] = {
    {256, 2, 32, 2, 64, 116}, // large products
    {256, 1, 32, 4, 66, 96},  // fewer units than fill the first way
    {128, 1, 16, 1, 44, 64},  // so few that more thread blocks count for more; at depth 64 only
};

// A step as the kernel reads it. A strip takes no part where its row is -1. A tile without blocks has one step in which
// neither does.
struct Step {
    int32_t input;  // first row of B
    int32_t row[2]; // of each strip's piece in the values seen as [blocks * block_rows, block_cols]
    int32_t cols;   // its column there: strip 0 in the low 16 bits, strip 1 in the high ones
};

struct Tile {
    int32_t output[2];  // first row of D of each strip; at or beyond the end of D: nothing to write
    int32_t first, steps;
    Step step;          // a copy of its first step
};

// Units of a worker (a cluster), in order: word [round][worker]; tile << kGroupBits | group, or kNoUnit.
// The first units of every worker are those of the first groups: fewer tokens take the front of the lists.
constexpr int kGroupBits = 6;
constexpr int32_t kNoUnit = -1;

struct UnitLists {
    size_t offset;              // of the first word in the schedule
    int workers, rounds;
    std::vector<int64_t> spans; // [period + 1]: cost of the longest worker with so many groups
};

struct Sm90Schedule {
    std::vector<int32_t> words; // tiles, steps, unit lists
    int32_t depth;              // inputs of a step
    bool paired;                // both strips take part in every step, unless neither does
    int32_t tiles;
    size_t steps_offset;
    std::vector<UnitLists> lists; // for each of the first of kCoverage

    // The cheapest way for so many tokens, an index of kCoverage.
    int choose(int64_t tokens) const;
};

// Whether there is one: blocks are multiples of 64 outputs and 16 inputs, and every number fits its field.
bool sm90_takes(const Pattern &pattern, bool transposed);

// transposed: spmm_t, whose outputs are the columns of S.
Sm90Schedule make_sm90_schedule(const Pattern &pattern, bool transposed, int multiprocessors);

} // namespace bsparse::gpu
