// Vectors of kLanes numbers, and the element types that are converted to f32 on load and from it on store.
// Part of the kernel source: compiled once for each instruction set, in a namespace of its own (kernel/all.h).

typedef float Vf __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Vu __attribute__((vector_size(4 * kLanes)));
typedef int32_t Vi __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Vh __attribute__((vector_size(2 * kLanes)));

template <class To, class From> static inline To as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

template <class T> static inline T load(const void *from) { // at any alignment
    T to;
    __builtin_memcpy(&to, from, sizeof(to));
    return to;
}

template <class T> static inline void store(void *to, T value) { __builtin_memcpy(to, &value, sizeof(value)); }

static inline Vf broadcast(float x) { return x - Vf{}; }
static inline Vu broadcast(uint32_t x) { return x - Vu{}; }

static inline Vf select(Vi where, Vf yes, Vf no) { return as<Vf>((as<Vi>(yes) & where) | (as<Vi>(no) & ~where)); }

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// conversions ------------------------------------------------------------------------------

#if defined(__AVX2__) && !defined(__AVX512F__) // what GCC 12 makes of these conversions takes more instructions
static inline Vu widen(Vh x) { return as<Vu>(_mm256_cvtepu16_epi32(as<__m128i>(x))); }
static inline Vh upper_halves(Vu x) {
    const __m256i halves = as<__m256i>(x >> 16);
    const __m256i twice = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0xd8);
    return as<Vh>(_mm256_castsi256_si128(twice));
}
#else
static inline Vu widen(Vh x) { return __builtin_convertvector(x, Vu); }
static inline Vh upper_halves(Vu x) { return __builtin_convertvector(x >> 16, Vh); }
#endif

static inline Vf from_bf16(Vh x) { return as<Vf>(widen(x) << 16); }

static inline Vh to_bf16(Vf x) { // to nearest, ties to even; NaN stays NaN
    const Vu bits = as<Vu>(x);
    const Vu rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return upper_halves(as<Vu>(select(x != x, as<Vf>(bits | 0x400000), as<Vf>(rounded))));
}

