// Patterns for the tests that look inside the library.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "pattern.h"

inline bsparse::Pattern pattern_from(int64_t rows, int64_t cols, int32_t block_rows, int32_t block_cols,
                                     const std::vector<int32_t> &offsets, const std::vector<int32_t> &columns) {
    bsparse_pattern_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.format = BSPARSE_BSR;
    desc.block_rows = block_rows;
    desc.block_cols = block_cols;
    desc.rows = rows;
    desc.cols = cols;
    desc.blocks = static_cast<int64_t>(columns.size());
    desc.row_offsets = offsets.data();
    desc.col_indices = columns.empty() ? nullptr : columns.data();
    return bsparse::make_pattern(desc);
}

// The blocks (block row, block column) for which stored() is true.
template <class Stored>
bsparse::Pattern pattern_of(int64_t rows, int64_t cols, int32_t block_rows, int32_t block_cols, Stored stored) {
    std::vector<int32_t> offsets{0}, columns;
    for (int32_t row = 0; int64_t{row} * block_rows < rows; ++row) {
        for (int32_t col = 0; int64_t{col} * block_cols < cols; ++col) {
            if (stored(row, col)) {
                columns.push_back(col);
            }
        }
        offsets.push_back(static_cast<int32_t>(columns.size()));
    }
    return pattern_from(rows, cols, block_rows, block_cols, offsets, columns);
}

// The first block, and every other one with this probability.
inline bsparse::Pattern random_pattern(int64_t rows, int64_t cols, int32_t block_rows, int32_t block_cols,
                                       double density) {
    std::mt19937 random(7);
    std::bernoulli_distribution draw(density);
    return pattern_of(rows, cols, block_rows, block_cols,
                      [&](int32_t row, int32_t col) { return draw(random) || (row == 0 && col == 0); });
}
