#include "sm90_merge_schedule.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "../common/match.h"

namespace bsparse::gpu::spmm_sm90 {
namespace {

constexpr int kBlock = 32;
constexpr int kRows = 4; // of blocks in a tile
constexpr int32_t kMissing = -1;

using Quad = std::array<int32_t, kRows>; // block rows; kMissing past the last

// The block columns that either row of each pair stores, ascending.
BlockLists join(const BlockLists &lists, const std::vector<std::array<int32_t, 2>> &pairs) {
    BlockLists joined;
    joined.offsets.push_back(0);
    for (const auto [row, other] : pairs) {
        const auto first = lists.minors.begin();
        const auto to = std::back_inserter(joined.minors);
        if (other == kMissing) {
            std::copy(first + lists.offsets[row], first + lists.offsets[row + 1], to);
        } else {
            std::set_union(first + lists.offsets[row], first + lists.offsets[row + 1], first + lists.offsets[other],
                           first + lists.offsets[other + 1], to);
        }
        joined.offsets.push_back(static_cast<int32_t>(joined.minors.size()));
    }
    return joined;
}

// Block rows matched to strips, and strips to tiles.
std::vector<Quad> make_quads(const Pattern &pattern) {
    const auto strips = match_majors(pattern.by_row);
    std::vector<Quad> quads;
    for (const auto [strip, other] : match_majors(join(pattern.by_row, strips))) {
        const auto [row0, row1] = strips[strip];
        const auto [row2, row3] = other == kMissing ? std::array{kMissing, kMissing} : strips[other];
        quads.push_back({row0, row1, row2, row3});
    }
    return quads;
}

// Block [half][block row] of a pair of block columns, or kMissing.
using Blocks = std::array<Quad, 2>;

int mask_of(const Blocks &blocks) {
    int mask = 0;
    for (int half = 0; half < 2; ++half) {
        for (int row = 0; row < kRows; ++row) {
            if (blocks[half][row] != kMissing) {
                mask |= 1 << (2 * half + row / 2);
            }
        }
    }
    return mask;
}

MergeStep make_step(const Pattern &pattern, int32_t pair, const Blocks &blocks) {
    const int mask = mask_of(blocks);
    const bool only_late = (mask & 3) == 0;
    const bool narrow = only_late || (mask & 12) == 0;
    const auto none = static_cast<int32_t>(pattern.blocks * kMergeLines);
    MergeStep step{};
    step.input_and_mask = (2 * pair + (only_late ? 1 : 0)) * kBlock | mask | (narrow ? kMergeNarrow : 0);
    for (int half = 0; half < 2; ++half) {
        for (int row = 0; row < kRows; ++row) {
            const int32_t block = blocks[half][row];
            step.row[half][row] = block == kMissing ? none : block * kMergeLines;
        }
    }
    return step;
}

// Steps of a tile: what only strip 0 needs, what both need, what only strip 1 needs, as in sm90_schedule.cc.
std::vector<MergeStep> make_steps(const Pattern &pattern, const Quad &quad) {
    const BlockLists &lists = pattern.by_row;
    std::array<std::vector<MergeStep>, 3> parts;
    std::array<int32_t, kRows> at{}, end{};
    for (int row = 0; row < kRows; ++row) {
        if (quad[row] != kMissing) {
            at[row] = lists.offsets[quad[row]];
            end[row] = lists.offsets[quad[row] + 1];
        }
    }
    for (;;) {
        int32_t pair = std::numeric_limits<int32_t>::max(); // the next that some row stores
        for (int row = 0; row < kRows; ++row) {
            if (at[row] < end[row]) {
                pair = std::min(pair, lists.minors[at[row]] / 2);
            }
        }
        if (pair == std::numeric_limits<int32_t>::max()) {
            break;
        }
        Blocks blocks;
        for (int row = 0; row < kRows; ++row) {
            for (int half = 0; half < 2; ++half) {
                const bool stored = at[row] < end[row] && lists.minors[at[row]] == 2 * pair + half;
                blocks[half][row] = stored ? lists.index[at[row]++] : kMissing;
            }
        }
        const int mask = mask_of(blocks);
        const int part = (mask & 10) == 0 ? 0 : (mask & 5) == 0 ? 2 : 1;
        parts[part].push_back(make_step(pattern, pair, blocks));
    }
    std::vector<MergeStep> steps = std::move(parts[0]);
    steps.insert(steps.end(), parts[1].begin(), parts[1].end());
    steps.insert(steps.end(), parts[2].begin(), parts[2].end());
    if (steps.empty()) {
        steps.push_back({});
    }
    return steps;
}

// By the lines that are loaded: narrow ones take most of the time of wide ones.
int64_t cost_of(const std::vector<MergeStep> &steps, const Coverage &coverage) {
    int64_t cost = coverage.unit_cost;
    for (const MergeStep &step : steps) {
        cost += (step.input_and_mask & kMergeNarrow) != 0 ? coverage.step_cost * 3 / 4 : coverage.step_cost;
    }
    return cost;
}

} // namespace

bool has_merge_schedule(const Pattern &pattern, bool transposed) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
    return !transposed && pattern.block_rows == kBlock && pattern.block_cols == kBlock &&
           pattern.blocks * kMergeLines < kMost && pattern.rows < kMost && pattern.cols < kMost &&
           pattern.row_blocks < kMostTiles && int64_t{pattern.row_blocks} * pattern.col_blocks < kMostGrid;
}

Schedule make_merge_schedule(const Pattern &pattern, int multiprocessors) {
    std::vector<MergeTile> tiles;
    std::vector<MergeStep> steps;
    std::vector<int64_t> costs;
    for (const Quad &quad : make_quads(pattern)) {
        const std::vector<MergeStep> own = make_steps(pattern, quad);
        MergeTile tile{};
        for (int row = 0; row < kRows; ++row) {
            tile.output[row] = (quad[row] == kMissing ? pattern.row_blocks : quad[row]) * kBlock;
        }
        tile.first = static_cast<int32_t>(steps.size());
        tile.steps = static_cast<int32_t>(own.size());
        for (const MergeStep &step : own) {
            tile.only[0] += (step.input_and_mask & 10) == 0;
            tile.only[1] += (step.input_and_mask & 5) == 0;
        }
        tiles.push_back(tile);
        costs.push_back(cost_of(own, kSingle));
        steps.insert(steps.end(), own.begin(), own.end());
    }
    Schedule schedule{};
    schedule.depth = 2 * kBlock;
    schedule.paired = false;
    schedule.merged = true;
    schedule.tiles = static_cast<int32_t>(tiles.size());
    append(tiles, schedule.words);
    schedule.steps_offset = schedule.words.size();
    append(steps, schedule.words);
    schedule.add_lists(kSingle, costs, pattern.cols * 2, multiprocessors);
    return schedule;
}

} // namespace bsparse::gpu::spmm_sm90
