#include "decode_plan.h"

#include <algorithm>

namespace bsparse::gpu {
namespace {

// A multiprocessor streams so much in about the time that the second kernel takes, which adds parts up.
constexpr int64_t kPartBytes = int64_t{256} << 10;

struct Item {
    int32_t block_row, first, last, part;
    int32_t blocks() const { return last - first; }
};

} // namespace

DecodeLists make_decode_lists(const Pattern &pattern, int multiprocessors, int64_t element_bytes) {
    const BlockLists &rows = pattern.by_row;
    const int64_t block_bytes = int64_t{pattern.block_rows} * pattern.block_cols * element_bytes;
    const int64_t tile_bytes = block_bytes / pattern.block_rows * std::min(pattern.block_rows, kDecodeMostRows);
    const int64_t part_bytes = std::max(kPartBytes, pattern.blocks * block_bytes / multiprocessors);

    DecodeLists lists{};
    std::vector<Item> items;
    std::vector<int32_t> joins;
    for (int32_t row = 0; row < pattern.row_blocks; ++row) {
        const int32_t first = rows.offsets[row];
        const int64_t blocks = rows.offsets[row + 1] - first;
        const int64_t bytes = blocks * tile_bytes;
        if (bytes <= 2 * part_bytes) {
            items.push_back({row, first, rows.offsets[row + 1], -1});
            continue;
        }
        const auto parts = static_cast<int32_t>(std::min(blocks, (bytes + part_bytes - 1) / part_bytes));
        joins.insert(joins.end(), {row, lists.parts, parts, 0});
        ++lists.joins;
        for (int32_t part = 0; part < parts; ++part) {
            items.push_back({row, static_cast<int32_t>(first + blocks * part / parts),
                             static_cast<int32_t>(first + blocks * (part + 1) / parts), lists.parts++});
        }
    }
    std::stable_sort(items.begin(), items.end(), [](const Item &x, const Item &y) { return x.blocks() > y.blocks(); });

    lists.items = static_cast<int32_t>(items.size());
    lists.numbers.reserve(lists.first_column() + pattern.blocks);
    for (const Item &item : items) {
        lists.numbers.insert(lists.numbers.end(), {item.block_row, item.first, item.last, item.part});
    }
    lists.numbers.insert(lists.numbers.end(), joins.begin(), joins.end());
    lists.numbers.insert(lists.numbers.end(), rows.minors.begin(), rows.minors.end());
    return lists;
}

int decode_tile_rows(int32_t block_rows, int64_t tokens, int32_t items, int enough) {
    int rows = tokens > 32 ? kDecodeMostRows : 32;
    while (rows > 16 && (block_rows % rows != 0 || int64_t{items} * (block_rows / rows) < enough)) {
        rows /= 2;
    }
    return rows;
}

} // namespace bsparse::gpu
