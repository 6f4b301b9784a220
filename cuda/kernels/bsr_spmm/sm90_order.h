// What the schedules of the sm_90 spmm kernels share: which strips go together, and which worker does what when.
//
// A unit is a tile of outputs and a group of tokens. Everything is made once per plan and valid for any number of
// tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bsparse::gpu::spmm_sm90 {

// Pairing block rows takes time for each block of the grid, stored or not: not of grids that take seconds.
constexpr int64_t kMostGrid = int64_t{1} << 31;

// Ways to cover the tokens: thread blocks of so many tokens, in clusters of neighbouring groups that share the blocks
// of S. Costs of a line of inputs (128 bytes) of a tile and of a unit's start and end, in 1/64 of the time of the
// former the first way.
struct Coverage {
    int tokens, cluster;
    int period;     // groups of tokens (tokens * cluster each) that the unit lists hold, to be repeated
    int supergroup; // groups whose units are ordered together, longest first: a power of two
    int step_cost, unit_cost;
};
constexpr Coverage kWide{256, 2, 32, 2, 64, 116};  // large products
constexpr Coverage kSingle{256, 1, 32, 4, 66, 96}; // fewer units than fill the wide way
constexpr Coverage kSmall{128, 1, 16, 1, 44, 64};  // so few that more thread blocks count for more
constexpr Coverage kTiny{64, 1, 16, 1, 28, 44};    // not even one for every multiprocessor

// Units of a worker (a cluster), in order: word [round][worker]; tile << kGroupBits | group, or kNoUnit.
// The first units of every worker are those of the first groups: fewer tokens take the front of the lists.
constexpr int kGroupBits = 6;
constexpr int32_t kNoUnit = -1;
constexpr int64_t kMostTiles = int64_t{1} << 24; // for a tile's field, and for the number of words

struct UnitLists {
    Coverage coverage;
    size_t offset; // of the first word in the schedule
    int workers, rounds;
    double slowness; // of a unit, for a larger supergroup than the smallest
    std::vector<int64_t> spans; // [period + 1]: cost of the longest worker with so many groups
};

struct Schedule {
    std::vector<int32_t> words; // tiles, steps, unit lists
    int32_t depth;              // inputs of a step
    bool paired;                // both strips take part in every step, unless neither does
    bool merged;                // sm90_merge_schedule.h, not sm90_schedule.h
    int32_t tiles;
    size_t steps_offset;
    std::vector<UnitLists> lists;

    // The cheapest way for so many tokens, an index of lists.
    int choose(int64_t tokens) const;
    // Appends the lists for one way; cost of each tile's unit, and the bytes of a token's inputs.
    void add_lists(Coverage coverage, const std::vector<int64_t> &costs, int64_t token_bytes, int multiprocessors);

private:
    void add_list(const Coverage &coverage, const std::vector<int64_t> &costs, int workers, double slowness);
};

template <class Record> void append(const std::vector<Record> &records, std::vector<int32_t> &words) {
    const auto *first = reinterpret_cast<const int32_t *>(records.data());
    words.insert(words.end(), first, first + records.size() * (sizeof(Record) / sizeof(int32_t)));
}

} // namespace bsparse::gpu::spmm_sm90
