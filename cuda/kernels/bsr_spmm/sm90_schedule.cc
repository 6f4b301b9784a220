#include "sm90_schedule.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "../common/match.h"

namespace bsparse::gpu::spmm_sm90 {
namespace {

// One direction of a pattern, in the kernel's words.
struct Side {
    const BlockLists &lists; // major: block rows (columns if transposed) of outputs
    bool across; // lines of the values are of one input each, not of one output
    int32_t block_lines; // of a block in the values
    int32_t block_outputs, block_inputs;
    int64_t outputs, inputs;
    int32_t line, depth;
};

int32_t depth_of(int32_t block_inputs, int32_t line) {
    for (int32_t depth = line; depth > 16; depth /= 2) {
        if (block_inputs % depth == 0) {
            return depth;
        }
    }
    return 16;
}

Side side_of(const Pattern &p, bool transposed, int32_t line) {
    const int32_t depth = depth_of(transposed ? p.block_rows : p.block_cols, line);
    if (transposed) {
        const bool across = line == kLineOf16Bits;
        return {p.by_col, across, across ? p.block_rows : p.block_cols, p.block_cols, p.block_rows, p.cols, p.rows,
                line,     depth};
    }
    return {p.by_row, false, p.block_rows, p.block_rows, p.block_cols, p.rows, p.cols, line, depth};
}

// 64 outputs of a block row: the offset-th strip of each of its blocks.
struct Strip {
    int32_t major, offset;

    int64_t output(const Side &side) const { return int64_t{major} * side.block_outputs + offset * kStrip; }
};

struct Piece {
    int32_t row, col;
};

Piece piece(const Side &side, const Strip &strip, int32_t block, int32_t depth) {
    const int32_t first_row = block * side.block_lines;
    if (side.across) {
        return {first_row + depth, strip.offset * kStrip};
    }
    const int32_t fold = side.line / side.depth; // lines of the block in one of the values
    return {(first_row + strip.offset * kStrip) / fold, depth};
}

constexpr int32_t kAbsent = -1;

// The steps of one block column for strips that store there block0 and block1, or kAbsent.
void add_steps(const Side &side, const Strip &strip0, int32_t block0, const Strip &strip1, int32_t block1,
               int32_t minor, std::vector<Step> &steps) {
    for (int32_t depth = 0; depth < side.block_inputs; depth += side.depth) {
        const int64_t input = int64_t{minor} * side.block_inputs + depth;
        if (input >= side.inputs) { // padding of an edge block
            return;
        }
        const Piece piece0 = block0 == kAbsent ? Piece{-1, 0} : piece(side, strip0, block0, depth);
        const Piece piece1 = block1 == kAbsent ? Piece{-1, 0} : piece(side, strip1, block1, depth);
        steps.push_back({static_cast<int32_t>(input), {piece0.row, piece1.row}, piece0.col | piece1.col << 16});
    }
}

// Steps of two strips: what only the first needs, what both need, what only the second needs. In this order one
// warpgroup's result is written while the other still multiplies.
std::vector<Step> merge_steps(const Side &side, const Strip &strip0, const Strip &strip1) {
    const BlockLists &lists = side.lists;
    std::vector<Step> only0, both, only1;
    int32_t i = lists.offsets[strip0.major];
    int32_t j = lists.offsets[strip1.major];
    const int32_t i_end = lists.offsets[strip0.major + 1];
    const int32_t j_end = lists.offsets[strip1.major + 1];
    constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();
    while (i < i_end || j < j_end) {
        const int32_t minor0 = i < i_end ? lists.minors[i] : kEnd;
        const int32_t minor1 = j < j_end ? lists.minors[j] : kEnd;
        if (minor0 < minor1) {
            add_steps(side, strip0, lists.index[i++], strip1, kAbsent, minor0, only0);
        } else if (minor1 < minor0) {
            add_steps(side, strip0, kAbsent, strip1, lists.index[j++], minor1, only1);
        } else {
            add_steps(side, strip0, lists.index[i++], strip1, lists.index[j++], minor0, both);
        }
    }
    only0.insert(only0.end(), both.begin(), both.end());
    only0.insert(only0.end(), only1.begin(), only1.end());
    return only0;
}

std::vector<Step> own_steps(const Side &side, const Strip &strip) {
    std::vector<Step> steps;
    for (int32_t i = side.lists.offsets[strip.major]; i < side.lists.offsets[strip.major + 1]; ++i) {
        add_steps(side, strip, side.lists.index[i], strip, kAbsent, side.lists.minors[i], steps);
    }
    return steps;
}

class Builder {
public:
    Builder(const Side &side) : side_(side) {}

