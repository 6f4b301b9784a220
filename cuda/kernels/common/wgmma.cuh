// wgmma: a warpgroup multiplies [64, 32 bytes of k] by [k, N] out of shared memory into f32 registers; that is 16 of k
// of bf16 and f16, 8 of f32, which it takes as TF32.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace bsparse::gpu::sm90 {

// Swizzle of an operand in shared memory, as a descriptor spells it.
enum class OperandSwizzle : uint64_t { k128 = 1, k64 = 2, k32 = 3 };

// Where an operand lies: its address, and the bytes between groups of 8 lines of one swizzle span (stride), and between
// spans along the contiguous dimension (leading; unused while one span holds the whole extent).
// K-major (kTrans false): lines are rows of the tile; the next of k lie 32 bytes on. MN-major (kTrans true, not of
// f32): lines are steps of k; the next 16 of k lie two groups of 8 lines on.
__device__ __forceinline__ uint64_t describe(uint32_t address, uint32_t leading, uint32_t stride,
                                             OperandSwizzle swizzle = OperandSwizzle::k128) {
    return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{(leading >> 4) & 0x3FFF} << 16 |
           uint64_t{(stride >> 4) & 0x3FFF} << 32 | static_cast<uint64_t>(swizzle) << 62;
}

// Before the first wgmma that uses registers written otherwise; between wgmma of the same shape it is not needed.
__device__ __forceinline__ void fence_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending> __device__ __forceinline__ void wait_wgmma() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accumulators across wgmma, which it knows nothing of.
template <int kCount> __device__ __forceinline__ void pin(float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        asm volatile("" : "+f"(values[i])::"memory");
    }
}

// What follows spells one asm statement for each N and type. An asm statement counts its operands from 0: the
// accumulators come first.
#define BSPARSE_NAMES_0                                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BSPARSE_NAMES_1                                                                                                \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                 \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BSPARSE_NAMES_2                                                                                                \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                                 \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define BSPARSE_NAMES_3                                                                                                \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                     \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define BSPARSE_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BSPARSE_SUMS_16(i) BSPARSE_SUMS_4(i), BSPARSE_SUMS_4(i + 4), BSPARSE_SUMS_4(i + 8), BSPARSE_SUMS_4(i + 12)
#define BSPARSE_SUMS_32(i) BSPARSE_SUMS_16(i), BSPARSE_SUMS_16(i + 16)

// a, b, keep: numbers of the operands after the accumulators; trans: what follows of the statement, from the next two.
#define BSPARSE_WGMMA(n, k, type, names, a, b, keep, trans, ...)                                                       \
    asm volatile("{\n"                                                                                                 \
                 ".reg .pred p;\n"                                                                                     \
                 "setp.ne.b32 p, %" #keep ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n k ".f32." type "." type " {" names "}, %" #a ", %" #b          \
                 ", p, 1, 1" trans ";\n"                                                                               \
                 "}"                                                                                                   \
                 : __VA_ARGS__                                                                                         \
                 : "l"(a_tile), "l"(b_tile), "r"(static_cast<int>(add)), "n"(static_cast<int>(kTransA)),               \
                   "n"(static_cast<int>(kTransB)))
#define BSPARSE_TRANS(ta, tb) ", %" #ta ", %" #tb
#define BSPARSE_NO_TRANS(ta, tb) "" // f32 is always K-major

#define BSPARSE_WGMMA_64(k, type, trans)                                                                               \
    BSPARSE_WGMMA(64, k, type, BSPARSE_NAMES_0, 32, 33, 34, trans(35, 36), BSPARSE_SUMS_32(0))
#define BSPARSE_WGMMA_128(k, type, trans)                                                                              \
    BSPARSE_WGMMA(128, k, type, BSPARSE_NAMES_0 ", " BSPARSE_NAMES_1, 64, 65, 66, trans(67, 68), BSPARSE_SUMS_32(0),   \
                  BSPARSE_SUMS_32(32))
#define BSPARSE_WGMMA_192(k, type, trans)                                                                              \
    BSPARSE_WGMMA(192, k, type, BSPARSE_NAMES_0 ", " BSPARSE_NAMES_1 ", " BSPARSE_NAMES_2, 96, 97, 98, trans(99, 100), \
                  BSPARSE_SUMS_32(0), BSPARSE_SUMS_32(32), BSPARSE_SUMS_32(64))
#define BSPARSE_WGMMA_256(k, type, trans)                                                                              \
    BSPARSE_WGMMA(256, k, type, BSPARSE_NAMES_0 ", " BSPARSE_NAMES_1 ", " BSPARSE_NAMES_2 ", " BSPARSE_NAMES_3, 128,   \
                  129, 130, trans(131, 132), BSPARSE_SUMS_32(0), BSPARSE_SUMS_32(32), BSPARSE_SUMS_32(64),             \
                  BSPARSE_SUMS_32(96))
#define BSPARSE_WGMMA_TYPES(n)                                                                                         \
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {                                                                  \
        BSPARSE_WGMMA_##n("k16", "bf16", BSPARSE_TRANS);                                                               \
    } else if constexpr (std::is_same_v<T, __half>) {                                                                  \
        BSPARSE_WGMMA_##n("k16", "f16", BSPARSE_TRANS);                                                                \
    } else {                                                                                                           \
        BSPARSE_WGMMA_##n("k8", "tf32", BSPARSE_NO_TRANS);                                                             \
    }

// d = a b + (add ? d : 0), d [64, kN] f32, a [64, k] and b [k, kN] of T, asynchronously: __nv_bfloat16, __half, or
// float, of which it takes the bits that TF32 has. Thread t of the warpgroup holds rows t / 32 * 16 + t % 32 / 4 + {0,
// 8}; d[4 j + 2 h + c] is row h, column 8 j + t % 4 * 2 + c.
template <class T, int kN, bool kTransA, bool kTransB>
__device__ __forceinline__ void multiply(float (&d)[kN / 2], uint64_t a_tile, uint64_t b_tile, bool add) {
    static_assert(std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half> ||
                  (std::is_same_v<T, float> && !kTransA && !kTransB));
    static_assert(kN == 64 || kN == 128 || kN == 192 || kN == 256);
    if constexpr (kN == 64) {
        BSPARSE_WGMMA_TYPES(64)
    } else if constexpr (kN == 128) {
        BSPARSE_WGMMA_TYPES(128)
    } else if constexpr (kN == 192) {
        BSPARSE_WGMMA_TYPES(192)
    } else {
        BSPARSE_WGMMA_TYPES(256)
    }
}

#undef BSPARSE_NAMES_0
#undef BSPARSE_NAMES_1
#undef BSPARSE_NAMES_2
#undef BSPARSE_NAMES_3
#undef BSPARSE_SUMS_4
#undef BSPARSE_SUMS_16
#undef BSPARSE_SUMS_32
#undef BSPARSE_WGMMA
#undef BSPARSE_TRANS
#undef BSPARSE_NO_TRANS
#undef BSPARSE_WGMMA_64
#undef BSPARSE_WGMMA_128
#undef BSPARSE_WGMMA_192
#undef BSPARSE_WGMMA_256
#undef BSPARSE_WGMMA_TYPES

} // namespace bsparse::gpu::sm90
