// The work of spmm and spmm_t on Hopper: every piece of every stored block is multiplied once, into its own outputs,
// and every unit is one worker's, for any number of tokens.
#include "kernels/bsr_spmm/sm90_schedule.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels/bsr_spmm/sm90_merge_schedule.h"
#include "patterns.h"

namespace {

using namespace bsparse::gpu::spmm_sm90;
using bsparse::Pattern;
using Place = std::pair<int64_t, int64_t>;

constexpr int kMultiprocessors = 132; // of an H200

// Where in the matrix an element of s_values lies.
Place place_of(const Pattern &pattern, int64_t value) {
    const int64_t block = value / (pattern.block_rows * pattern.block_cols);
    const int64_t inside = value % (pattern.block_rows * pattern.block_cols);
    const auto &offsets = pattern.by_row.offsets;
    const auto row = std::upper_bound(offsets.begin(), offsets.end(), block) - offsets.begin() - 1;
    return {row * pattern.block_rows + inside / pattern.block_cols,
            int64_t{pattern.by_row.minors[block]} * pattern.block_cols + inside % pattern.block_cols};
}

// Of blocks transposed: where in s_values their elements come from.
int64_t before_transposing(const Pattern &pattern, int64_t value) {
    const int64_t size = int64_t{pattern.block_rows} * pattern.block_cols;
    const int64_t inside = value % size;
    return value - inside + inside % pattern.block_rows * pattern.block_cols + inside / pattern.block_rows;
}

// Elements of s_values that begin a piece of [rows, cols] with something inside the matrix.
std::set<int64_t> pieces_of(const Pattern &pattern, int32_t rows, int32_t cols) {
    std::set<int64_t> pieces;
    for (int64_t line = 0; line < pattern.blocks * pattern.block_rows; line += rows) {
        for (int32_t col = 0; col < pattern.block_cols; col += cols) {
            const int64_t value = line * pattern.block_cols + col;
            const Place place = place_of(pattern, value);
            if (place.first < pattern.rows && place.second < pattern.cols) {
                pieces.insert(value);
            }
        }
    }
    return pieces;
}

// Whether strip 0 alone takes part first, then both, then strip 1 alone, as a tile says; masks: bit of each strip.
void check_order(const std::vector<int> &masks, const int32_t (&only)[2]) {
    const auto count = static_cast<int32_t>(masks.size());
    for (int32_t i = 0; i < count; ++i) {
        CHECK((masks[i] & 1) == (i < count - only[1] ? 1 : 0));
        CHECK((masks[i] & 2) == (i >= only[0] ? 2 : 0));
    }
}

void check_pieces(const Pattern &pattern, bool transposed, int32_t line = kLineOf16Bits) {
    CHECK(has_schedule(pattern, transposed, line));
    const Schedule schedule = make_schedule(pattern, transposed, kMultiprocessors, line);
    CHECK(schedule.depth <= line);
    const auto *tiles = reinterpret_cast<const Tile *>(schedule.words.data());
    const auto *steps = reinterpret_cast<const Step *>(schedule.words.data() + schedule.steps_offset);
    std::set<int64_t> missing =
        transposed ? pieces_of(pattern, schedule.depth, kStrip) : pieces_of(pattern, kStrip, schedule.depth);
    std::set<int32_t> outputs;
    for (const Tile *tile = tiles; tile < tiles + schedule.tiles; ++tile) {
        CHECK(tile->steps > 0);
        std::vector<int> masks;
        for (int32_t i = tile->first; i < tile->first + tile->steps; ++i) {
            masks.push_back((steps[i].row[0] >= 0 ? 1 : 0) | (steps[i].row[1] >= 0 ? 2 : 0));
        }
        check_order(masks, tile->only);
        for (int strip = 0; strip < 2; ++strip) {
            const bool inside = tile->output[strip] < (transposed ? pattern.cols : pattern.rows);
            CHECK(!inside || outputs.insert(tile->output[strip]).second);
            for (int32_t i = tile->first; i < tile->first + tile->steps; ++i) {
                const Step &step = steps[i];
                CHECK(!schedule.paired || (step.row[0] < 0) == (step.row[1] < 0));
                if (step.row[strip] < 0 || !inside) {
                    continue;
                }
                const int32_t col = strip == 0 ? step.cols & 0xFFFF : step.cols >> 16;
                int64_t value = int64_t{step.row[strip]} * value_width(pattern, transposed, line) + col;
                if (transposed && line == kLineOf32Bits) {
                    value = before_transposing(pattern, value);
                }
                const Place place{tile->output[strip], step.input};
                CHECK(place_of(pattern, value) == (transposed ? Place{place.second, place.first} : place));
                CHECK(missing.erase(value) == 1);
            }
        }
    }
    CHECK(missing.empty());
    CHECK(static_cast<int64_t>(outputs.size()) == ((transposed ? pattern.cols : pattern.rows) + kStrip - 1) / kStrip);
}

void test_every_piece_once() {
    for (const bool transposed : {false, true}) {
        check_pieces(random_pattern(1024, 1024, 128, 64, 0.25), transposed);
        check_pieces(random_pattern(1000, 700, 64, 64, 0.3), transposed); // ragged, an odd block row
        check_pieces(random_pattern(700, 900, 192, 128, 0.5), transposed);
        check_pieces(random_pattern(20000, 128, 64, 64, 0.4), transposed); // more block rows than are matched at once
        check_pieces(random_pattern(900, 900, 128, 128, 0), transposed);   // almost no blocks
    }
    check_pieces(random_pattern(900, 900, 128, 32, 0.2), false);
    check_pieces(random_pattern(900, 900, 64, 16, 0.2), false);
    check_pieces(random_pattern(900, 900, 48, 128, 0.2), true);
}

void test_every_piece_of_f32_once() {
    for (const int32_t width : {16, 32, 64, 96, 128}) {
        check_pieces(random_pattern(1000, 900, 64, width, 0.3), false, kLineOf32Bits);
        check_pieces(random_pattern(900, 900, 128, width, 0.3), false, kLineOf32Bits);
    }
    for (const int32_t height : {16, 32, 64, 128, 192}) {
        check_pieces(random_pattern(900, 1000, height, 64, 0.3), true, kLineOf32Bits);
        check_pieces(random_pattern(900, 900, height, 128, 0.3), true, kLineOf32Bits);
    }
    CHECK(!has_schedule(random_pattern(512, 512, 64, 48, 0.5), false, kLineOf32Bits)); // neither 32 deep nor on end
}

// Walks the lists as the kernel does: the units of so many groups, each once.
void check_units(const Schedule &schedule, const UnitLists &lists, int groups) {
    const Coverage &coverage = lists.coverage;
    std::set<std::pair<int32_t, int>> units;
    for (int base = 0; base < groups; base += coverage.period) {
        for (int worker = 0; worker < lists.workers; ++worker) {
            for (int round = 0; round < lists.rounds; ++round) {
                const int32_t word = schedule.words[lists.offset + round * lists.workers + worker];
                const int group = word & ((1 << kGroupBits) - 1);
                if (word == kNoUnit || base + (group & -coverage.supergroup) >= groups) {
                    break;
                }
                if (base + group < groups) {
                    CHECK(units.insert({word >> kGroupBits, base + group}).second);
                }
            }
        }
    }
    CHECK(static_cast<int64_t>(units.size()) == int64_t{groups} * schedule.tiles);
}

void test_every_unit_once() {
    const Schedule schedule = make_schedule(random_pattern(2048, 2048, 128, 128, 0.2), false, kMultiprocessors);
    for (const UnitLists &lists : schedule.lists) {
        for (const int groups : {1, 2, 3, 7, lists.coverage.period, lists.coverage.period + 1, 100}) {
            check_units(schedule, lists, groups);
        }
    }
}

// The longest worker's cost over that of an equal share.
double unevenness(const Schedule &schedule, int64_t tokens) {
    const UnitLists &lists = schedule.lists[schedule.choose(tokens)];
    const auto *tiles = reinterpret_cast<const Tile *>(schedule.words.data());
    int64_t all = 0;
    for (const Tile *tile = tiles; tile < tiles + schedule.tiles; ++tile) {
        all += tile->steps * lists.coverage.step_cost + lists.coverage.unit_cost;
    }
    const int64_t groups = tokens / (lists.coverage.tokens * lists.coverage.cluster);
    CHECK(groups <= lists.coverage.period);
    return static_cast<double>(lists.spans[groups]) * lists.workers / static_cast<double>(all * groups);
}

void test_workers_share_the_load() {
    const Schedule schedule = make_schedule(random_pattern(8192, 8192, 128, 64, 0.25), false, kMultiprocessors);
    CHECK(schedule.lists[schedule.choose(8192)].coverage.cluster == 2);
    CHECK(unevenness(schedule, 8192) < 1.04);
}

void test_workers_share_few_uneven_rows() {
    CHECK(unevenness(make_schedule(random_pattern(4096, 4096, 128, 128, 0.1), false, kMultiprocessors), 4096) < 1.06);
    CHECK(unevenness(make_schedule(random_pattern(3072, 768, 128, 64, 0.25), false, kMultiprocessors), 4096) < 1.1);
}

std::set<int> tokens_of_tiles(const Schedule &schedule) {
    std::set<int> found;
    for (const UnitLists &lists : schedule.lists) {
        found.insert(lists.coverage.tokens);
    }
    return found;
}

void test_which_tiles_exist() {
    const Pattern large = random_pattern(32768, 512, 128, 64, 0.25), small = random_pattern(768, 768, 64, 64, 0.25);
    CHECK(tokens_of_tiles(make_schedule(large, false, kMultiprocessors)) == std::set<int>({128, 256}));
    CHECK(tokens_of_tiles(make_schedule(small, false, kMultiprocessors)) == std::set<int>({64, 128, 256}));
    CHECK(tokens_of_tiles(make_schedule(small, false, kMultiprocessors, kLineOf32Bits)) == std::set<int>({128, 256}));
    const Pattern narrow = random_pattern(768, 768, 64, 16, 0.25);
    CHECK(tokens_of_tiles(make_schedule(narrow, false, kMultiprocessors)) == std::set<int>({256}));
}

void test_few_tokens_get_small_tiles() {
    const Schedule schedule = make_schedule(random_pattern(768, 768, 64, 64, 0.25), false, kMultiprocessors);
    CHECK(schedule.lists[schedule.choose(512)].coverage.tokens == 64);
    CHECK(schedule.lists[schedule.choose(1920)].coverage.tokens == 128);
}

void test_merged_blocks_once() {
    for (const int64_t rows : {32, 1000, 10000}) {
        const Pattern pattern = random_pattern(rows, 700, 32, 32, 0.2);
        CHECK(has_merge_schedule(pattern, false) && !has_merge_schedule(pattern, true));
        const Schedule schedule = make_merge_schedule(pattern, kMultiprocessors);
        const auto *tiles = reinterpret_cast<const MergeTile *>(schedule.words.data());
        const auto *steps = reinterpret_cast<const MergeStep *>(schedule.words.data() + schedule.steps_offset);
        std::set<int64_t> missing = pieces_of(pattern, 32, 32);
        for (const MergeTile *tile = tiles; tile < tiles + schedule.tiles; ++tile) {
            std::vector<int> masks;
            for (int32_t i = tile->first; i < tile->first + tile->steps; ++i) {
                masks.push_back((steps[i].input_and_mask | steps[i].input_and_mask >> 2) & 3);
            }
            check_order(masks, tile->only);
            for (int32_t i = tile->first; i < tile->first + tile->steps; ++i) {
                const int32_t mask = steps[i].input_and_mask & 31;
                const int32_t input = steps[i].input_and_mask - mask;
                const bool narrow = (mask & kMergeNarrow) != 0;
                for (int half = 0; half < 2; ++half) {
                    for (int row = 0; row < 4; ++row) {
                        const int64_t value = int64_t{steps[i].row[half][row]} * 64;
                        if ((mask & 15) == 0 || value == pattern.blocks * 32 * 32) {
                            continue;
                        }
                        CHECK((mask >> (2 * half + row / 2) & 1) != 0);
                        CHECK(place_of(pattern, value) == Place(tile->output[row], input + (narrow ? 0 : half * 32)));
                        CHECK(missing.erase(value) == 1);
                    }
                }
            }
        }
        CHECK(missing.empty());
    }
}

void test_what_it_takes() {
    CHECK(!has_schedule(random_pattern(512, 512, 32, 64, 0.5), false)); // too few outputs for a strip
    CHECK(!has_schedule(random_pattern(512, 512, 64, 96, 0.5), false)); // neither 64 deep nor on end
    CHECK(!has_schedule(random_pattern(512, 512, 64, 8, 0.5), false));
    CHECK(has_schedule(random_pattern(512, 512, 32, 64, 0.5), true));
}

} // namespace

int main() {
    test_every_piece_once();
    test_every_piece_of_f32_once();
    test_every_unit_once();
    test_workers_share_the_load();
    test_workers_share_few_uneven_rows();
    test_which_tiles_exist();
    test_few_tokens_get_small_tiles();
    test_merged_blocks_once();
    test_what_it_takes();
    return 0;
}