    void make_tiles() {
        const int32_t strips = side_.block_outputs / kStrip;
        for (int32_t major = 0; major < side_.lists.majors(); ++major) {
            for (int32_t offset = 0; offset + 1 < strips; offset += 2) {
                add_shared(Strip{major, offset}, Strip{major, offset + 1});
            }
        }
        if (strips % 2 == 0) {
            return;
        }
        for (const auto [major, other] : match_majors(side_.lists)) { // each has a strip left
            const Strip strip{major, strips - 1};
            if (other >= 0) {
                const Strip second{other, strips - 1};
                add(strip.output(side_), second.output(side_), merge_steps(side_, strip, second));
            } else {
                add(strip.output(side_), beyond(), own_steps(side_, strip));
            }
        }
    }

    const std::vector<Tile> &tiles() const { return tiles_; }
    const std::vector<Step> &steps() const { return steps_; }

    // Strips' steps of a tile: twice its steps where both always take part.
    int64_t strip_steps(const Tile &tile) const {
        int64_t count = 0;
        for (int32_t i = tile.first; i < tile.first + tile.steps; ++i) {
            count += (steps_[i].row[0] >= 0) + (steps_[i].row[1] >= 0);
        }
        return count;
    }

private:
    int64_t beyond() const { return int64_t{side_.lists.majors()} * side_.block_outputs; }

    // Neighbouring strips of one block row.
    void add_shared(const Strip &strip0, const Strip &strip1) {
        if (strip0.output(side_) < side_.outputs) { // else padding of edge blocks
            add(strip0.output(side_), strip1.output(side_), merge_steps(side_, strip0, strip1));
        }
    }

    void add(int64_t output0, int64_t output1, std::vector<Step> steps) {
        if (steps.empty()) {
            steps.push_back({0, {-1, -1}, 0});
        }
        Tile tile{};
        tile.first = static_cast<int32_t>(steps_.size());
        tile.steps = static_cast<int32_t>(steps.size());
        for (const Step &step : steps) {
            tile.only[0] += step.row[1] < 0;
            tile.only[1] += step.row[0] < 0;
        }
        tile.output[0] = static_cast<int32_t>(output0);
        tile.output[1] = static_cast<int32_t>(output1);
        tiles_.push_back(tile);
        steps_.insert(steps_.end(), steps.begin(), steps.end());
    }

    Side side_;
    std::vector<Tile> tiles_;
    std::vector<Step> steps_;
};

} // namespace

int32_t value_width(const Pattern &pattern, bool transposed, int32_t line) {
    return std::max(transposed && line == kLineOf32Bits ? pattern.block_rows : pattern.block_cols, line);
}

bool has_schedule(const Pattern &pattern, bool transposed, int32_t line) {
    const Side side = side_of(pattern, transposed, line);
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
    const int64_t strips = int64_t{side.lists.majors()} * side.block_outputs / kStrip;
    const int64_t pieces = pattern.blocks * (side.block_outputs / kStrip) * (side.block_inputs / side.depth);
    const bool on_end = side.across || side.depth == line || side.block_inputs == side.depth;
    return side.block_outputs % kStrip == 0 && side.block_inputs % 16 == 0 && on_end && pattern.block_rows < 1 << 15 &&
           pattern.block_cols < 1 << 15 && pattern.blocks * side.block_lines < kMost && pattern.rows < kMost &&
           pattern.cols < kMost && pieces < kMost && strips < kMostTiles &&
           int64_t{pattern.row_blocks} * pattern.col_blocks < kMostGrid;
}

Schedule make_schedule(const Pattern &pattern, bool transposed, int multiprocessors, int32_t line) {
    const Side side = side_of(pattern, transposed, line);
    Builder builder(side);
    builder.make_tiles();
    const std::vector<Tile> &tiles = builder.tiles();

    Schedule schedule;
    schedule.depth = side.depth;
    schedule.merged = false;
    schedule.paired = side.block_outputs % (2 * kStrip) == 0;
    schedule.tiles = static_cast<int32_t>(tiles.size());
    append(tiles, schedule.words);
    schedule.steps_offset = schedule.words.size();
    append(builder.steps(), schedule.words);
    for (const Coverage &coverage : {kWide, kSingle, kSmall, kTiny}) {
        const bool exists = coverage.tokens == 256 || // of the kernels
                            (side.depth == line && (coverage.tokens > 64 || line == kLineOf16Bits));
        const bool of_use = coverage.tokens > 64 || schedule.tiles < multiprocessors;
        if (!exists || !of_use) {
            continue;
        }
        std::vector<int64_t> costs;
        for (const Tile &tile : tiles) {
            costs.push_back(builder.strip_steps(tile) * coverage.step_cost * side.depth / (2 * line) +
                            coverage.unit_cost);
        }
        schedule.add_lists(coverage, costs, side.inputs * (128 / line), multiprocessors);
    }
    return schedule;
}

} // namespace bsparse::gpu::spmm_sm90
