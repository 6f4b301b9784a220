// Operand tiles in shared memory for mma.sync: where an element lies, and how a warp reads its fragments. Chunks of 16
// bytes are exchanged within a line so that neither copies nor fragments meet in a bank.
#pragma once

#include "mma_sm80.cuh"

namespace bsparse::gpu {

constexpr int kSlices = 4;                                         // of a stage
template <typename T> constexpr int kSliceInner = 32 / sizeof(T);  // inner elements of one mma
template <typename T> constexpr int kStageInner = kSlices * kSliceInner<T>;
template <typename T> constexpr int kChunk = 16 / sizeof(T);       // elements

// [lines][kStageInner]: the inner dimension lies along a line of 128 bytes.
template <typename T, int kLines> struct InnerMajorTile {
    static constexpr int kBytes = kLines * 128;

    __device__ static uint32_t chunk_at(int line, int chunk) {
        return static_cast<uint32_t>(line * 128 + ((chunk ^ (line & 7)) << 4));
    }
    __device__ static uint32_t element_at(int line, int inner) {
        return chunk_at(line, inner / kChunk<T>) + inner % kChunk<T> * static_cast<uint32_t>(sizeof(T));
    }

    // 16 lines from first on, as the a of mma.
    template <typename Math> __device__ static void load_a(Fragment<Math, 4> &a, uint32_t tile, int first, int slice) {
        const int lane = threadIdx.x % 32;
        load_matrices(a.big, tile + chunk_at(first + lane % 16, 2 * slice + lane / 16));
        a.prepare();
    }

    // 16 lines from first on, as two b of mma, two registers each.
    __device__ static void load_b(uint32_t (&b)[4], uint32_t tile, int first, int slice) {
        const int lane = threadIdx.x % 32;
        load_matrices(b, tile + chunk_at(first + lane % 8 + lane / 16 * 8, 2 * slice + lane / 8 % 2));
    }
};

// [kStageInner][kLines]: the inner dimension goes from line to line, what is a line elsewhere is a column here.
template <typename T, int kColumns> struct OuterMajorTile {
    static constexpr int kChunks = kColumns / kChunk<T>; // of a line: 4, 8, 16 or 32
    static constexpr int kBytes = kStageInner<T> * kChunks * 16;

    __device__ static uint32_t chunk_at(int inner, int chunk) {
        // 16 bits: eight lines are read at one chunk. f32: four lines at two neighbouring chunks.
        const int mixed = sizeof(T) == 4 ? (inner & 3) * 2 : kChunks == 4 ? inner >> 1 & 3 : inner & 7;
        return static_cast<uint32_t>((inner * kChunks + (chunk ^ mixed)) << 4);
    }
    __device__ static uint32_t element_at(int inner, int column) {
        return chunk_at(inner, column / kChunk<T>) + column % kChunk<T> * static_cast<uint32_t>(sizeof(T));
    }

    template <typename Math> __device__ static void load_a(Fragment<Math, 4> &a, uint32_t tile, int first, int slice) {
        const int lane = threadIdx.x % 32;
        if constexpr (sizeof(T) == 2) {
            load_matrices_transposed(a.big,
                                     tile + chunk_at(16 * slice + lane % 8 + lane / 16 * 8, first / 8 + lane / 8 % 2));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a.big[i] =
                    load_shared(tile + element_at(8 * slice + lane % 4 + i / 2 * 4, first + lane / 4 + i % 2 * 8));
            }
        }
        a.prepare();
    }

    __device__ static void load_b(uint32_t (&b)[4], uint32_t tile, int first, int slice) {
        const int lane = threadIdx.x % 32;
        if constexpr (sizeof(T) == 2) {
            load_matrices_transposed(b, tile + chunk_at(16 * slice + lane % 16, first / 8 + lane / 16));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                b[i] = load_shared(tile + element_at(8 * slice + lane % 4 + i % 2 * 4, first + lane / 4 + i / 2 * 8));
            }
        }
    }
};

} // namespace bsparse::gpu
