// The metadata of 2:4 formats: which two of every 4 columns are kept. A byte holds two groups, the first in its low
// half; a group is p0 | p1 << 2 with p0 < p1.
#pragma once

#include <cstdint>

namespace bsparse {

// Where element e of the stored blocks lies among the values; -1 where it is not kept.
inline int64_t kept_at(const uint8_t *metadata, int64_t e) {
    const int group = metadata[e / 8] >> (e / 4 % 2 * 4);
    const int position = static_cast<int>(e % 4);
    if (position == (group & 3)) {
        return e / 4 * 2;
    }
    return position == (group >> 2 & 3) ? e / 4 * 2 + 1 : -1;
}

// Throws Error naming the field unless every group's positions ascend.
void check_positions(const void *metadata, int64_t bytes, const char *field);

} // namespace bsparse
