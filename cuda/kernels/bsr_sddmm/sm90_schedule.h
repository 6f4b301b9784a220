// The work of bsr_sddmm on Hopper, ordered on the host: which tiles there are, who computes them, and which are cut
// into ranges of tokens. Plain C++; the kernel (sm90_kernel.cuh) reads the records below as they stand.
//
// A strip is 64 rows of S, a chunk 64 columns. A tile is two strips, one for each warpgroup, and the chunks in which
// one or both have a block. It belongs to one thread block, or its halves to the two of a cluster: they share the
// strips' dY and have chunks of their own. Strips of one block row share all chunks; what is left over of block rows
// with an odd number of strips is paired so that many chunks are shared: a chunk of X is loaded once for both. Where
// too few would be, a tile is one strip for both warpgroups, each of which has chunks of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../src/pattern.h"

namespace bsparse::gpu::sddmm_sm90 {

constexpr int kEdge = 64;         // rows of a strip, columns of a chunk
constexpr int kMostHalves = 2;    // thread blocks of a cluster
constexpr int kWidest = 4;        // most chunks of one warpgroup: 256 columns of f32 sums
constexpr int kTokens = 64;       // of a step
constexpr int kMilestone = 4;     // steps from one milestone of a tile to the next
constexpr int kFractions = 65536; // ranges of tokens are in such parts of all steps
constexpr int kLeastPart = kFractions / 16;
constexpr int64_t kSplitTokens = 2048; // from here on tiles may be cut: then no part is without a step

// Shared memory of a thread block: so many stages, one for each step, each of so many boxes of strips and of chunks.
struct Shape {
    int boxes, stages;
};
constexpr Shape kPairShape{6, 4}; // two strips that share all chunks: 48 KiB a stage
constexpr Shape kFreeShape{9, 3}; // two strips and 7 chunks, or one and 8: 72 KiB a stage

// kPair where every block row is whole pairs of strips.
enum class Layout { kPair, kFree };
constexpr Shape shape_of(Layout layout) { return layout == Layout::kPair ? kPairShape : kFreeShape; }

// The chunks of one thread block, in the order: those that only warpgroup 0 needs, for strip 0, both, only warpgroup 1.
struct Half {
    int32_t first_chunk, only_0, both, only_1;
    constexpr int32_t chunks() const { return only_0 + both + only_1; }
    constexpr int32_t of_strip(int strip) const { return both + (strip == 0 ? only_0 : only_1); }
};

struct Tile {
    int32_t row[2]; // first of each warpgroup's strip; an absent one lies beyond the matrix
    Half half[kMostHalves];
    constexpr int32_t strips() const { return row[0] == row[1] ? 1 : 2; }
};

// What one cluster does with a tile.
struct Segment {
    Tile tile;
    int32_t begin, end; // of its steps, in kFractions
    int32_t parts;      // of this tile, each in another segment: 1, or the sums of all meet
    int32_t part;       // which of them
    int32_t width;      // chunks that each warpgroup's sums take in the workspace
    int32_t first_unit; // of the sums of part 0 there: units of [64, 64] f32
    int32_t meeting;    // which counters
};

struct Chunk {
    int32_t column;   // first
    int32_t place[2]; // of each warpgroup's [64, 64] part of s_values: element / 64; 0 where there is none
};

struct Schedule {
    std::vector<int32_t> first_segment; // [clusters + 1]
    std::vector<Segment> segments;      // those of a cluster in order
    std::vector<Chunk> chunks;
    // Of the clusters that begin with so many whole tiles, how many must be past a milestone of the last of them before
    // others go on: all but a few. Empty where it does not pay.
    std::vector<int32_t> quorum;
    Layout layout = Layout::kPair;
    int halves = 0;     // of every tile: thread blocks of a cluster
    int meetings = 0;   // tiles that are cut
    int64_t units = 0;  // of sums in the workspace
    double longest = 0; // modelled clocks of the slowest cluster
    double average = 0; // of all clusters, each tile uncut
    int clusters() const { return static_cast<int>(first_segment.size()) - 1; }
    int64_t sums_bytes() const { return units * kEdge * kEdge * int64_t{sizeof(float)}; }
};

constexpr int64_t steps_of(int64_t tokens) { return (tokens + kTokens - 1) / kTokens; }
constexpr int64_t milestones_of(int64_t steps) { return (steps + kMilestone - 1) / kMilestone; }

// Whether the kernel takes its blocks and sizes.
bool takes(const Pattern &pattern);

// For a device of so many multiprocessors, each running one thread block. Best for about so many tokens, right for any
// number; but one made for kSplitTokens or more only from there on.
Schedule make_schedule(const Pattern &pattern, int multiprocessors, int64_t tokens);

} // namespace bsparse::gpu::sddmm_sm90
