#include "sm90_schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "sm90_tiles.h"

namespace bsparse::gpu::sddmm_sm90 {
namespace {

// A model of an H200, in clocks; fitted to measured times of 8192^3 at densities 0.5, 0.25 and 0.1 in all layouts. What
// limits is what a multiprocessor receives, whether it or the other one of its cluster has asked for it.
constexpr double kBoxClocks = 207;      // 8 KiB into shared memory: 64 tokens of a strip or a chunk
constexpr double kFreeBoxClocks = 187; // the same in tiles of any two strips
constexpr double kFreeAloneBoxClocks = 191; // without clusters
// Of whole pairs of strips without clusters, where it is more: a box, and what comes on top for a strip, which is read
// from device memory once for the few tiles that have it, in equal shares for each of them.
constexpr double kAloneBoxClocks = 187, kAloneStripClocks = 610;
// 8 KiB from device memory, by all at once. Whole tiles run side by side through the same tokens and find in L2 what
// others have read. Parts of tiles do not, but for what stays there: all operands of kCachedBytes, hardly anything of
// kUncachedBytes.
constexpr double kUnsharedBoxClocks = 443;
constexpr double kCachedBytes = 24 << 20, kUncachedBytes = 128 << 20;
constexpr double kStartClocks = 1000; // of a segment
constexpr double kStoreClocks = 250;  // of 64 x 64 results
constexpr double kSumsClocks = 300;   // of as many sums, to the workspace or back
// What a cut must save, and a narrower tile: they move more data than the model counts.
constexpr double kWorthCutting = 0.985, kWorthNarrowing = 0.97;
// Tiles of any two strips keep pace where the operands have more bytes: the first so many of a cluster. Of so many
// clusters the slowest is not waited for.
constexpr double kPacedBytes = 96 << 20;
constexpr int kMostPaced = 256;
constexpr int kFewStragglers = 16;

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

double operand_bytes(const Pattern &pattern, int64_t tokens) {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(pattern.rows + pattern.cols);
}

bool keeps_pace(const Pattern &pattern, Layout layout, int64_t tokens) {
    return layout == Layout::kFree && operand_bytes(pattern, tokens) > kPacedBytes;
}

// What part of the operands comes from device memory each time.
double uncached_part(const Pattern &pattern, Layout layout, int64_t tokens) {
    if (layout == Layout::kFree) {
        return keeps_pace(pattern, layout, tokens) ? 1 : 0;
    }
    return std::clamp((operand_bytes(pattern, tokens) - kCachedBytes) / (kUncachedBytes - kCachedBytes), 0.0, 1.0);
}

// Of one step, to load so many boxes, of them so many strips' in a half. sharing: how many tiles have the same strips.
double step_clocks(const TileKind &kind, int boxes, int strips, int sharing, double uncached) {
    if (kind.layout == Layout::kFree) {
        return (kind.halves == 1 ? kFreeAloneBoxClocks : kFreeBoxClocks) * boxes;
    }
    const double together = kBoxClocks * boxes;
    return kind.halves == 1
               ? std::max(together, kAloneBoxClocks * boxes + uncached * kAloneStripClocks * strips / sharing)
               : together;
}

Cost cost_of(const Tile &tile, const TileKind &kind, int sharing, double steps, double uncached) {
    const double part_clocks = kBoxClocks + uncached * (kUnsharedBoxClocks - kBoxClocks);
    const int strips = tile.strips();
    Cost cost{0, 0, 0};
    for (const Half &half : tile.half) {
        const double whole = step_clocks(kind, strips + half.chunks(), strips, sharing, uncached);
        // The other half loads the other strip.
        const double part = part_clocks * (1.0 * strips / kind.halves + half.chunks());
        cost.steps = std::max(cost.steps, steps * whole);
        cost.part_steps = std::max(cost.part_steps, steps * std::max(whole, part));
        cost.products = std::max(cost.products, 1.0 * half.of_strip(0) + half.of_strip(1));
    }
    return cost;
}

// Numbers the tiles by columns of the matrix, each as wide as some tiles of a strip. Those that run side by side then
// have few strips and few chunks between them, about as many as a square has.
std::vector<int> columns_of(const Pattern &pattern, const std::vector<Tile> &tiles,
                            const std::map<int32_t, int> &sharing, int clusters) {
    const double chunks = static_cast<double>(pattern.cols) / kEdge; // in all columns
    std::map<int32_t, int> met;
    std::vector<int> columns;
    for (const Tile &tile : tiles) {
        const int64_t all = sharing.at(tile.row[0]), number = met[tile.row[0]]++;
        const double wide = std::sqrt(1.0 * clusters * tile.strips() * static_cast<double>(all) / chunks); // tiles
        const int64_t count = std::max(std::lround(static_cast<double>(all) / wide), 1L);
        columns.push_back(static_cast<int>(number * count / all));
    }
    return columns;
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
Assignment assign_tiles(const Pattern &pattern, const std::vector<Tile> &tiles, const TileKind &kind, int clusters,
                        int64_t tokens, double &average) {
    std::map<int32_t, int> sharing; // by the first strip
    for (const Tile &tile : tiles) {
        ++sharing[tile.row[0]];
    }
    const double uncached = uncached_part(pattern, kind.layout, tokens);
    const double steps = static_cast<double>(tokens) / kTokens;
    std::vector<Cost> costs;
    double sum = 0;
    for (const Tile &tile : tiles) {
        costs.push_back(cost_of(tile, kind, sharing[tile.row[0]], steps, uncached));
        sum += costs.back().whole();
    }
    average = sum / clusters;
    std::vector<int32_t> order(tiles.size());
    std::iota(order.begin(), order.end(), 0);
    const std::vector<int> column = columns_of(pattern, tiles, sharing, clusters);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return column[a] < column[b]; });
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return costs[a].whole() > costs[b].whole(); });
    Assignment whole =
        Assigner(tiles, costs, kind.halves, clusters, std::numeric_limits<double>::infinity()).assign(order);
    const bool slower_cut = kind.layout == Layout::kFree && kind.halves == kMostHalves; // measured; it is not modelled
    if (tokens < kSplitTokens || slower_cut) {
        return whole;
    }
    Assignment best;
    best.longest = kWorthCutting * whole.longest;
    for (double level = average; level < best.longest; level *= 1.02) {
        Assignment tried = Assigner(tiles, costs, kind.halves, clusters, level).assign(order);
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

std::vector<int32_t> quorum_of(const Schedule &schedule) {
    std::vector<int32_t> quorum;
    for (int cluster = 0; cluster < schedule.clusters(); ++cluster) {
        const auto begin = schedule.segments.begin() + schedule.first_segment[cluster];
        const auto end = schedule.segments.begin() + schedule.first_segment[cluster + 1];
        const auto cut = std::find_if(begin, end, [](const Segment &segment) { return segment.parts > 1; });
        const size_t whole = std::min<size_t>(cut - begin, kMostPaced);
        quorum.resize(std::max(quorum.size(), whole));
        std::for_each(quorum.begin(), quorum.begin() + whole, [](int32_t &clusters) { ++clusters; });
    }
    for (int32_t &clusters : quorum) {
        clusters -= clusters / kFewStragglers;
    }
    return quorum;
}

// With tiles as wide as there are enough of.
Schedule make_in_layout(const Pattern &pattern, const TileKind &kind, int multiprocessors, int64_t tokens) {
    const std::vector<StripPair> pairs = pair_strips(pattern, kind);
    const int clusters = std::max(multiprocessors / kind.halves, 1);
    Schedule best;
    best.longest = std::numeric_limits<double>::infinity();
    for (int width = kWidest; width > 0; --width) {
        Schedule tried;
        std::vector<Tile> tiles;
        for (const StripPair &pair : pairs) {
            add_tiles(pair, kind, width, tiles, tried.chunks);
        }
        tried.layout = kind.layout;
        tried.halves = kind.halves;
        take(tried, assign_tiles(pattern, tiles, kind, clusters, tokens, tried.average));
        if (tried.longest < kWorthNarrowing * best.longest) {
            best = std::move(tried);
        }
    }
    return best;
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
    const Layout layout = pattern.block_rows / kEdge % 2 == 0 ? Layout::kPair : Layout::kFree;
    Schedule best;
    best.longest = std::numeric_limits<double>::infinity();
    for (int halves = kMostHalves; halves > 0; --halves) {
        Schedule made = make_in_layout(pattern, {layout, halves}, multiprocessors, tokens);
        if (made.longest < best.longest) {
            best = std::move(made);
        }
    }
    if (keeps_pace(pattern, layout, tokens)) {
        best.quorum = quorum_of(best);
    }
    return best;
}

} // namespace bsparse::gpu::sddmm_sm90
