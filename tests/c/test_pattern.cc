// Patterns from inside: the block lists that a validated description turns into. (Bad ones: test_errors.cc.)
#include "pattern.h"

#include <cstddef>
#include <vector>

#include "check.h"
#include "error.h"
#include "patterns.h"

namespace {

using bsparse::Pattern;
using Ints = std::vector<int32_t>;

// [x . x]
// [. . .]
// [x x .]
void test_both_directions() {
    const Pattern pattern = pattern_from(6, 12, 2, 4, {0, 2, 2, 4}, {0, 2, 0, 1});
    CHECK(pattern.row_blocks == 3 && pattern.col_blocks == 3);
    CHECK((pattern.by_row.offsets == Ints{0, 2, 2, 4}));
    CHECK((pattern.by_row.minors == Ints{0, 2, 0, 1}));
    CHECK((pattern.by_row.index == Ints{0, 1, 2, 3}));
    CHECK((pattern.by_col.offsets == Ints{0, 2, 3, 4}));
    CHECK((pattern.by_col.minors == Ints{0, 2, 2, 0}));
    CHECK((pattern.by_col.index == Ints{0, 2, 3, 1}));
}

void test_empty() {
    const Pattern pattern = pattern_from(6, 12, 2, 4, {0, 0, 0, 0}, {});
    CHECK(pattern.blocks == 0 && pattern.by_row.minors.empty() && pattern.by_col.minors.empty());
    CHECK((pattern.by_col.offsets == Ints{0, 0, 0, 0}));
}

void test_ragged_sizes_round_up() {
    const Pattern pattern = pattern_from(5, 9, 2, 4, {0, 0, 0, 1}, {2});
    CHECK(pattern.row_blocks == 3 && pattern.col_blocks == 3);
    CHECK((pattern.by_col.offsets == Ints{0, 0, 0, 1}) && (pattern.by_col.minors == Ints{2}));
}

void test_block_larger_than_the_matrix() {
    const Pattern pattern = pattern_from(1, 1, 1 << 20, 1 << 20, {0, 1}, {0});
    CHECK(pattern.row_blocks == 1 && pattern.col_blocks == 1);
}

} // namespace

int main() {
    test_both_directions();
    test_empty();
    test_ragged_sizes_round_up();
    test_block_larger_than_the_matrix();
    return 0;
}
