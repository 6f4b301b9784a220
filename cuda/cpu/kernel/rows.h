// Rows of a stored block as the kernels read them, whatever the format: in 2:4 blocks the kept numbers are put where
// they belong, between zeros. Part of the kernel source: see kernel/all.h.

// The two positions of a group of four columns: p0 | p1 << 2. (As positions.h has it, whose inline functions
// instruction sets would share.)
static inline int group_at(const uint8_t *metadata, int64_t group) { return metadata[group / 2] >> group % 2 * 4 & 15; }

// kLanes / 2 numbers, and zeros behind them, put together in registers: memory hands on no parts of what is being
// written.
#if defined(__AVX512F__)
static inline Vf load_half_f32(const char *from) { return as<Vf>(_mm512_maskz_loadu_ps(0xff, from)); }
static inline Vh load_half_16(const char *from) {
    return as<Vh>(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))));
}
#elif defined(__AVX2__)
static inline Vf load_half_f32(const char *from) {
    return as<Vf>(_mm256_zextps128_ps256(_mm_loadu_ps(reinterpret_cast<const float *>(from))));
}
static inline Vh load_half_16(const char *from) {
    return as<Vh>(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from)));
}
#else
static inline Vf load_half_f32(const char *from) {
    Vf numbers = {};
    __builtin_memcpy(&numbers, from, 2 * kLanes);
    return numbers;
}
static inline Vh load_half_16(const char *from) {
    Vh numbers = {};
    __builtin_memcpy(&numbers, from, kLanes);
    return numbers;
}
#endif

// Of each byte of metadata, two groups of four columns: bit c is set where column c is kept, and which of the kept
// numbers column c gets; where it gets none, kLanes / 2, behind which there are zeros.
struct Spread {
    uint8_t kept[256];
    uint8_t source[256][8];

    constexpr Spread() : kept{}, source{} {
        for (int byte = 0; byte < 256; ++byte) {
            for (int column = 0; column < 8; ++column) {
                const int group = byte >> column / 4 * 4;
                const int rank = column % 4 == (group & 3) ? 0 : column % 4 == (group >> 2 & 3) ? 1 : -1;
                kept[byte] = static_cast<uint8_t>(kept[byte] | (rank < 0 ? 0 : 1 << column));
                source[byte][column] = static_cast<uint8_t>(rank < 0 ? kLanes / 2 : column / 4 * 2 + rank);
            }
        }
    }
};
constexpr Spread kSpread;

// kLanes columns from element `first` of the stored blocks on, of their kept numbers and zeros behind them.
static inline Vf spread(Vf numbers, const uint8_t *metadata, int64_t first) {
#if defined(__AVX512F__)
    const uint8_t *bytes = metadata + first / 8;
    const uint32_t kept = kSpread.kept[bytes[0]] | kSpread.kept[bytes[1]] << 8;
    return as<Vf>(_mm512_maskz_expand_ps(static_cast<__mmask16>(kept), as<__m512>(numbers)));
#elif defined(__AVX2__)
    const __m128i source = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(kSpread.source[metadata[first / 8]]));
    return as<Vf>(_mm256_permutevar8x32_ps(as<__m256>(numbers), _mm256_cvtepu8_epi32(source)));
#else
    const uint8_t *source = kSpread.source[group_at(metadata, first / 4)];
    Vf columns = {};
    for (int i = 0; i < kLanes; ++i) {
        columns[i] = numbers[source[i]];
    }
    return columns;
#endif
}

#if defined(__AVX512BF16__)
// The upper 2 bytes of each number of low, then of high, side by side.
static inline Vu upper_halves_of_both(Vf low, Vf high) {
    typedef uint16_t Indices __attribute__((vector_size(64)));
    constexpr Indices kOdd = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                              33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return as<Vu>(_mm512_permutex2var_epi16(as<__m512i>(low), as<__m512i>(kOdd), as<__m512i>(high)));
}
#endif

template <bsparse_dtype kDtype, bool k24> class Rows {
public:
    Rows(const SpmmTask &task, int64_t block) : columns_(task.block_cols) {
        const int64_t first = block * task.block_rows * task.block_cols; // element of the stored blocks
        values_ = task.values + first * kSize / kKept;
        metadata_ = k24 ? task.metadata + first / 8 : nullptr;
    }

    // Where the values of row i lie from this column on; of 2:4 blocks a multiple of 4.
    const char *values(int64_t i, int64_t column) const { return values_ + (i * columns_ + column) * kSize / kKept; }

    // `count` columns of row i, as many as there are lanes at most; the rest are zero. Reads no others.
    Vf load(int64_t i, int64_t column, int64_t count) const {
        const char *from = values(i, column);
        if constexpr (k24) {
            if (count >= kLanes) {
                return spread(load_half(from), metadata_, i * columns_ + column);
            }
            Room room;
            place(i, column, count, room);
            return load_as_f32<kDtype>(room.bytes, 1, count);
        }
        return load_as_f32<kDtype>(from, 1, count);
    }

    // The same of bf16 as they stand, two in a lane.
    Vu load_pairs(int64_t i, int64_t column, int64_t pairs) const {
        if constexpr (k24) {
#if defined(__AVX512BF16__)
            if (pairs >= kLanes) {
                return upper_halves_of_both(load(i, column, kLanes), load(i, column + kLanes, kLanes));
            }
#endif
            Room room;
            place(i, column, least(pairs, kLanes) * 2, room);
            return as<Vu>(load_as_f32<BSPARSE_F32>(room.bytes, 1, pairs));
        }
        return as<Vu>(load_as_f32<BSPARSE_F32>(values(i, column), 1, pairs));
    }

private:
    static constexpr int64_t kSize = kDtype == BSPARSE_F32 ? 4 : 2;
    static constexpr int64_t kKept = k24 ? 2 : 1; // one of so many is stored

    struct alignas(64) Room {
        char bytes[4 * kLanes];
    };

    static Vf load_half(const char *from) {
        if constexpr (kDtype == BSPARSE_F32) {
            return load_half_f32(from);
        } else {
            return kDtype == BSPARSE_BF16 ? from_bf16(load_half_16(from)) : from_f16(load_half_16(from));
        }
    }

    // Columns of row i side by side, group by group.
    void place(int64_t i, int64_t column, int64_t count, Room &room) const {
        const char *kept = values(i, column);
        int64_t group = (i * columns_ + column) / 4;
        for (int64_t k = 0; k < count; k += 4, ++group, kept += 2 * kSize) {
            const int nibble = group_at(metadata_, group);
            char *to = room.bytes + k * kSize;
            __builtin_memset(to, 0, 4 * kSize);
            __builtin_memcpy(to + (nibble & 3) * kSize, kept, kSize);
            __builtin_memcpy(to + (nibble >> 2) * kSize, kept + kSize, kSize);
        }
    }

    const char *values_;
    const uint8_t *metadata_;
    const int64_t columns_; // of the block
};
