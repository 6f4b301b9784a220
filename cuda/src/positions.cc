#include "positions.h"

#include <cinttypes>
#include <cstring>

#include "error.h"

namespace bsparse {
namespace {

// One bit of each group that ascends, of 16 groups.
uint64_t ascending(uint64_t groups) {
    constexpr uint64_t kLow = 0x3333333333333333, kOne = 0x1111111111111111;
    const uint64_t more = (groups >> 2 & kLow) + 4 * kOne - (groups & kLow); // 4 + p1 - p0: from 5 on
    return more >> 2 & (more >> 1 | more) & kOne;
}

bool ascends(uint8_t byte) { return ascending(byte | 0xeeeeeeeeeeeeee00) == 0x1111111111111111; }

[[noreturn]] void refuse(const uint8_t *bytes, int64_t at, const char *field) {
    const int half = ascends(static_cast<uint8_t>((bytes[at] & 15) | 0xe0)) ? 1 : 0; // the other one
    const int group = bytes[at] >> 4 * half & 15;
    invalid_argument("%s[%" PRId64 "] is 0x%02x, whose %s half says that a group of 4 keeps its columns %d and %d; the "
                     "first must be less than the second: metadata comes from bsparse_pack, or check that values and "
                     "metadata belong together",
                     field, at, bytes[at], half == 0 ? "low" : "high", group & 3, group >> 2);
}

} // namespace

void check_positions(const void *metadata, int64_t bytes, const char *field) {
    const auto *from = static_cast<const uint8_t *>(metadata);
    int64_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        uint64_t groups;
        std::memcpy(&groups, from + at, 8);
        if (ascending(groups) != 0x1111111111111111) {
            break;
        }
    }
    for (; at < bytes; ++at) {
        if (!ascends(from[at])) {
            refuse(from, at, field);
        }
    }
}

} // namespace bsparse
