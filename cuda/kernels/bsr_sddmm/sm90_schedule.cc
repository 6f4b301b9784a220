#include "sm90_schedule.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "../common/match.h"

namespace bsparse::gpu::sddmm_sm90 {
namespace {

// A model of an H200, in clocks; fitted to measured times of 8192^3 at densities 0.5, 0.25 and 0.1. What limits is
// either shared memory, which is written once and read by each wgmma, or what L2 delivers to a multiprocessor.
constexpr double kSharedClocks = 79;  // 8 KiB into or out of shared memory: 64 tokens of a strip or a chunk
constexpr double kBoxClocks = 205;    // 8 KiB from L2
// 8 KiB from device memory, by all at once. Whole tiles run side by side through the same tokens and find in L2 what
// others have read. Parts of tiles do not, but for what stays there: all operands of kCachedBytes, hardly anything of
// kUncachedBytes.
constexpr double kUnsharedBoxClocks = 443;
constexpr double kCachedBytes = 24 << 20, kUncachedBytes = 128 << 20;
constexpr double kStartClocks = 1000; // of a segment
constexpr double kStoreClocks = 250;  // of 64 x 64 results
constexpr double kSumsClocks = 300;   // of as many sums, to the workspace or back
// What a cut must save, and a narrower tile or one without a second half: they move more data than the model counts.
constexpr double kWorthCutting = 0.985, kWorthNarrowing = 0.97;

int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

// tiles ----------------------------------------------------------------------------------------

// 64 rows of a block row, from row offset of its blocks on.
struct Strip {
    int32_t major, offset;
};
constexpr int32_t kAbsent = -1;

struct StripPair {
    Strip strip[2]; // major kAbsent: none
};

bool has_blocks(const BlockLists &lists, int32_t major) { return lists.offsets[major] < lists.offsets[major + 1]; }

std::vector<StripPair> pair_strips(const Pattern &pattern) {
    const BlockLists &lists = pattern.by_row;
    const int32_t strips = pattern.block_rows / kEdge;
    std::vector<StripPair> pairs;
    std::vector<int32_t> left; // block rows whose last strip has no partner there
    for (int32_t major = 0; major < pattern.row_blocks; ++major) {
        if (!has_blocks(lists, major)) {
            continue;
        }
        for (int32_t strip = 0; strip + 1 < strips; strip += 2) {
            pairs.push_back({{{major, strip * kEdge}, {major, (strip + 1) * kEdge}}});
        }
        if (strips % 2 == 1) {
            left.push_back(major);
        }
    }
    const int32_t last = (strips - 1) * kEdge;
    for (const std::array<int32_t, 2> &matched : match_majors(lists, left)) {
        pairs.push_back({{{matched[0], last}, {matched[1], last}}});
    }
    return pairs;
}

// The chunks of two strips, by who needs them.
struct ChunkList {
    std::vector<Chunk> chunks; // only strip 0, both, only strip 1
    int only_0 = 0, both = 0, only_1 = 0;
};

int32_t place_of(const Pattern &pattern, int64_t block, int64_t row, int64_t col) {
    return static_cast<int32_t>(((block * pattern.block_rows + row) * pattern.block_cols + col) / kEdge);
}

ChunkList list_chunks(const Pattern &pattern, const StripPair &pair) {
    const BlockLists &lists = pattern.by_row;
    constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();
    int32_t at[2], end[2];
    for (int s = 0; s < 2; ++s) {
        const int32_t major = pair.strip[s].major;
        at[s] = major == kAbsent ? 0 : lists.offsets[major];
        end[s] = major == kAbsent ? 0 : lists.offsets[major + 1];
    }
    ChunkList list;
    std::vector<Chunk> both, only_1;
    while (at[0] < end[0] || at[1] < end[1]) {
        const int32_t minor_0 = at[0] < end[0] ? lists.minors[at[0]] : kEnd;
        const int32_t minor_1 = at[1] < end[1] ? lists.minors[at[1]] : kEnd;
        const int32_t minor = std::min(minor_0, minor_1);
        std::vector<Chunk> &to = minor_0 == minor_1 ? both : minor_0 < minor_1 ? list.chunks : only_1;
        for (int32_t col = 0; col < pattern.block_cols; col += kEdge) {
            Chunk chunk{minor * pattern.block_cols + col, {0, 0}};
            for (int s = 0; s < 2; ++s) {
                const bool stored = (s == 0 ? minor_0 : minor_1) == minor;
                chunk.place[s] = stored ? place_of(pattern, lists.index[at[s]], pair.strip[s].offset, col) : 0;
            }
            to.push_back(chunk);
        }
        at[0] += minor_0 == minor;
        at[1] += minor_1 == minor;
    }
    list.only_0 = static_cast<int>(list.chunks.size());
    list.both = static_cast<int>(both.size());
    list.only_1 = static_cast<int>(only_1.size());
    list.chunks.insert(list.chunks.end(), both.begin(), both.end());
    list.chunks.insert(list.chunks.end(), only_1.begin(), only_1.end());
    return list;
}

// First row of a strip, of which an absent one's lies beyond the matrix, where loads give zeros.
int32_t first_row(const Pattern &pattern, const Strip &strip) {
    const int64_t major = strip.major == kAbsent ? pattern.row_blocks : strip.major;
    return static_cast<int32_t>(major * pattern.block_rows + strip.offset);
}

struct TileSize {
    int halves;
    int width;  // most chunks of a warpgroup
    int chunks; // most of a half
};

// Deals the chunks to as few tiles as hold them with at most width for each warpgroup: one after the other to each
// half, so that both the halves' chunks and those of each strip in them differ by at most one.
void add_tiles(const Pattern &pattern, const StripPair &pair, const ChunkList &list, const TileSize &size,
               std::vector<Tile> &to, std::vector<Chunk> &chunks) {
    const int64_t per_strip = divide_up(std::max(list.only_0, list.only_1) + list.both, size.width);
    const int64_t together = divide_up(static_cast<int64_t>(list.chunks.size()), size.chunks);
    const int tiles = static_cast<int>(divide_up(std::max(per_strip, together), size.halves));
    const int halves = tiles * size.halves;
    const int end_both = list.only_0 + list.both;
    for (int tile = 0; tile < tiles; ++tile) {
        Tile made{{first_row(pattern, pair.strip[0]), first_row(pattern, pair.strip[1])}, {}};
        for (int h = 0; h < size.halves; ++h) {
            Half &half = made.half[h];
            half = {static_cast<int32_t>(chunks.size()), 0, 0, 0};
            for (int i = tile * size.halves + h; i < static_cast<int>(list.chunks.size()); i += halves) {
                chunks.push_back(list.chunks[i]);
                ++(i < list.only_0 ? half.only_0 : i < end_both ? half.both : half.only_1);
            }
        }
        to.push_back(made);
    }
}

// who does what -----------------------------------------------------------------------------

// What a tile costs by the model, in clocks of the slower half.
struct Cost {
    double steps;      // all of them
    double part_steps; // the same when the tile is cut
    double products;   // [64, 64] results

