// The work lists of sddmm on Hopper: every part of every stored block is somebody's, once, and nobody has much more to
// do than the others.
#include "kernels/bsr_sddmm/sm90_schedule.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "check.h"
#include "patterns.h"

namespace {

using namespace bsparse::gpu::sddmm_sm90;
using bsparse::Pattern;
using Ints = std::vector<int32_t>;

constexpr int kMultiprocessors = 132; // of an H200

// First row and column of every [64, 64] part of s_values, by its place; padding included.
std::map<int32_t, std::pair<int32_t, int32_t>> parts_of(const Pattern &pattern) {
    std::map<int32_t, std::pair<int32_t, int32_t>> parts;
    for (int32_t major = 0; major < pattern.row_blocks; ++major) {
        for (int32_t block = pattern.by_row.offsets[major]; block < pattern.by_row.offsets[major + 1]; ++block) {
            for (int32_t row = 0; row < pattern.block_rows; row += kEdge) {
                for (int32_t col = 0; col < pattern.block_cols; col += kEdge) {
                    const int32_t place = ((block * pattern.block_rows + row) * pattern.block_cols + col) / kEdge;
                    parts[place] = {major * pattern.block_rows + row,
                                    pattern.by_row.minors[block] * pattern.block_cols + col};
                }
            }
        }
    }
    return parts;
}

// Parts of one tile by their number.
using Meeting = std::map<int32_t, Segment>;

void check_limits(const Tile &tile, Layout layout) {
    const Shape shape = shape_of(layout);
    for (const Half &half : tile.half) {
        CHECK(tile.strips() == 2 || half.both == 0);
        CHECK(half.only_0 >= 0 && half.both >= 0 && half.only_1 >= 0);
        CHECK(tile.strips() + half.chunks() <= shape.boxes);
        CHECK(half.of_strip(0) <= kWidest && half.of_strip(1) <= kWidest);
    }
}

// Takes what a whole tile computes out of the parts that are still missing.
void take_tile(const Schedule &schedule, const Tile &tile, std::map<int32_t, std::pair<int32_t, int32_t>> &missing) {
    for (const Half &half : tile.half) {
        for (int i = 0; i < half.chunks(); ++i) {
            const Chunk &chunk = schedule.chunks[half.first_chunk + i];
            const bool strips[2] = {i < half.only_0 + half.both, i >= half.only_0};
            for (int strip = 0; strip < 2; ++strip) {
                if (strips[strip]) {
                    const auto part = missing.find(chunk.place[strip]);
                    CHECK(part != missing.end());
                    CHECK(part->second == std::make_pair(tile.row[strip], chunk.column));
                    missing.erase(part);
                }
            }
        }
    }
}

// The parts of a tile follow one another, leave no step out at kSplitTokens, and have room for their sums.
void check_meeting(const Schedule &schedule, const Meeting &parts, std::vector<bool> &used) {
    int32_t end = 0;
    for (const auto &[number, part] : parts) {
        CHECK(part.parts == static_cast<int32_t>(parts.size()) && part.begin == end);
        CHECK(part.end - part.begin >= kLeastPart);
        end = part.end;
        const int64_t units = int64_t{schedule.halves} * 2 * part.width;
        for (const Half &half : part.tile.half) {
            CHECK(half.of_strip(0) <= part.width && half.of_strip(1) <= part.width);
        }
        for (int64_t unit = part.first_unit + number * units; unit < part.first_unit + (number + 1) * units; ++unit) {
            CHECK(unit < schedule.units && !used[unit]);
            used[unit] = true;
        }
    }
    CHECK(end == kFractions);
}

// Not more clusters are waited for than have so many whole tiles before anything else.
void check_quorum(const Schedule &schedule) {
    Ints clusters(schedule.quorum.size());
    for (int cluster = 0; cluster < schedule.clusters(); ++cluster) {
        size_t whole = 0;
        for (int32_t i = schedule.first_segment[cluster]; i < schedule.first_segment[cluster + 1]; ++i, ++whole) {
            if (whole == clusters.size() || schedule.segments[i].parts > 1) {
                break;
            }
            ++clusters[whole];
        }
    }
    for (size_t tile = 0; tile < clusters.size(); ++tile) {
        CHECK(schedule.quorum[tile] > 0 && schedule.quorum[tile] <= clusters[tile]);
    }
}

void check_schedule(const Pattern &pattern, int64_t tokens) {
    const Schedule schedule = make_schedule(pattern, kMultiprocessors, tokens);
    CHECK(schedule.clusters() >= 1 && schedule.clusters() * schedule.halves <= kMultiprocessors);
    CHECK(schedule.first_segment.back() == static_cast<int32_t>(schedule.segments.size()));
    CHECK(tokens >= kSplitTokens || schedule.meetings == 0);
    for (int cluster = 0; cluster < schedule.clusters(); ++cluster) { // the kernel reads a first segment unasked
        CHECK(schedule.first_segment[cluster] < schedule.first_segment[cluster + 1]);
    }
    check_quorum(schedule);
    auto missing = parts_of(pattern);
    std::vector<Meeting> meetings(schedule.meetings);
    for (const Segment &segment : schedule.segments) {
        check_limits(segment.tile, schedule.layout);
        if (segment.parts == 1) {
            CHECK(segment.begin == 0 && segment.end == kFractions);
        } else {
            CHECK(meetings[segment.meeting].emplace(segment.part, segment).second);
        }
        if (segment.begin == 0) {
            take_tile(schedule, segment.tile, missing);
        }
    }
    CHECK(missing.empty());
    std::vector<bool> used(schedule.units);
    for (const Meeting &meeting : meetings) {
        check_meeting(schedule, meeting, used);
    }
}

void test_every_part_is_computed_once() {
    for (const double density : {0.02, 0.3, 1.0}) {
        for (const int64_t tokens : {int64_t{64}, kSplitTokens, int64_t{8192}}) {
            check_schedule(random_pattern(2048, 2048, 64, 64, density), tokens);
            check_schedule(random_pattern(2048, 1024, 128, 64, density), tokens);
            check_schedule(random_pattern(1000, 1000, 192, 128, density), tokens); // ragged, odd strips
            check_schedule(random_pattern(65, 65, 256, 64, density), tokens);      // whole strips of padding
        }
    }
}

void test_work_is_even() {
    const int32_t heights[] = {64, 128};
    for (const int32_t height : heights) {
        for (const double density : {0.1, 0.25, 0.5}) {
            const Pattern pattern = random_pattern(8192, 8192, height, 64, density);
            const Schedule schedule = make_schedule(pattern, kMultiprocessors, 8192);
            CHECK(schedule.longest < 1.15 * schedule.average);
        }
    }
}

void test_few_tiles_are_cut_for_all() {
    const Pattern pattern = random_pattern(768, 768, 64, 64, 0.2);
    const Schedule schedule = make_schedule(pattern, kMultiprocessors, 8192);
    CHECK(schedule.clusters() * schedule.halves == kMultiprocessors);
}

void test_strips_that_share_nothing_are_apart() {
    constexpr int32_t kRows = 64, kChunks = 10;
    const Pattern pattern = pattern_of(kRows * kEdge, kRows * kChunks * kEdge, kEdge, kEdge,
                                       [](int32_t row, int32_t col) { return col / kChunks == row; });
    for (const int64_t tokens : {int64_t{64}, int64_t{8192}}) {
        for (const Segment &segment : make_schedule(pattern, kMultiprocessors, tokens).segments) {
            CHECK(segment.tile.strips() == 1);
        }
        check_schedule(pattern, tokens);
    }
}

void test_tiles_keep_pace_where_operands_exceed_the_cache() {
    CHECK(!make_schedule(random_pattern(8192, 8192, 64, 64, 0.1), kMultiprocessors, 8192).quorum.empty());
    CHECK(make_schedule(random_pattern(2048, 2048, 64, 64, 0.1), kMultiprocessors, 2048).quorum.empty());
    check_schedule(random_pattern(8192, 8192, 64, 64, 0.1), 8192);
}

void test_what_it_takes() {
    CHECK(takes(random_pattern(640, 640, 64, 320, 0.5)));
    CHECK(!takes(random_pattern(640, 640, 32, 64, 0.5)));
    CHECK(!takes(random_pattern(640, 640, 64, 96, 0.5)));
}

} // namespace

int main() {
    test_every_part_is_computed_once();
    test_work_is_even();
    test_few_tiles_are_cut_for_all();
    test_strips_that_share_nothing_are_apart();
    test_tiles_keep_pace_where_operands_exceed_the_cache();
    test_what_it_takes();
    return 0;
}
