#include "pattern.h"

#include <cinttypes>
#include <cstddef>
#include <limits>
#include <numeric>

#include "error.h"

namespace bsparse {
namespace {

// Bounds the memory that a few hostile numbers can ask for (256 MiB of offsets), far beyond any layer.
constexpr int64_t kMostBlockRows = int64_t{1} << 26;

constexpr int64_t kLargestElement = 8; // bytes of an f64

// ceil(elements / block), which must be small enough to list.
int32_t count_blocks(int64_t elements, int32_t block, const char *field, const char *block_field) {
    if (block < 1) {
        invalid_argument("pattern_desc.%s is %d; it must be at least 1: 32 or 64 are good sizes", block_field, block);
    }
    if (elements < 1) {
        invalid_argument("pattern_desc.%s is %" PRId64 "; it must be at least 1: a matrix without elements has no "
                         "pattern",
                         field, elements);
    }
    const int64_t count = (elements - 1) / block + 1;
    if (count > kMostBlockRows) {
        invalid_argument("pattern_desc.%s is %" PRId64 ", which with %s = %d makes %" PRId64
                         " blocks along it; at most "
                         "%" PRId64 " are possible: use larger blocks or check the sizes",
                         field, elements, block_field, block, count, kMostBlockRows);
    }
    return static_cast<int32_t>(count);
}

constexpr int32_t kMetadataColumns = 8; // of a byte of metadata

void check_format(bsparse_format format) {
    if (format < BSPARSE_BSR || format > BSPARSE_BSR24) {
        invalid_argument("pattern_desc.format is %d, which is no format: use BSPARSE_BSR (1), BSPARSE_SEMI24 (2) or "
                         "BSPARSE_BSR24 (3)",
                         format);
    }
}

// What the sizes of 2:4 formats must be beside those of all.
void check_sizes_24(const bsparse_pattern_desc &desc) {
    if (desc.format == BSPARSE_SEMI24 && (desc.block_rows != desc.rows || desc.block_cols != desc.cols)) {
        invalid_argument("pattern_desc.block_rows x block_cols is %d x %d; semi24 is one block of rows x cols, %" PRId64
                         " x %" PRId64 ": set them so",
                         desc.block_rows, desc.block_cols, desc.rows, desc.cols);
    }
    if (desc.block_cols % kMetadataColumns != 0) {
        const bool whole = desc.format == BSPARSE_SEMI24;
        invalid_argument("pattern_desc.%s is %d; in %s it must be a multiple of %d: %s", whole ? "cols" : "block_cols",
                         desc.block_cols, format_name(desc.format), kMetadataColumns,
                         whole ? "use bsr24, whose edge blocks may stick out, or pad the matrix"
                               : "use larger blocks, or bsr");
    }
    if (desc.format == BSPARSE_SEMI24 && desc.blocks != 1) {
        invalid_argument("pattern_desc.blocks is %" PRId64 "; semi24 is one block: pass 1, row_offsets {0, 1} and "
                         "col_indices {0}",
                         desc.blocks);
    }
}

void check_block_count(const Pattern &pattern) {
    const int64_t most = int64_t{pattern.row_blocks} * pattern.col_blocks;
    if (pattern.blocks < 0 || pattern.blocks > most) {
        invalid_argument("pattern_desc.blocks is %" PRId64 "; a matrix of %d x %d blocks stores 0 to %" PRId64
                         " of them: pass row_offsets[%d]",
                         pattern.blocks, pattern.row_blocks, pattern.col_blocks, most, pattern.row_blocks);
    }
    if (pattern.blocks > std::numeric_limits<int32_t>::max()) {
        invalid_argument("pattern_desc.blocks is %" PRId64
                         "; offsets are int32, so at most %d blocks are possible: use "
                         "larger blocks",
                         pattern.blocks, std::numeric_limits<int32_t>::max());
    }
    const int64_t block_bytes = int64_t{pattern.block_rows} * pattern.block_cols; // below 2^62
    int64_t bytes = 0;
    if (__builtin_mul_overflow(block_bytes, pattern.blocks, &bytes) ||
        bytes > std::numeric_limits<ptrdiff_t>::max() / kLargestElement) {
        invalid_argument("pattern_desc.blocks is %" PRId64 "; so many blocks of %d x %d exceed the address space: use "
                         "smaller blocks or check the sizes",
                         pattern.blocks, pattern.block_rows, pattern.block_cols);
    }
}

// offsets [row_blocks + 1]
void check_offsets(const std::vector<int32_t> &offsets, int64_t blocks) {
    if (offsets.front() != 0) {
        invalid_argument("pattern_desc.row_offsets[0] is %d; it must be 0: the first block row starts at block 0",
                         offsets.front());
    }
    for (size_t i = 1; i < offsets.size(); ++i) {
        if (offsets[i] < offsets[i - 1]) {
            invalid_argument("pattern_desc.row_offsets[%zu] is %d after row_offsets[%zu] = %d; offsets must not "
                             "decrease: each is the one before it plus the blocks of that block row",
                             i, offsets[i], i - 1, offsets[i - 1]);
        }
    }
    if (offsets.back() != blocks) {
        invalid_argument("pattern_desc.row_offsets[%zu] is %d, but pattern_desc.blocks is %" PRId64
                         "; the last offset must be the number of blocks: make them equal",
                         offsets.size() - 1, offsets.back(), blocks);
    }
}

// Columns of each block row in range and strictly ascending.
void check_columns(const Pattern &pattern) {
    for (int32_t row = 0; row < pattern.row_blocks; ++row) {
        const int32_t begin = pattern.by_row.offsets[row];
        const int32_t end = pattern.by_row.offsets[row + 1];
        for (int32_t i = begin; i < end; ++i) {
            const int32_t col = pattern.by_row.minors[i];
            if (col < 0 || col >= pattern.col_blocks) {
                invalid_argument(
                    "pattern_desc.col_indices[%d] is %d; columns count blocks, 0 to %d here (cols = %" PRId64
                    ", block_cols = %d): pass the element column divided by block_cols",
                    i, col, pattern.col_blocks - 1, pattern.cols, pattern.block_cols);
            }
            if (i == begin) {
                continue;
            }
            const int32_t before = pattern.by_row.minors[i - 1];
            if (col == before) {
                invalid_argument(
                    "pattern_desc.col_indices[%d] is %d, repeated in block row %d; a block is stored once: "
                    "add its values up and keep one",
                    i, col, row);
            }
            if (col < before) {
                invalid_argument("pattern_desc.col_indices[%d] is %d after %d in block row %d; columns must ascend "
                                 "within a block row: sort them, and the blocks of values with them",
                                 i, col, before, row);
            }
        }
    }
}

// The column-wise twin: blocks of a column in the order of their rows.
BlockLists transpose(const BlockLists &by_row, int32_t col_blocks) {
    const size_t blocks = by_row.minors.size();
    BlockLists by_col;
    by_col.offsets.assign(size_t(col_blocks) + 1, 0);
    by_col.minors.resize(blocks);
    by_col.index.resize(blocks);
    for (const int32_t col : by_row.minors) {
        ++by_col.offsets[col + 1];
    }
    std::partial_sum(by_col.offsets.begin(), by_col.offsets.end(), by_col.offsets.begin());
    std::vector<int32_t> next(by_col.offsets.begin(), by_col.offsets.end() - 1); // where each column's next block goes
    for (int32_t row = 0; row < by_row.majors(); ++row) {
        for (int32_t i = by_row.offsets[row]; i < by_row.offsets[row + 1]; ++i) {
            const int32_t at = next[by_row.minors[i]]++;
            by_col.minors[at] = row;
            by_col.index[at] = i;
        }
    }
    return by_col;
}

} // namespace

const char *format_name(bsparse_format format) {
    return format == BSPARSE_BSR ? "bsr" : format == BSPARSE_SEMI24 ? "semi24" : "bsr24";
}

Pattern make_pattern(const bsparse_pattern_desc &desc) {
    check_format(desc.format);
    if (desc.reserved != 0) {
        unsupported("pattern_desc.reserved is %d; this version knows no meaning for it: set it to 0", desc.reserved);
    }
    Pattern pattern{};
    pattern.format = desc.format;
    pattern.block_rows = desc.block_rows;
    pattern.block_cols = desc.block_cols;
    pattern.rows = desc.rows;
    pattern.cols = desc.cols;
    pattern.blocks = desc.blocks;
    pattern.row_blocks = count_blocks(desc.rows, desc.block_rows, "rows", "block_rows");
    pattern.col_blocks = count_blocks(desc.cols, desc.block_cols, "cols", "block_cols");
    if (pattern.is_24()) {
        check_sizes_24(desc);
    }
    check_block_count(pattern);
    if (desc.row_offsets == nullptr) {
        invalid_argument("pattern_desc.row_offsets is NULL: pass an int32 array of %d entries", pattern.row_blocks + 1);
    }
    if (desc.col_indices == nullptr && desc.blocks > 0) {
        invalid_argument("pattern_desc.col_indices is NULL, but pattern_desc.blocks is %" PRId64
                         ": pass an int32 array of that many entries",
                         desc.blocks);
    }

    pattern.by_row.offsets.assign(desc.row_offsets, desc.row_offsets + pattern.row_blocks + 1);
    check_offsets(pattern.by_row.offsets, pattern.blocks);
    if (pattern.blocks > 0) {
        pattern.by_row.minors.assign(desc.col_indices, desc.col_indices + pattern.blocks);
    }
    check_columns(pattern);
    pattern.by_row.index.resize(pattern.by_row.minors.size());
    std::iota(pattern.by_row.index.begin(), pattern.by_row.index.end(), 0);
    pattern.by_col = transpose(pattern.by_row, pattern.col_blocks);
    return pattern;
}

} // namespace bsparse
