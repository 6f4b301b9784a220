// The work of spmm for few tokens: every stored block is in one item, parts of a row are added in order, rows are
// whole.
#include "kernels/bsr_spmm/decode_plan.h"

#include <cstdint>
#include <set>
#include <vector>

#include "check.h"
#include "patterns.h"

namespace {

using namespace bsparse::gpu;
using bsparse::Pattern;

constexpr int kMultiprocessors = 132; // of an H200

struct Item {
    int32_t block_row, first, last, part;
};

void check_lists(const Pattern &pattern) {
    const DecodeLists lists = make_decode_lists(pattern, kMultiprocessors, 2);
    const auto *items = reinterpret_cast<const Item *>(lists.numbers.data());
    std::vector<std::vector<int32_t>> ends(pattern.row_blocks); // of the items of each block row, by their first block
    std::vector<const Item *> parts(lists.parts);
    std::set<int32_t> blocks;
    for (const Item *item = items; item < items + lists.items; ++item) {
        CHECK(item == items || item[-1].last - item[-1].first >= item->last - item->first); // longest first
        CHECK(item->first >= pattern.by_row.offsets[item->block_row]);
        CHECK(item->last <= pattern.by_row.offsets[item->block_row + 1]);
        for (int32_t block = item->first; block < item->last; ++block) {
            CHECK(blocks.insert(block).second);
        }
        if (item->part >= 0) {
            parts[item->part] = item;
        }
        ends[item->block_row].push_back(item->part);
    }
    CHECK(static_cast<int64_t>(blocks.size()) == pattern.blocks);

    const int32_t *joins = lists.numbers.data() + lists.first_join();
    for (int32_t join = 0; join < lists.joins; ++join, joins += DecodeLists::kJoinNumbers) {
        int32_t first = pattern.by_row.offsets[joins[0]];
        for (int32_t part = joins[1]; part < joins[1] + joins[2]; ++part) {
            CHECK(parts[part]->block_row == joins[0] && parts[part]->first == first);
            first = parts[part]->last;
        }
        CHECK(static_cast<int32_t>(ends[joins[0]].size()) == joins[2]);
        ends[joins[0]] = {-1};
    }
    for (const auto &row : ends) { // the others are one item each, empty ones too: they write zeros
        CHECK(row == std::vector<int32_t>{-1});
    }
    for (int64_t block = 0; block < pattern.blocks; ++block) {
        CHECK(lists.numbers[lists.first_column() + block] == pattern.by_row.minors[block]);
    }
}

} // namespace

int main() {
    check_lists(random_pattern(8192, 8192, 64, 64, 0.25));
    check_lists(random_pattern(1000, 5000, 128, 64, 0.1)); // ragged
    check_lists(random_pattern(64, 17600, 16, 16, 1)); // long rows
    check_lists(pattern_of(4096, 65536, 64, 64, [](int32_t row, int32_t) { return row % 3 == 0; })); // parts, and empty
    CHECK(decode_tile_rows(128, 64, 64, 99) == 64 && decode_tile_rows(128, 64, 64, 200) == 32);
    CHECK(decode_tile_rows(128, 32, 64, 99) == 32 && decode_tile_rows(128, 1, 16, 99) == 16);
    CHECK(decode_tile_rows(16, 64, 1000, 1) == 16 && decode_tile_rows(96, 64, 1000, 1) == 32);
}
