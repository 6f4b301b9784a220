#include "match.h"

#include <algorithm>
#include <cstddef>

namespace bsparse::gpu {
namespace {

constexpr size_t kGroup = 256; // majors that are compared with one another

struct Candidate {
    int32_t shared;        // minors that both have
    int32_t first, second; // within the group
};

// Minors that two ascending lists share.
int32_t count_shared(const BlockLists &lists, int32_t a, int32_t b) {
    int32_t shared = 0;
    int32_t i = lists.offsets[a], j = lists.offsets[b];
    while (i < lists.offsets[a + 1] && j < lists.offsets[b + 1]) {
        const int32_t x = lists.minors[i], y = lists.minors[j];
        shared += x == y;
        i += x <= y;
        j += y <= x;
    }
    return shared;
}

void match_group(const BlockLists &lists, const int32_t *majors, int32_t count,
                 std::vector<std::array<int32_t, 2>> &pairs) {
    std::vector<Candidate> candidates;
    for (int32_t i = 0; i < count; ++i) {
        for (int32_t j = i + 1; j < count; ++j) {
            candidates.push_back({count_shared(lists, majors[i], majors[j]), i, j});
        }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate &a, const Candidate &b) { return a.shared > b.shared; });
    std::vector<bool> taken(count);
    for (const Candidate &candidate : candidates) {
        if (!taken[candidate.first] && !taken[candidate.second]) {
            taken[candidate.first] = taken[candidate.second] = true;
            pairs.push_back({majors[candidate.first], majors[candidate.second]});
        }
    }
    for (int32_t i = 0; i < count; ++i) {
        if (!taken[i]) {
            pairs.push_back({majors[i], -1});
        }
    }
}

} // namespace

std::vector<std::array<int32_t, 2>> match_majors(const BlockLists &lists, const std::vector<int32_t> &majors) {
    std::vector<std::array<int32_t, 2>> pairs;
    for (size_t first = 0; first < majors.size(); first += kGroup) {
        const size_t count = std::min(kGroup, majors.size() - first);
        match_group(lists, majors.data() + first, static_cast<int32_t>(count), pairs);
    }
    return pairs;
}

} // namespace bsparse::gpu
