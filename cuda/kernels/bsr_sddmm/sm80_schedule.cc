#include "sm80_schedule.h"

#include <algorithm>

namespace bsparse::gpu::sm80 {

std::vector<SddmmTile> sddmm_tiles(const Pattern &pattern, int tile_rows) {
    std::vector<SddmmTile> tiles;
    const std::vector<int32_t> &offsets = pattern.by_row.offsets;
    for (int32_t row = 0; row < pattern.row_blocks; ++row) {
        const int64_t columns = int64_t{offsets[row + 1] - offsets[row]} * pattern.block_cols;
        for (int64_t first_row = 0; first_row < pattern.block_rows; first_row += tile_rows) {
            for (int64_t column = 0; column < columns; column += kTileColumns) {
                tiles.push_back({row, static_cast<int32_t>(first_row),
                                 static_cast<int32_t>(offsets[row] + column / pattern.block_cols),
                                 static_cast<int32_t>(column % pattern.block_cols),
                                 static_cast<int32_t>(std::min<int64_t>(kTileColumns, columns - column))});
            }
        }
    }
    return tiles;
}

int sddmm_splits(int64_t tiles, int64_t tokens, int64_t stage_tokens, int multiprocessors) {
    constexpr int64_t kMost = 16;       // more would spend the time on adding up
    constexpr int64_t kLeastStages = 4; // of a part: fewer would spend it on starting
    if (tiles == 0) {
        return 1;
    }
    const int64_t wanted = 2 * multiprocessors / tiles;
    const int64_t possible = tokens / (kLeastStages * stage_tokens);
    return static_cast<int>(std::max<int64_t>(1, std::min({wanted, possible, kMost})));
}

} // namespace bsparse::gpu::sm80
