// The work lists of the decode kernels, and the rows of their tiles. Host code only.
#pragma once

#include <cstdint>
#include <vector>

#include "../../src/pattern.h"

namespace bsparse::gpu {

// The numbers, in this order: items, joins, the block column of each stored block.
struct DecodeLists {
    static constexpr int kItemNumbers = 4; // block row, first block, last block (exclusive), part or -1
    static constexpr int kJoinNumbers = 4; // block row, its first part, its parts, 0

    std::vector<int32_t> numbers;
    int32_t items; // longest first; every block row is one, or several of which each is a part
    int32_t joins; // block rows that are in parts
    int32_t parts; // of all of them: the sums of each go through the workspace and are added in the order of columns

    int64_t first_join() const { return int64_t{items} * kItemNumbers; }
    int64_t first_column() const { return first_join() + int64_t{joins} * kJoinNumbers; }
};

DecodeLists make_decode_lists(const Pattern &pattern, int multiprocessors, int64_t element_bytes);

constexpr int kDecodeMostRows = 64; // of a tile

// Rows of a tile, one thread block's part of an item: the most of 64, 32 and 16 that divide block_rows (a multiple of
// 16) and still give `enough` tiles. 64 save loads of X, for more than 32 tokens; else two thread blocks of 32 rows on
// a multiprocessor read faster than one of 64.
int decode_tile_rows(int32_t block_rows, int64_t tokens, int32_t items, int enough);

} // namespace bsparse::gpu