    double whole() const { return kStartClocks + steps + kStoreClocks * products; }
    double part_overhead() const { return whole() - steps + kSumsClocks * products; }
    double part(int32_t fraction) const { return part_overhead() + part_steps * fraction / kFractions; }
    double meeting(int parts) const { return kSumsClocks * products * parts; }
};

Cost cost_of(const Tile &tile, int halves, double steps, double part_clocks) {
    Cost cost{0, 0, 0};
    for (const Half &half : tile.half) {
        const double products = half.of_strip(0) + half.of_strip(1);
        const double written = 2 + half.chunks(), read = 2 + products; // a warpgroup reads its strip, and its chunks
        const double loaded = 2.0 / halves + half.chunks();            // the other half loads the other strip
        const double shared_clocks = kSharedClocks * (written + read);
        cost.steps = std::max(cost.steps, steps * std::max(shared_clocks, kBoxClocks * loaded));
        cost.part_steps = std::max(cost.part_steps, steps * std::max(shared_clocks, part_clocks * loaded));
        cost.products = std::max(cost.products, products);
    }
    return cost;
}

// What kBoxClocks is to a part of a tile.
double part_box_clocks(const Pattern &pattern, int64_t tokens) {
    const double bytes = 2.0 * static_cast<double>(tokens) * static_cast<double>(pattern.rows + pattern.cols);
    const double uncached = std::clamp((bytes - kCachedBytes) / (kUncachedBytes - kCachedBytes), 0.0, 1.0);
    return kBoxClocks + uncached * (kUnsharedBoxClocks - kBoxClocks);
}

struct Assignment {
    std::vector<std::vector<Segment>> clusters;
    double longest = 0;
    int meetings = 0;
    int64_t units = 0;
};

// Longest tile first, each to the cluster that has least to do. A tile that would bring it over the level is cut: its
// parts fill clusters up to the level.
class Assigner {
public:
    Assigner(const std::vector<Tile> &tiles, const std::vector<Cost> &costs, int halves, int clusters, double level)
        : tiles_(tiles), costs_(costs), halves_(halves), level_(level) {
        made_.clusters.resize(clusters);
        for (int cluster = 0; cluster < clusters; ++cluster) {
            least_.push({0, cluster});
        }
    }

