// Rows of a stored block as the kernels read them, whatever the format. Of 2:4 blocks, a few columns at a time, the
// kept numbers are put where they belong, between zeros. Part of the kernel source: see kernel/all.h.

// Four columns of 2-byte numbers: the kept ones shifted to their places.
static inline void place(const char *kept, int nibble, uint16_t *to) {
    const uint64_t first = load<uint16_t>(kept), second = load<uint16_t>(kept + 2);
    store(to, first << 16 * (nibble & 3) | second << 16 * (nibble >> 2));
}

static inline void place(const char *kept, int nibble, uint32_t *to) {
    const uint32_t first = load<uint32_t>(kept), second = load<uint32_t>(kept + 4);
    for (int i = 0; i < 4; ++i) {
        to[i] = (i == (nibble & 3) ? first : 0) | (i == nibble >> 2 ? second : 0);
    }
}

// Columns that are put in place at once: of 4 bytes each, a register of them.
struct alignas(64) Room {
    char bytes[4 * kLanes];
};

template <int kSize> struct Bits {
    typedef uint32_t Type;
};
template <> struct Bits<2> {
    typedef uint16_t Type;
};

template <bsparse_dtype kDtype, bool k24> class Rows {
    static constexpr int64_t kSize = kDtype == BSPARSE_F32 ? 4 : 2;
    using Number = typename Bits<kSize>::Type;

public:
    Rows(const char *values, const uint8_t *metadata, int32_t columns)
        : values_(values), metadata_(metadata), columns_(columns) {}

    // Where the values of row i lie from this column, a multiple of 4, on.
    const char *values(int64_t i, int64_t column) const {
        return values_ + (i * columns_ + column) * (k24 ? kSize / 2 : kSize);
    }

    // Columns [column, column + count) of row i, side by side; room for them where they must be put in place. Of 2:4
    // blocks at most as many as there is room for, and column is a multiple of 4.
    const char *columns(int64_t i, int64_t column, int64_t count, Room &room) const {
        const char *kept = values(i, column);
        if constexpr (k24) {
            auto *to = reinterpret_cast<Number *>(room.bytes);
            int64_t group = (i * columns_ + column) / 4;
            const int64_t most = least(count, static_cast<int64_t>(sizeof(room)) / kSize);
            for (int64_t k = 0; k < most; k += 4, ++group, kept += 2 * kSize) {
                place(kept, metadata_[group / 2] >> group % 2 * 4 & 15, to + k);
            }
            return room.bytes;
        }
        return kept;
    }

private:
    const char *values_;
    const uint8_t *metadata_;
    const int64_t columns_; // of the block
};

template <bsparse_dtype kDtype, bool k24> static inline Rows<kDtype, k24> rows_of(const SpmmTask &task, int64_t block) {
    const int64_t elements = block * task.block_rows * task.block_cols;
    return {task.values + elements * bytes_of(kDtype) / (k24 ? 2 : 1), k24 ? task.metadata + elements / 8 : nullptr,
            task.block_cols};
}
