// The tiles of a pattern, before anybody has them: see sm90_schedule.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sm90_schedule.h"

namespace bsparse::gpu::sddmm_sm90 {

// The strips of the two warpgroups, and the chunks in which they have blocks.
struct StripPair {
    int32_t row[2]; // as in Tile
    std::vector<Chunk> chunks; // only warpgroup 0, both, only warpgroup 1; in each the columns ascend
    int only_0, both, only_1;
    int strips() const { return row[0] == row[1] ? 1 : 2; }
};

// What all tiles of a schedule have in common.
struct TileKind {
    Layout layout;
    int halves;
};

// Strips that share too few chunks are not paired but have both warpgroups to themselves.
std::vector<StripPair> pair_strips(const Pattern &pattern, const TileKind &kind);

// Deals the chunks to as few tiles as hold them with at most width for each warpgroup, so that both the halves' chunks
// and those of each strip in them differ by at most one. Each gets neighbours: then tiles that run at the same time
// often share columns, of which device memory has less to deliver.
void add_tiles(const StripPair &pair, const TileKind &kind, int width, std::vector<Tile> &to,
               std::vector<Chunk> &chunks);

} // namespace bsparse::gpu::sddmm_sm90
