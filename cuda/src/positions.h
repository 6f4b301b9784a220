// The metadata of 2:4 formats: which two of every 4 columns are kept. A byte holds two groups, the first in its low
// half; a group is p0 | p1 << 2 with p0 < p1.
#pragma once

#include <cstdint>

namespace bsparse {

// Group g of the stored blocks: p0 | p1 << 2.
inline uint8_t group_at(const uint8_t *metadata, int64_t g) { return metadata[g / 2] >> g % 2 * 4 & 15; }

// Where element e of the stored blocks lies among the values; -1 where it is not kept.
inline int64_t kept_at(const uint8_t *metadata, int64_t e) {
    const int group = group_at(metadata, e / 4);
    const int position = static_cast<int>(e % 4);
    if (position == (group & 3)) {
        return e / 4 * 2;
    }
    return position == group >> 2 ? e / 4 * 2 + 1 : -1;
}

// Throws Error naming the field unless every group's positions ascend.
void check_positions(const void *metadata, int64_t bytes, const char *field);

} // namespace bsparse
