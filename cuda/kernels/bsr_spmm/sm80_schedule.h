// The work lists of the sm_80 kernels of spmm and spmm_t. Host code only.
//
// Words: outer features are D's and inner ones are summed over (rows and columns of S in spmm, columns and rows in
// spmm_t). A tile is 128 outer features, 8 pieces of 16. A slice is 32 bytes of inner features (16 of f16 and bf16, 8
// of f32) in which a tile has a block; a stage is 4 slices of a tile, which are in shared memory together.
#pragma once

#include <cstdint>
#include <vector>

#include "../../src/backend.h"

namespace bsparse::gpu::sm80 {

constexpr int kTileOuter = 128;
constexpr int kPieceOuter = 16;
constexpr int kPieces = kTileOuter / kPieceOuter;
constexpr int kStageSlices = 4;
constexpr int kUnit = 8; // elements: offsets in the lists count in these

struct SpmmTile {
    int32_t number; // its outer features start at 128 * number
    int32_t first_stage, last_stage;
    int32_t unused;
};

// What both loaders need of a stage.
struct SpmmStage {
    int32_t inner[kStageSlices]; // first inner feature of each slice, in units; -1: no slice
    uint32_t mask;               // bit 8 slice + piece: something is stored there
    int32_t first_part, last_part; // of SpmmPart, for the loader of anything
    int32_t unused;
};

// For the loader by 16 bytes: where the [16 x slice] corner of a block begins in s_values, in units; -1: not stored.
struct SpmmPieces {
    int32_t unit[kStageSlices][kPieces];
};

// For the loader of anything: a block that overlaps a slice of a tile.
struct SpmmPart {
    int32_t block;
    int32_t outer, inner; // where the block begins, from the tile's first outer and the slice's first inner feature
    int32_t slice;
};

struct SpmmSchedule {
    std::vector<SpmmTile> tiles; // the longest first
    std::vector<SpmmStage> stages;
    std::vector<SpmmPieces> pieces; // as many as stages, or none
    std::vector<SpmmPart> parts;    // or none
};

// Whether the loader by 16 bytes can read the blocks of this plan.
bool spmm_has_pieces(const Plan &plan);

SpmmSchedule spmm_pieces_schedule(const Plan &plan); // only where spmm_has_pieces
SpmmSchedule spmm_parts_schedule(const Plan &plan);

} // namespace bsparse::gpu::sm80
