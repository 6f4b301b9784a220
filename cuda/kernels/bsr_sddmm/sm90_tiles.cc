#include "sm90_tiles.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "../common/match.h"

namespace bsparse::gpu::sddmm_sm90 {
namespace {

int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

// 64 rows of a block row, from row offset of its blocks on.
struct Strip {
    int32_t major, offset;
};
constexpr int32_t kAbsent = -1;

using TwoStrips = std::array<Strip, 2>;

bool has_blocks(const BlockLists &lists, int32_t major) { return lists.offsets[major] < lists.offsets[major + 1]; }

// Which strips are a pair.
std::vector<TwoStrips> match_strips(const Pattern &pattern) {
    const BlockLists &lists = pattern.by_row;
    const int32_t strips = pattern.block_rows / kEdge;
    std::vector<TwoStrips> pairs;
    std::vector<int32_t> left; // block rows whose last strip has no partner there
    for (int32_t major = 0; major < pattern.row_blocks; ++major) {
        if (!has_blocks(lists, major)) {
            continue;
        }
        for (int32_t strip = 0; strip + 1 < strips; strip += 2) {
            pairs.push_back({Strip{major, strip * kEdge}, Strip{major, (strip + 1) * kEdge}});
        }
        if (strips % 2 == 1) {
            left.push_back(major);
        }
    }
    const int32_t last = (strips - 1) * kEdge;
    for (const std::array<int32_t, 2> &matched : match_majors(lists, left)) {
        pairs.push_back({Strip{matched[0], last}, Strip{matched[1], last}});
    }
    return pairs;
}

int32_t place_of(const Pattern &pattern, int64_t block, int64_t row, int64_t col) {
    return static_cast<int32_t>(((block * pattern.block_rows + row) * pattern.block_cols + col) / kEdge);
}

// First row of a strip, of which an absent one's lies beyond the matrix, where loads give zeros.
int32_t first_row(const Pattern &pattern, const Strip &strip) {
    const int64_t major = strip.major == kAbsent ? pattern.row_blocks : strip.major;
    return static_cast<int32_t>(major * pattern.block_rows + strip.offset);
}

StripPair list_chunks(const Pattern &pattern, const TwoStrips &strips) {
    const BlockLists &lists = pattern.by_row;
    constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();
    int32_t at[2], end[2];
    for (int s = 0; s < 2; ++s) {
        const int32_t major = strips[s].major;
        at[s] = major == kAbsent ? 0 : lists.offsets[major];
        end[s] = major == kAbsent ? 0 : lists.offsets[major + 1];
    }
    StripPair pair{{first_row(pattern, strips[0]), first_row(pattern, strips[1])}, {}, 0, 0, 0};
    std::vector<Chunk> both, only_1;
    while (at[0] < end[0] || at[1] < end[1]) {
        const int32_t minor_0 = at[0] < end[0] ? lists.minors[at[0]] : kEnd;
        const int32_t minor_1 = at[1] < end[1] ? lists.minors[at[1]] : kEnd;
        const int32_t minor = std::min(minor_0, minor_1);
        std::vector<Chunk> &to = minor_0 == minor_1 ? both : minor_0 < minor_1 ? pair.chunks : only_1;
        for (int32_t col = 0; col < pattern.block_cols; col += kEdge) {
            Chunk chunk{minor * pattern.block_cols + col, {0, 0}};
            for (int s = 0; s < 2; ++s) {
                const bool stored = (s == 0 ? minor_0 : minor_1) == minor;
                chunk.place[s] = stored ? place_of(pattern, lists.index[at[s]], strips[s].offset, col) : 0;
            }
            to.push_back(chunk);
        }
        at[0] += minor_0 == minor;
        at[1] += minor_1 == minor;
    }
    pair.only_0 = static_cast<int>(pair.chunks.size());
    pair.both = static_cast<int>(both.size());
    pair.only_1 = static_cast<int>(only_1.size());
    pair.chunks.insert(pair.chunks.end(), both.begin(), both.end());
    pair.chunks.insert(pair.chunks.end(), only_1.begin(), only_1.end());
    return pair;
}

// A strip for both warpgroups: either could have every chunk, but each gets half of them.
StripPair list_alone(const Pattern &pattern, const Strip &strip) {
    StripPair pair = list_chunks(pattern, {strip, strip});
    pair.only_1 = pair.both / 2;
    pair.only_0 = pair.both - pair.only_1;
    pair.both = 0;
    return pair;
}

int tiles_of(const StripPair &pair, const TileKind &kind, int width) {
    const int64_t per_strip = divide_up(std::max(pair.only_0, pair.only_1) + pair.both, width);
    const int most_chunks = shape_of(kind.layout).boxes - pair.strips();
    const int64_t together = divide_up(static_cast<int64_t>(pair.chunks.size()), most_chunks);
    return static_cast<int>(divide_up(std::max(per_strip, together), kind.halves));
}

// That its tiles load for each step.
int64_t boxes_of(const StripPair &pair, const TileKind &kind) {
    return static_cast<int64_t>(pair.chunks.size()) +
           int64_t{tiles_of(pair, kind, kWidest)} * kind.halves * pair.strips();
}

// How many of the numbers below end are of one half, if they are dealt one after the other.
int dealt(int end, int half, int halves) { return (end + halves - 1 - half) / halves; }

} // namespace

std::vector<StripPair> pair_strips(const Pattern &pattern, const TileKind &kind) {
    std::vector<StripPair> pairs;
    for (const TwoStrips &strips : match_strips(pattern)) {
        StripPair pair = list_chunks(pattern, strips);
        if (kind.layout == Layout::kFree) {
            std::vector<StripPair> alone;
            int64_t boxes = 0;
            for (const Strip &strip : strips) {
                if (strip.major != kAbsent) {
                    alone.push_back(list_alone(pattern, strip));
                    boxes += boxes_of(alone.back(), kind);
                }
            }
            if (boxes < boxes_of(pair, kind)) {
                pairs.insert(pairs.end(), alone.begin(), alone.end());
                continue;
            }
        }
        pairs.push_back(std::move(pair));
    }
    return pairs;
}

void add_tiles(const StripPair &pair, const TileKind &kind, int width, std::vector<Tile> &to,
               std::vector<Chunk> &chunks) {
    const int tiles = tiles_of(pair, kind, width);
    const int halves = tiles * kind.halves;
    const int bounds[4] = {0, pair.only_0, pair.only_0 + pair.both, static_cast<int>(pair.chunks.size())};
    int next[3] = {bounds[0], bounds[1], bounds[2]}; // of only_0, both, only_1
    for (int tile = 0; tile < tiles; ++tile) {
        Tile made{{pair.row[0], pair.row[1]}, {}};
        for (int h = 0; h < kind.halves; ++h) {
            const int number = tile * kind.halves + h;
            int count[3];
            const int32_t first = static_cast<int32_t>(chunks.size());
            for (int i = 0; i < 3; ++i) {
                count[i] = dealt(bounds[i + 1], number, halves) - dealt(bounds[i], number, halves);
                const auto from = pair.chunks.begin() + next[i];
                chunks.insert(chunks.end(), from, from + count[i]);
                next[i] += count[i];
            }
            made.half[h] = {first, count[0], count[1], count[2]};
        }
        to.push_back(made);
    }
}

} // namespace bsparse::gpu::sddmm_sm90
