#include "sm90_order.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace bsparse::gpu::spmm_sm90 {
namespace {

int64_t longest(const std::vector<int64_t> &loads) { return *std::max_element(loads.begin(), loads.end()); }

} // namespace

int Schedule::choose(int64_t tokens) const {
    int best = 0;
    double best_span = 0;
    for (int i = 0; i < static_cast<int>(lists.size()); ++i) {
        const Coverage &coverage = lists[i].coverage;
        const int64_t group_tokens = coverage.tokens * coverage.cluster;
        const int64_t groups = (tokens + group_tokens - 1) / group_tokens;
        const std::vector<int64_t> &spans = lists[i].spans;
        const double whole = static_cast<double>(groups / coverage.period) * static_cast<double>(spans.back());
        const double span = lists[i].slowness * (whole + static_cast<double>(spans[groups % coverage.period]));
        if (i == 0 || span < best_span) {
            best = i;
            best_span = span;
        }
    }
    return best;
}

// Few long units in a supergroup leave some workers with one of the last supergroup's, alone. So there are also lists
// for larger ones. Their inputs are in the cache for longer, and asked for in greater haste.
void Schedule::add_lists(Coverage coverage, const std::vector<int64_t> &costs, int64_t token_bytes,
                         int multiprocessors) {
    constexpr int64_t kEnoughUnits = 4; // in a supergroup, for a worker
    constexpr int64_t kFewInputBytes = int64_t{9} << 20, kMostInputBytes = int64_t{36} << 20; // of a supergroup
    constexpr double kLoss = 0.045; // beyond few, for twice as many
    const int workers = std::max(1, multiprocessors / coverage.cluster);
    const int64_t group_bytes = coverage.tokens * coverage.cluster * token_bytes;
    const auto tiles = static_cast<int64_t>(costs.size());
    double slowness = 1;
    add_list(coverage, costs, workers, slowness);
    while (coverage.supergroup < coverage.period && coverage.supergroup * tiles < kEnoughUnits * workers) {
        coverage.supergroup *= 2;
        const int64_t bytes = coverage.supergroup * group_bytes;
        if (bytes > kMostInputBytes) {
            return;
        }
        slowness += bytes > kFewInputBytes ? kLoss : 0;
        add_list(coverage, costs, workers, slowness);
    }
}

// Units in order, supergroup after supergroup and longest first, each to the worker with the least to do. A worker's
// first units are thus the same however many groups follow.
void Schedule::add_list(const Coverage &coverage, const std::vector<int64_t> &costs, int workers, double slowness) {
    std::vector<int32_t> order(costs.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return costs[a] > costs[b]; });

    using Load = std::pair<int64_t, int>; // of a worker, and its number
    std::priority_queue<Load, std::vector<Load>, std::greater<Load>> queue;
    for (int worker = 0; worker < workers; ++worker) {
        queue.push({0, worker});
    }
    std::vector<std::vector<int32_t>> units(workers);
    std::vector<int64_t> spans{0};
    std::vector<int64_t> before(workers); // loads without the supergroup at hand
    for (int first = 0; first < coverage.period; first += coverage.supergroup) {
        std::vector<std::vector<int64_t>> loads(coverage.supergroup, before); // with its first groups
        for (const int32_t tile : order) {
            for (int group = 0; group < coverage.supergroup; ++group) {
                const auto [load, worker] = queue.top();
                queue.pop();
                queue.push({load + costs[tile], worker});
                units[worker].push_back(tile << kGroupBits | (first + group));
                for (int more = group; more < coverage.supergroup; ++more) {
                    loads[more][worker] += costs[tile];
                }
            }
        }
        for (const std::vector<int64_t> &some : loads) {
            spans.push_back(longest(some));
        }
        before = loads.back();
    }

    size_t rounds = 0;
    for (const std::vector<int32_t> &list : units) {
        rounds = std::max(rounds, list.size());
    }
    const size_t offset = words.size();
    words.resize(offset + rounds * workers, kNoUnit);
    for (int worker = 0; worker < workers; ++worker) {
        for (size_t round = 0; round < units[worker].size(); ++round) {
            words[offset + round * workers + worker] = units[worker][round];
        }
    }
    lists.push_back({coverage, offset, workers, static_cast<int>(rounds), slowness, std::move(spans)});
}

} // namespace bsparse::gpu::spmm_sm90