    Assignment assign(const std::vector<int32_t> &order) {
        for (const int32_t tile : order) {
            const Cost &cost = costs_[tile];
            if (least_.top().first + cost.whole() <= level_) {
                give({tiles_[tile], 0, kFractions, 1, 0, 0, 0, 0}, cost.whole());
            } else {
                cut(tile, cost);
            }
        }
        return std::move(made_);
    }

private:
    using Load = std::pair<double, int>; // clocks, cluster

    // To the cluster that has least to do.
    void give(const Segment &segment, double clocks) {
        const Load load = least_.top();
        least_.pop();
        made_.clusters[load.second].push_back(segment);
        made_.longest = std::max(made_.longest, load.first + clocks);
        least_.push({load.first + clocks, load.second});
    }

    // How much of what is left of a tile the next cluster takes: what brings it to the level, but all where that leaves
    // too little on either side.
    int32_t part_of(const Cost &cost, int32_t left) const {
        const double room = (level_ - least_.top().first - cost.part_overhead()) / cost.part_steps * kFractions;
        if (room < kLeastPart || room >= left || left < 2 * kLeastPart) {
            return left;
        }
        return std::min(static_cast<int32_t>(room), left - kLeastPart);
    }

    void cut(int32_t tile, const Cost &cost) {
        std::vector<std::pair<int, size_t>> parts; // cluster, position
        for (int32_t begin = 0; begin < kFractions;) {
            const int32_t part = part_of(cost, kFractions - begin);
            if (part == kFractions) {
                give({tiles_[tile], 0, kFractions, 1, 0, 0, 0, 0}, cost.whole());
                return;
            }
            const int cluster = least_.top().second;
            parts.push_back({cluster, made_.clusters[cluster].size()});
            give({tiles_[tile], begin, begin + part, 0, 0, 0, 0, 0}, cost.part(part));
            begin += part;
        }
        // The part that ends last adds up all: some time after the cluster that has most to do.
        made_.longest = std::max(made_.longest, level_ + cost.meeting(static_cast<int>(parts.size())));
        const int32_t width = width_of(tiles_[tile]);
        for (size_t i = 0; i < parts.size(); ++i) {
            Segment &segment = made_.clusters[parts[i].first][parts[i].second];
            segment.parts = static_cast<int32_t>(parts.size());
            segment.part = static_cast<int32_t>(i);
            segment.width = width;
            segment.first_unit = static_cast<int32_t>(made_.units);
            segment.meeting = made_.meetings;
        }
        made_.units += static_cast<int64_t>(parts.size()) * halves_ * 2 * width;
        ++made_.meetings;
    }

    static int32_t width_of(const Tile &tile) {
        int32_t width = 0;
        for (const Half &half : tile.half) {
            width = std::max({width, half.of_strip(0), half.of_strip(1)});
        }
        return width;
    }

