#include "match.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace bsparse::gpu {
namespace {

constexpr size_t kGroup = 256; // majors that are compared with one another

struct Candidate {
    int32_t shared;        // minors that both have
    int32_t first, second; // within the group
};

// A bit for each minor of each major.
class Bits {
public:
    Bits(const BlockLists &lists, const int32_t *majors, int32_t count) {
        int32_t most = -1;
        for (int32_t i = 0; i < count; ++i) {
            if (lists.offsets[majors[i]] < lists.offsets[majors[i] + 1]) {
                most = std::max(most, lists.minors[lists.offsets[majors[i] + 1] - 1]); // ascending
            }
        }
        words_ = static_cast<size_t>(most + 64) / 64;
        bits_.resize(count * words_);
        for (int32_t i = 0; i < count; ++i) {
            for (int32_t at = lists.offsets[majors[i]]; at < lists.offsets[majors[i] + 1]; ++at) {
                bits_[i * words_ + lists.minors[at] / 64] |= uint64_t{1} << lists.minors[at] % 64;
            }
        }
    }

    int32_t shared(int32_t i, int32_t j) const {
        int32_t count = 0;
        for (size_t word = 0; word < words_; ++word) {
            count += __builtin_popcountll(bits_[i * words_ + word] & bits_[j * words_ + word]);
        }
        return count;
    }

private:
    size_t words_;
    std::vector<uint64_t> bits_; // [count, words_]
};

void match_group(const BlockLists &lists, const int32_t *majors, int32_t count,
                 std::vector<std::array<int32_t, 2>> &pairs) {
    const Bits bits(lists, majors, count);
    std::vector<Candidate> candidates;
    for (int32_t i = 0; i < count; ++i) {
        for (int32_t j = i + 1; j < count; ++j) {
            candidates.push_back({bits.shared(i, j), i, j});
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

std::vector<std::array<int32_t, 2>> match_majors(const BlockLists &lists) {
    std::vector<int32_t> majors(static_cast<size_t>(lists.majors()));
    std::iota(majors.begin(), majors.end(), 0);
    return match_majors(lists, majors);
}

} // namespace bsparse::gpu
