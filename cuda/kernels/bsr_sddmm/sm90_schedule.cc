#include "sm90_schedule.h"

#include <algorithm>
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
constexpr double kUnionBoxClocks = 216; // as much in two boxes
// The same without clusters, where it is more: a box, and what comes on top for a strip, which is read from device
// memory once for the few tiles that have it, in equal shares for each of them.
constexpr double kAloneBoxClocks = 187, kAloneStripClocks = 610;
// 8 KiB from device memory, by all at once. Whole tiles run side by side through the same tokens and find in L2 what
// others have read. Parts of tiles do not, but for what stays there: all operands of kCachedBytes, hardly anything of
// kUncachedBytes.
constexpr double kUnsharedBoxClocks = 443;
constexpr double kCachedBytes = 24 << 20, kUncachedBytes = 128 << 20;
constexpr double kStartClocks = 1000; // of a segment
constexpr double kStoreClocks = 250;  // of 64 x 64 results
constexpr double kSumsClocks = 300;   // of as many sums, to the workspace or back
// What a cut must save, a narrower tile, and one strip for both warpgroups: they move more data than the model counts.
constexpr double kWorthCutting = 0.985, kWorthNarrowing = 0.97, kWorthStrips = 0.97;

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

// What part of the operands comes from device memory each time.
double uncached_part(const Pattern &pattern, int64_t tokens) {
    const double bytes = 2.0 * static_cast<double>(tokens) * static_cast<double>(pattern.rows + pattern.cols);
    return std::clamp((bytes - kCachedBytes) / (kUncachedBytes - kCachedBytes), 0.0, 1.0);
}

// sharing: how many tiles have this one's strips.
Cost cost_of(const Tile &tile, const TileKind &kind, int sharing, double steps, double uncached) {
    const double box_clocks = kind.layout == Layout::kUnion ? kUnionBoxClocks : kBoxClocks;
    const double part_clocks = kBoxClocks + uncached * (kUnsharedBoxClocks - kBoxClocks);
    const double strips = kind.shape.strips;
    Cost cost{0, 0, 0};
    for (const Half &half : tile.half) {
        const double boxes = strips + half.chunks();
        double whole = box_clocks * boxes;
        if (kind.halves == 1) {
            whole = std::max(whole, kAloneBoxClocks * boxes + uncached * kAloneStripClocks * strips / sharing);
        }
        const double part =
            part_clocks * (strips / kind.halves + half.chunks()); // the other half loads the other strip
        cost.steps = std::max(cost.steps, steps * whole);
        cost.part_steps = std::max(cost.part_steps, steps * std::max(whole, part));
        cost.products = std::max(cost.products, 1.0 * half.of_strip(0) + half.of_strip(1));
    }
    return cost;
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
    const double uncached = uncached_part(pattern, tokens);
    const double steps = static_cast<double>(tokens) / kEdge;
    std::vector<Cost> costs;
    double sum = 0;
    for (const Tile &tile : tiles) {
        costs.push_back(cost_of(tile, kind, sharing[tile.row[0]], steps, uncached));
        sum += costs.back().whole();
    }
    average = sum / clusters;
    std::vector<int32_t> order(tiles.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return costs[a].whole() > costs[b].whole(); });
    Assignment whole =
        Assigner(tiles, costs, kind.halves, clusters, std::numeric_limits<double>::infinity()).assign(order);
    if (tokens < kSplitTokens) {
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

// With tiles as wide as there are enough of.
Schedule make_in_layout(const Pattern &pattern, const TileKind &kind, int multiprocessors, int64_t tokens) {
    const std::vector<StripPair> pairs = pair_strips(pattern, kind.layout);
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
    const bool paired = pattern.block_rows / kEdge % 2 == 0;
    Schedule best;
    best.longest = std::numeric_limits<double>::infinity();
    for (int halves = kMostHalves; halves > 0; --halves) {
        const Layout layout = paired ? Layout::kPair : halves == 2 ? Layout::kUnion : Layout::kStrip;
        Schedule made = make_in_layout(pattern, {layout, shape_of(layout), halves}, multiprocessors, tokens);
        if (made.longest < (layout == Layout::kStrip ? kWorthStrips : 1) * best.longest) {
            best = std::move(made);
        }
    }
    return best;
}

} // namespace bsparse::gpu::sddmm_sm90
