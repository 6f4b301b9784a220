// The instructions of sm_80 that the kernels stand on, one function each, and the arithmetic of one product on them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "dtype.cuh"

namespace bsparse::gpu {

__device__ inline uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory, of which the first `bytes` are read and the rest become zero.
__device__ inline void copy_async(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// 16 bytes to shared memory, or nothing; without a branch.
__device__ inline void copy_async_if(bool wanted, uint32_t to, const void *from) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.cg.shared.global [%1], [%2], 16;\n}" ::"r"(
                     static_cast<int>(wanted)),
                 "r"(to), "l"(from)
                 : "memory");
}

// Stays in registers: the compiler would rather compute it again in every round of a loop.
__device__ inline void keep(uint32_t &x) { asm volatile("" : "+r"(x)); }
template <typename T> __device__ inline void keep(T *&x) { asm volatile("" : "+l"(x)); }

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most kGroups of this thread's newest groups are still under way.
template <int kGroups> __device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Four 8x8 matrices of 16-bit numbers; lane 8 i + j gives the address of row j of matrix i, 16 bytes. Register i then
// holds of matrix i the elements (lane / 4, lane % 4 * 2 + {0, 1}); transposed: (lane % 4 * 2 + {0, 1}, lane / 4).
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline uint32_t load_shared(uint32_t address) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

// d += a b for a tile of 16 x 8; the inner size is 32 bytes: 16 of f16 and bf16, 8 of f32 (its first 19 bits are used).
// Registers, with g = lane / 4 and t = lane % 4: a[0] is row g, a[1] row g + 8, of the first 16 bytes of the inner
// dimension, b[0] column g; a[2], a[3] and b[1] are of the last 16 bytes; each holds the 4 bytes number t of them.
// d[0], d[1] are row g, columns 2 t and 2 t + 1; d[2], d[3] row g + 8.
#define BSPARSE_MMA(SHAPE_TYPES)                                                                                       \
    asm("mma.sync.aligned." SHAPE_TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <typename T> __device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t *b) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        BSPARSE_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    } else if constexpr (std::is_same_v<T, __half>) {
        BSPARSE_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    } else {
        BSPARSE_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
    }
}

#undef BSPARSE_MMA

// How numbers of type T are multiplied. kSplit: f32 with the accuracy of f32, by three products of TF32.
template <typename T, bool kSplit> struct Arithmetic {
    using Type = T;
    static constexpr bool kSplitSums = kSplit;
    static_assert(!kSplit || std::is_same_v<T, float>, "only f32 is split");
};

using Bf16 = Arithmetic<__nv_bfloat16, false>;
using F16 = Arithmetic<__half, false>;
using Tf32 = Arithmetic<float, false>;
using F32 = Arithmetic<float, true>;

// Rounds f32 to TF32's 10 bits of mantissa, half away from zero. A NaN whose bits are all ones becomes -0; what it
// leaves as the small part of a split is then still NaN.
__device__ inline uint32_t round_to_tf32(uint32_t x) { return (x + 0x1000u) & 0xffffe000u; }

// The same but for NaN, which stays NaN, and for the bits that the hardware cuts off.
__device__ inline uint32_t round_for_tf32(uint32_t x) {
    return fabsf(__uint_as_float(x)) < __int_as_float(0x7f800000) ? x + 0x1000u : x;
}

// Fragments of N registers ready for the products: of f16 and bf16 as they are, of f32 rounded, or in two parts. The
// small part of infinity is NaN, and so is what infinity reaches when f32 is split.
template <typename Math, int N> struct Fragment {
    uint32_t big[N];
    uint32_t small[Math::kSplitSums ? N : 1];

    __device__ void prepare() {
        if constexpr (std::is_same_v<typename Math::Type, float>) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const uint32_t x = big[i];
                if constexpr (!Math::kSplitSums) {
                    big[i] = round_for_tf32(x);
                } else { // exact; the hardware cuts off what exceeds TF32, 2^-23 of x at most
                    big[i] = round_to_tf32(x);
                    small[i] = __float_as_uint(__uint_as_float(x) - __uint_as_float(big[i]));
                }
            }
        }
    }
};

// sums[j] += a b[j] for kCount tiles of 16 x 8, 32 bytes of the inner dimension; b holds two registers a tile.
// Tensor cores cut off what does not fit f32 instead of rounding, always towards zero, and that adds up over a long
// sum. So the split products start from zero each time, the smallest first, and are added by ordinary f32 additions.
// Source: Ootomo and Yokota, 2022, Recovering single precision accuracy from Tensor Cores.
template <typename Math, int kCount>
__device__ inline void multiply(float (*sums)[4], const Fragment<Math, 4> &a, const Fragment<Math, 2 * kCount> &b) {
    using T = typename Math::Type;
    if constexpr (Math::kSplitSums) {
        float parts[kCount][4] = {};
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            mma<T>(parts[j], a.small, b.big + 2 * j);
        }
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            mma<T>(parts[j], a.big, b.small + 2 * j);
        }
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            mma<T>(parts[j], a.big, b.big + 2 * j);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[j][i] += parts[j][i];
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            mma<T>(sums[j], a.big, b.big + 2 * j);
        }
    }
}

} // namespace bsparse::gpu
