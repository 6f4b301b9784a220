// Numbers of every dtype, written and read bit by bit: nothing here is shared with the library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "check.h"

inline size_t bytes_of(bsparse_dtype dtype) { return dtype == BSPARSE_F64 ? 8 : dtype == BSPARSE_F32 ? 4 : 2; }

// x rounded to `bits` bits of significand (the hidden one included), ties to even; no subnormals, no overflow.
inline double round_to_bits(double x, int bits) {
    int exponent = 0;
    const double fraction = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

inline double round_to(double x, bsparse_dtype dtype) {
    return dtype == BSPARSE_F64   ? x
           : dtype == BSPARSE_F32 ? static_cast<double>(static_cast<float>(x))
                                  : round_to_bits(x, dtype == BSPARSE_F16 ? 11 : 8);
}

// A 16-bit float of 1 sign, `exponent_bits` and the rest of significand; x is exact in it, and normal or zero.
inline uint16_t encode16(double x, int exponent_bits) {
    const int bits = 15 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (x == 0) {
        return 0;
    }
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(x), &exponent); // [0.5, 1)
    const int significand = static_cast<int>(std::ldexp(fraction * 2 - 1, bits));
    return static_cast<uint16_t>((x < 0) << 15 | (exponent - 1 + bias) << bits | significand);
}

inline double decode16(uint16_t word, int exponent_bits) {
    const int bits = 15 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = word >> bits & ((1 << exponent_bits) - 1);
    const int fraction = word & ((1 << bits) - 1);
    const double sign = word >> 15 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
        return fraction == 0 ? sign * INFINITY : NAN;
    }
    const int significand = exponent == 0 ? fraction : fraction | 1 << bits;
    return sign * std::ldexp(significand, (exponent == 0 ? 1 : exponent) - bias - bits);
}

inline double load(const void *data, bsparse_dtype dtype, int64_t i) {
    const auto *at = static_cast<const unsigned char *>(data) + i * static_cast<int64_t>(bytes_of(dtype));
    double f64 = 0;
    float f32 = 0;
    uint16_t word = 0;
    switch (dtype) {
    case BSPARSE_F64:
        std::memcpy(&f64, at, 8);
        return f64;
    case BSPARSE_F32:
        std::memcpy(&f32, at, 4);
        return f32;
    default:
        std::memcpy(&word, at, 2);
        return decode16(word, dtype == BSPARSE_F16 ? 5 : 8);
    }
}

// x is exact in dtype, or NaN.
inline void store(void *data, bsparse_dtype dtype, int64_t i, double x) {
    auto *at = static_cast<unsigned char *>(data) + i * static_cast<int64_t>(bytes_of(dtype));
    const float f32 = static_cast<float>(x);
    const uint16_t word = std::isnan(x) ? 0x7fff : encode16(x, dtype == BSPARSE_F16 ? 5 : 8);
    switch (dtype) {
    case BSPARSE_F64:
        std::memcpy(at, &x, 8);
        return;
    case BSPARSE_F32:
        std::memcpy(at, &f32, 4);
        return;
    default:
        std::memcpy(at, &word, 2);
    }
}

inline const char *name_of(bsparse_dtype dtype) {
    return dtype == BSPARSE_F64 ? "f64" : dtype == BSPARSE_F32 ? "f32" : dtype == BSPARSE_F16 ? "f16" : "bf16";
}