#if defined(__AVX512F__) // with a full mask: GCC 12 warns about the undefined vector inside the plain forms
static inline Vf from_f16(Vh x) { return as<Vf>(_mm512_maskz_cvtph_ps(0xffff, as<__m256i>(x))); }
static inline Vh to_f16(Vf x) {
    return as<Vh>(_mm512_maskz_cvtps_ph(0xffff, as<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
static inline Vf from_f16(Vh x) { return as<Vf>(_mm256_cvtph_ps(as<__m128i>(x))); }
static inline Vh to_f16(Vf x) { return as<Vh>(_mm256_cvtps_ph(as<__m256>(x), _MM_FROUND_TO_NEAREST_INT)); }
#else
static inline Vf from_f16(Vh x) {
    const Vu bits = widen(x);
    const Vu sign = (bits & 0x8000) << 16;
    // Exponent and mantissa in f32's places make the number times 2^-112, also for subnormal numbers.
    const Vf magnitude = as<Vf>((bits & 0x7fff) << 13) * 0x1p112f;
    const Vu special = as<Vu>(magnitude >= 65536.0f) & 0x7f800000; // infinity and NaN
    return as<Vf>(as<Vu>(magnitude) | special | sign);
}

static inline Vh to_f16(Vf x) { // to nearest, ties to even
    const Vu sign = as<Vu>(x) & 0x80000000;
    const Vu bits = as<Vu>(x) ^ sign;
    const Vf magnitude = as<Vf>(bits);
    // Normal numbers: the exponent rebased by 112, rounded at bit 13; the carry may reach infinity, as it should.
    const Vu normal = (bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;
    // Subnormal numbers: adding 0.5 lets the processor round at 2^-24, the last place of f32 numbers near 0.5.
    const Vu subnormal = as<Vu>(magnitude + 0.5f) - 0x3f000000;
    const Vu infinite = broadcast(uint32_t{0x7c00});
    const Vu nan = ((bits >> 13) & 0x3ff) | 0x7e00;
    Vu half = as<Vu>(select(magnitude < 0x1p-14f, as<Vf>(subnormal), as<Vf>(normal)));
    half = as<Vu>(select(magnitude >= 65520.0f, as<Vf>(infinite), as<Vf>(half)));
    half = as<Vu>(select(magnitude != magnitude, as<Vf>(nan), as<Vf>(half)));
    return __builtin_convertvector(half | (sign >> 16), Vh);
}
#endif

static inline int64_t bytes_of(bsparse_dtype dtype) { return dtype == BSPARSE_F32 ? 4 : 2; }

// The first `count` of kLanes numbers that stand `stride` elements apart; the rest are zero. Reads no others.
template <bsparse_dtype kDtype> static inline Vf load_as_f32(const char *from, int64_t stride, int64_t count) {
    if constexpr (kDtype == BSPARSE_F32) {
        if (stride == 1 && count >= kLanes) {
            return load<Vf>(from);
        }
        Vf numbers = {};
        for (int64_t i = 0; i < least(count, kLanes); ++i) {
            numbers[i] = load<float>(from + i * stride * 4);
        }
        return numbers;
    } else {
        Vh numbers = {};
        if (stride == 1 && count >= kLanes) {
            numbers = load<Vh>(from);
        } else {
            for (int64_t i = 0; i < least(count, kLanes); ++i) {
                numbers[i] = load<uint16_t>(from + i * stride * 2);
            }
        }
        return kDtype == BSPARSE_BF16 ? from_bf16(numbers) : from_f16(numbers);
    }
}

static inline Vf load_f32(const char *from, int64_t stride, int64_t count, bsparse_dtype dtype) {
    switch (dtype) {
    case BSPARSE_F32:
        return load_as_f32<BSPARSE_F32>(from, stride, count);
    case BSPARSE_BF16:
        return load_as_f32<BSPARSE_BF16>(from, stride, count);
    default:
        return load_as_f32<BSPARSE_F16>(from, stride, count);
    }
}

// The inverse: a whole vector, side by side.
template <bsparse_dtype kDtype> static inline void store_as(char *to, Vf x) {
    if constexpr (kDtype == BSPARSE_F32) {
        store(to, x);
    } else {
        store(to, kDtype == BSPARSE_BF16 ? to_bf16(x) : to_f16(x));
    }
}

// The first `count` numbers, `stride` elements apart; writes nothing else.
static inline void store_f32(char *to, int64_t stride, int64_t count, bsparse_dtype dtype, Vf x) {
    const bool whole = stride == 1 && count >= kLanes;
    if (dtype == BSPARSE_F32) {
        if (whole) {
            return store(to, x);
        }
        for (int64_t i = 0; i < least(count, kLanes); ++i) {
            store(to + i * stride * 4, x[i]);
        }
        return;
    }
    const Vh half = dtype == BSPARSE_BF16 ? to_bf16(x) : to_f16(x);
    if (whole) {
        return store(to, half);
    }
    for (int64_t i = 0; i < least(count, kLanes); ++i) {
        store(to + i * stride * 2, half[i]);
    }
}

// transposing ------------------------------------------------------------------------------

#if defined(__clang__)
#define BSPARSE_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BSPARSE_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Vi{__VA_ARGS__})
#endif

#if BSPARSE_CPU_LANES == 16
static inline Vu interleave_low(Vu a, Vu b) {
    return BSPARSE_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline Vu interleave_high(Vu a, Vu b) {
    return BSPARSE_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif BSPARSE_CPU_LANES == 8
static inline Vu interleave_low(Vu a, Vu b) { return BSPARSE_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline Vu interleave_high(Vu a, Vu b) { return BSPARSE_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
static inline Vu interleave_low(Vu a, Vu b) { return BSPARSE_SHUFFLE(a, b, 0, 4, 1, 5); }
static inline Vu interleave_high(Vu a, Vu b) { return BSPARSE_SHUFFLE(a, b, 2, 6, 3, 7); }
#endif

// In place: rows[i][j] becomes rows[j][i]. Each pass interleaves the upper with the lower half of the rows, which
// moves the highest bit of the row number to the end of the column number and that of the column to the row's end.
static inline void transpose(Vu rows[kLanes]) {
#pragma GCC unroll 4
    for (int pass = 1; pass < kLanes; pass *= 2) {
        Vu before[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
            before[i] = rows[i];
        }
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; ++i) {
            rows[2 * i] = interleave_low(before[i], before[i + kLanes / 2]);
            rows[2 * i + 1] = interleave_high(before[i], before[i + kLanes / 2]);
        }
    }
}
