// Pairs block rows (or columns) that share many blocks of the other direction, for kernels that load what is shared
// once for both.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "../../src/pattern.h"

namespace bsparse::gpu {

// Every one of majors in one pair; where their number is odd, one pair has -1 for its second. Greedy, largest overlap
// first, within groups of neighbours, so that the time stays linear in large matrices.
std::vector<std::array<int32_t, 2>> match_majors(const BlockLists &lists, const std::vector<int32_t> &majors);

// All majors.
std::vector<std::array<int32_t, 2>> match_majors(const BlockLists &lists);

} // namespace bsparse::gpu