    const std::vector<Tile> &tiles_;
    const std::vector<Cost> &costs_;
    int halves_;
    double level_;
    Assignment made_;
    std::priority_queue<Load, std::vector<Load>, std::greater<Load>> least_;
};

// The best assignment of the tiles: whole, or from kSplitTokens on also cut to fill clusters up to one of some levels
// between the average and what whole tiles reach.
Assignment assign_tiles(const Pattern &pattern, const std::vector<Tile> &tiles, int halves, int clusters,
                        int64_t tokens, double &average) {
    const double part_clocks = part_box_clocks(pattern, tokens);
    std::vector<Cost> costs;
    double sum = 0;
    for (const Tile &tile : tiles) {
        costs.push_back(cost_of(tile, halves, static_cast<double>(tokens) / kEdge, part_clocks));
        sum += costs.back().whole();
    }
    average = sum / clusters;
    std::vector<int32_t> order(tiles.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return costs[a].whole() > costs[b].whole(); });
    Assignment whole = Assigner(tiles, costs, halves, clusters, std::numeric_limits<double>::infinity()).assign(order);
    if (tokens < kSplitTokens) {
        return whole;
    }
    Assignment best;
    best.longest = kWorthCutting * whole.longest;
    for (double level = average; level < best.longest; level *= 1.02) {
        Assignment tried = Assigner(tiles, costs, halves, clusters, level).assign(order);
        if (tried.longest < best.longest) {
            best = std::move(tried);
        }
    }
    return best.clusters.empty() ? whole : best;
}

void take(Schedule &schedule, const Assignment &assignment) {
    schedule.first_segment = {0};
    for (const std::vector<Segment> &segments : assignment.clusters) {
        if (!segments.empty()) {
            schedule.segments.insert(schedule.segments.end(), segments.begin(), segments.end());
            schedule.first_segment.push_back(static_cast<int32_t>(schedule.segments.size()));
        }
    }
    schedule.meetings = assignment.meetings;
    schedule.units = assignment.units;
    schedule.longest = assignment.longest;
}

} // namespace

bool takes(const Pattern &pattern) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    const int64_t padded_rows = int64_t{pattern.row_blocks + 1} * pattern.block_rows; // an absent strip lies behind
    const int64_t padded_cols = int64_t{pattern.col_blocks} * pattern.block_cols;
    const int64_t places = pattern.blocks * pattern.block_rows * pattern.block_cols / kEdge;
    return pattern.block_rows % kEdge == 0 && pattern.block_cols % kEdge == 0 && padded_rows <= kMost &&
           padded_cols <= kMost && places <= kMost;
}

Schedule make_schedule(const Pattern &pattern, int multiprocessors, int64_t tokens) {
    const std::vector<StripPair> pairs = pair_strips(pattern);
    std::vector<ChunkList> lists;
    for (const StripPair &pair : pairs) {
        lists.push_back(list_chunks(pattern, pair));
    }
    const bool paired = is_paired(pattern);
    const int most_chunks = (paired ? kPairShape : kUnionShape).chunks;
    Schedule best;
    best.longest = std::numeric_limits<double>::infinity();
    for (int halves = kMostHalves; halves >= (paired ? 1 : kMostHalves); --halves) { // alone unions load too much
        const int clusters = std::max(multiprocessors / halves, 1);
        for (int width = kWidest; width > 0; --width) { // narrow tiles, where wide ones are too few
            Schedule tried;
            std::vector<Tile> tiles;
            for (size_t i = 0; i < pairs.size(); ++i) {
                add_tiles(pattern, pairs[i], lists[i], {halves, width, most_chunks}, tiles, tried.chunks);
            }
            tried.halves = halves;
            take(tried, assign_tiles(pattern, tiles, halves, clusters, tokens, tried.average));
            if (tried.longest < kWorthNarrowing * best.longest) {
                best = std::move(tried);
            }
        }
    }
    return best;
}

} // namespace bsparse::gpu::sddmm_sm90
