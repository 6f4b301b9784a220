// Which blocks of a matrix are stored: validated once, walked row-wise and column-wise.
#pragma once

#include <cstdint>
#include <vector>

#include "bsparse/bsparse.h"

namespace bsparse {

// One direction of walking: row-wise (major = block row, minor = block column) or its transposed twin.
struct BlockLists {
    std::vector<int32_t> offsets; // [majors + 1]
    std::vector<int32_t> minors;  // [blocks], ascending within a major
    std::vector<int32_t> index;   // [blocks], position of the block in s_values
    int32_t majors() const { return static_cast<int32_t>(offsets.size()) - 1; }
};

// "bsr" and so on.
const char *format_name(bsparse_format format);

struct Pattern {
    bsparse_format format;
    int32_t block_rows, block_cols;
    int64_t rows, cols;
    int64_t blocks;
    int32_t row_blocks, col_blocks; // ceil(rows / block_rows), ceil(cols / block_cols)
    BlockLists by_row;              // index is 0, 1, 2, ...
    BlockLists by_col;

    bool is_24() const { return format != BSPARSE_BSR; }
    int64_t elements() const { return blocks * block_rows * block_cols; } // of the stored blocks
    int64_t values() const { return is_24() ? elements() / 2 : elements(); }
    int64_t metadata_bytes() const { return is_24() ? elements() / 8 : 0; }
};

// Throws Error naming the field; desc has been read by abi.h and is complete.
Pattern make_pattern(const bsparse_pattern_desc &desc);

} // namespace bsparse
