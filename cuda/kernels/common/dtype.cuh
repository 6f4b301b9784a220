// Element types in device code: conversions between f32 and what is stored, by type and by run-time dtype.
#pragma once

#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "bsparse/bsparse.h"

namespace bsparse::gpu {

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(__half x) { return __half2float(x); }
__device__ inline float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ inline T from_f32(float x);
template <> __device__ inline float from_f32<float>(float x) { return x; }
template <> __device__ inline __half from_f32<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Calls use(T{}) with the type of a dtype.
template <typename Use> __device__ inline void with_type(bsparse_dtype dtype, const Use &use) {
    if (dtype == BSPARSE_F32) {
        use(float{});
    } else if (dtype == BSPARSE_F16) {
        use(__half{});
    } else {
        use(__nv_bfloat16{});
    }
}

__device__ inline float load_as_f32(const void *data, bsparse_dtype dtype, int64_t index) {
    float x;
    with_type(dtype, [&](auto type) { x = to_f32(static_cast<const decltype(type) *>(data)[index]); });
    return x;
}

__device__ inline void store_from_f32(void *data, bsparse_dtype dtype, int64_t index, float x) {
    with_type(dtype, [&](auto type) {
        using T = decltype(type);
        static_cast<T *>(data)[index] = from_f32<T>(x);
    });
}

constexpr int kVector = 8; // elements that are moved at once where alignment allows it

// kVector neighbours, the first of them at a multiple of 16 bytes.
template <typename T> __device__ inline void load_vector(const T *data, float (&x)[kVector]) {
    constexpr int kParts = kVector * sizeof(T) / 16;
    uint4 raw[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        raw[i] = reinterpret_cast<const uint4 *>(data)[i];
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        T stored;
        memcpy(&stored, reinterpret_cast<const char *>(raw) + i * sizeof(T), sizeof(T));
        x[i] = to_f32(stored);
    }
}

template <typename T> __device__ inline void store_vector(T *data, const float (&x)[kVector]) {
    constexpr int kParts = kVector * sizeof(T) / 16;
    uint4 raw[kParts];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        const T stored = from_f32<T>(x[i]);
        memcpy(reinterpret_cast<char *>(raw) + i * sizeof(T), &stored, sizeof(T));
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        reinterpret_cast<uint4 *>(data)[i] = raw[i];
    }
}

} // namespace bsparse::gpu
