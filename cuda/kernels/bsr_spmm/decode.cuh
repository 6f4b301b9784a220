// D = S X for few tokens, where time is the time to read S. Each value is read once, from device memory straight into
// the registers of mma.sync: lane (g, t) loads neighbours of row g, k's 8 t to 8 t + 7 of a chunk of 32, as if they
// were those that the instruction wants from it. X is loaded with the same k's, and a sum may take them in any order.
#pragma once

#include <cstdint>

#include "../common/epilogue.cuh"
#include "../common/mma_sm80.cuh"
#include "../common/sm90.cuh"

namespace bsparse::gpu {

constexpr int kDecodeWarps = 8;
constexpr int kDecodeThreads = kDecodeWarps * 32;
constexpr int kDecodeStep = 64; // k's of a warp's long step; 32 takes half the registers

// Everything of a run, passed to the kernels by value.
struct DecodeTask {
    const char *x;      // [tokens, cols], rows of ldx elements
    const char *values; // [blocks, block_rows, block_cols]
    int64_t ldx, rows, cols; // cols a multiple of 8
    int32_t tokens, block_rows, block_cols;
    int32_t tiles;          // of a block row
    int32_t ahead;          // blocks whose values are brought into L2 ahead of their use
    const int4 *items;      // {block row, first block, last block, part or -1}
    const int4 *joins;      // {block row, first part, parts, 0}
    const int32_t *columns; // [blocks], block column of each
    int64_t joined;         // elements of D that are sums of parts
    float *parts;           // [parts, tokens, block_rows]
    Epilogue epilogue;
};

// Programmatic dependent launch, where the code is compiled for it (decode.cu asks before it launches that way).
// Before the wait a kernel may read nothing that a kernel writes: X, C and the bias, but also the values, which an
// optimizer's step may have written just before. They are only brought into L2, where later writes find them. The
// lists may be read: a copy brought them, and a kernel starts only after all copies enqueued before it, for only a
// kernel is overtaken, and that one waited for those copies too. They are read past L1, which may remember what was at
// an address earlier.
__device__ inline void start_early() {
#if __CUDA_ARCH__ >= 900
    sm90::let_next_kernel_start();
#endif
}

__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    sm90::wait_for_previous_kernel();
#endif
}

// bytes: a multiple of 16.
__device__ inline void bring_into_l2(const char *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// The values of some blocks of a tile: they lie together.
__device__ inline void bring_tile_into_l2(const DecodeTask &task, int block, int row, int rows) {
    const int64_t pitch = int64_t{task.block_cols} * 2;
    bring_into_l2(task.values + (int64_t{block} * task.block_rows + row) * pitch, static_cast<uint32_t>(rows * pitch));
}

// 8 or 16 bytes of the values, which this multiprocessor needs once.
__device__ inline void load_once(uint32_t (&to)[2], const char *from) {
    asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
}

__device__ inline void load_once(uint32_t (&to)[4], const char *from) {
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
}

// The same of X, or zeros. Not through __ldg: X may be written while this kernel already runs, before the wait.
__device__ inline void load_if(bool wanted, uint32_t (&to)[2], const char *from) {
    to[0] = to[1] = 0;
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.s32 wanted, %3, 0;\n"
                 "@wanted ld.global.v2.u32 {%0, %1}, [%2];\n"
                 "}"
                 : "+r"(to[0]), "+r"(to[1])
                 : "l"(from), "r"(static_cast<int>(wanted)));
}

__device__ inline void load_if(bool wanted, uint32_t (&to)[4], const char *from) {
    to[0] = to[1] = to[2] = to[3] = 0;
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.s32 wanted, %5, 0;\n"
                 "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
                 : "l"(from), "r"(static_cast<int>(wanted)));
}

// How the eight warps of a thread block share a tile of kRows rows: kRowGroups times kRowTiles x 16 rows, and for each
// of them kGroups warps, of which every one takes every kGroups-th step along k. A step is kStep k's in chunks of
// kChunk, each within a block; block_cols is a multiple of kChunk. Long steps keep more loads under way, where there
// are registers for them; many tokens need those for sums. Then also two warps share X through L1.
template <typename Type, int kTokenTiles_, int kRows_, int kChunk_> struct DecodeShape {
    using T = Type;
    static constexpr int kTokenTiles = kTokenTiles_;
    static constexpr int kRows = kRows_;
    static constexpr int kChunk = kChunk_;
    static constexpr bool kMany = kTokenTiles > 2;
    static constexpr bool kLong = kTokenTiles == 1 || (kTokenTiles == 2 && kRows == 64);
    static constexpr int kStep = kLong ? kDecodeStep : 32;
    static constexpr int kResident = kStep == 32 && kTokenTiles < 8 ? 2 : 1; // thread blocks that registers suffice for
    static constexpr int kChunks = kStep / kChunk;
    static constexpr int kWords = kChunk / 8; // of a row of a chunk that one lane holds
    static constexpr int kRowGroups = kMany && kRows == 64 ? 2 : 1;
    static constexpr int kRowTiles = kRows / 16 / kRowGroups;
    static constexpr int kGroups = kDecodeWarps / kRowGroups;
    static constexpr int kPass = kTokenTiles < 4 ? kTokenTiles : 4; // token tiles summed over warps at a time
};

// One warp's way through the blocks of an item.
template <typename Shape> class DecodeWarp {
public:
    // Reads the rows of values from `row` of the block row on, and every step from number `group` on.
    __device__ DecodeWarp(const DecodeTask &task, const int4 &item, int tile_row, int group, int row_group)
        : task_(task), last_(item.z), tile_row_(tile_row) {
        const int lane = threadIdx.x % 32;
        chunks_ = task.block_cols / kChunk;
        at_ = {item.y + group * kChunks / chunks_, group * kChunks % chunks_};
        stride_ = {kGroups * kChunks / chunks_, kGroups * kChunks % chunks_};
        row_ = tile_row + row_group * kRowTiles * 16 + lane / 4;
        token_ = lane / 4;
        element_ = lane % 4 * kElements;
        prefetches_ = row_group == 0 && lane == 0;
        look_up_columns();
    }

    // sums[i][j]: the mma tile of 16 rows number i and 8 tokens number j.
    __device__ void multiply_all(float (&sums)[Shape::kRowTiles][Shape::kTokenTiles][4]) {
        Step even, odd; // one is loaded while the other is multiplied
        bool more = load_next(even);
        while (more) {
            more = load_next(odd);
            multiply(sums, even);
            if (!more) {
                break;
            }
            more = load_next(even);
            multiply(sums, odd);
        }
    }

private:
    static constexpr int kTokenTiles = Shape::kTokenTiles, kRowTiles = Shape::kRowTiles, kGroups = Shape::kGroups;
    static constexpr int kChunk = Shape::kChunk, kChunks = Shape::kChunks, kWords = Shape::kWords;
    static constexpr int kElements = kChunk / 4; // of a row of a chunk that one lane holds

    struct Place {
        int block, chunk; // stored block, chunk within it
    };
    struct Step {
        uint32_t values[kRowTiles][2][kChunks][kWords]; // rows g and g + 8 of each tile
        uint32_t x[kTokenTiles][kChunks][kWords]; // token g of each tile
    };

    __device__ void advance(Place &place, const Place &by) const {
        place.block += by.block;
        place.chunk += by.chunk;
        if (place.chunk >= chunks_) {
            place.chunk -= chunks_;
            ++place.block;
        }
    }

    __device__ Place chunk_after(Place place) const {
        const bool within = place.chunk + 1 < chunks_;
        return {within ? place.block : place.block + 1, within ? place.chunk + 1 : 0};
    }

    // Those of the step at at_, in time for its load of X.
    __device__ void look_up_columns() {
        Place place = at_;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            columns_[c] = place.block < last_ ? __ldcg(task_.columns + place.block) : 0;
            place = chunk_after(place);
        }
    }

    // False where no step is left.
    __device__ bool load_next(Step &step) {
        if (at_.block >= last_) {
            return false;
        }
        Place places[kChunks];
        places[0] = at_;
#pragma unroll
        for (int c = 1; c < kChunks; ++c) {
            places[c] = chunk_after(places[c - 1]);
        }
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            if (c == 0 || places[c].block < last_) {
                load_values(step, c, places[c]);
            } else {
                clear(step, c);
            }
        }
#pragma unroll
        for (int c = 0; c < kChunks; ++c) { // behind the values, which need not wait for the columns
            if (c == 0 || places[c].block < last_) {
                load_x(step, c, places[c]);
            }
        }
        advance(at_, stride_);
        look_up_columns();
        return true;
    }

    __device__ void load_values(Step &step, int c, const Place &place) const {
        const int64_t pitch = int64_t{task_.block_cols} * 2;
        const int64_t line = int64_t{place.block} * task_.block_rows + row_;
        const char *from = task_.values + line * pitch + (place.chunk * kChunk + element_) * 2;
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                load_once(step.values[i][half][c], from + (i * 16 + half * 8) * pitch);
            }
        }
        const int later = place.block + task_.ahead;
        if (prefetches_ && place.chunk == 0 && later < last_) {
            bring_tile_into_l2(task_, later, tile_row_, Shape::kRows);
        }
    }

    __device__ void load_x(Step &step, int c, const Place &place) const {
        const int64_t k = int64_t{columns_[c]} * task_.block_cols + place.chunk * kChunk + element_;
        const bool inside = k < task_.cols; // or none of the lane's elements is: cols is a multiple of 8
        const char *from = task_.x + (token_ * task_.ldx + k) * 2;
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
            load_if(inside && j * 8 + token_ < task_.tokens, step.x[j][c], from + j * 8 * task_.ldx * 2);
        }
    }

    __device__ static void clear(Step &step, int c) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) {
                step.values[i][0][c][w] = step.values[i][1][c][w] = 0;
            }
#pragma unroll
            for (int j = 0; j < kTokenTiles; ++j) {
                step.x[j][c][w] = 0;
            }
        }
    }

    __device__ static void multiply(float (&sums)[kRowTiles][kTokenTiles][4], const Step &step) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
            for (int w = 0; w < kWords; w += 2) { // 16 k's
#pragma unroll
                for (int i = 0; i < kRowTiles; ++i) {
                    const auto &values = step.values[i];
                    const uint32_t a[4] = {values[0][c][w], values[1][c][w], values[0][c][w + 1], values[1][c][w + 1]};
#pragma unroll
                    for (int j = 0; j < kTokenTiles; ++j) {
                        mma<typename Shape::T>(sums[i][j], a, &step.x[j][c][w]);
                    }
                }
            }
        }
    }

    const DecodeTask &task_;
    const int last_;
    const int tile_row_; // first row of the thread block's tile within the block row
    int chunks_; // of a block
    Place at_, stride_; // the next step to load, and how far apart this warp's steps are
    int row_, token_, element_; // of this lane's loads: within the block row, within 8 tokens, within a chunk
    bool prefetches_;
    int columns_[kChunks];
};

// The sums of the tile over the warps that shared its k's, always in the same order; then D, or a part.
template <typename Shape>
__device__ void finish_tile(const DecodeTask &task, const int4 &item, int tile_row, int group, int row_group,
                            const float (&sums)[Shape::kRowTiles][Shape::kTokenTiles][4]) {
    constexpr int kTokens = 8 * Shape::kPass, kPitch = Shape::kRows + 4; // free of bank conflicts
    __shared__ __align__(16) float shared[Shape::kGroups][kTokens][kPitch];
    const int lane = threadIdx.x % 32;
    const int64_t first_feature = int64_t{item.x} * task.block_rows + tile_row;
    const int rows = static_cast<int>(min(int64_t{Shape::kRows}, task.rows - first_feature)); // inside the matrix
    const bool whole = item.w < 0 && rows == Shape::kRows && task.epilogue.vectors;
#pragma unroll
    for (int pass = 0; pass < Shape::kTokenTiles; pass += Shape::kPass) {
        const int tokens = min(kTokens, task.tokens - pass * 8);
        if (tokens <= 0) {
            break;
        }
        if (pass > 0) {
            __syncthreads(); // the reads of the pass before
        }
#pragma unroll
        for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
            for (int j = 0; j < Shape::kPass; ++j) {
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const int row = (row_group * Shape::kRowTiles + i) * 16 + q / 2 * 8 + lane / 4;
                    shared[group][j * 8 + lane % 4 * 2 + q % 2][row] = sums[i][pass + j][q];
                }
            }
        }
        __syncthreads();
        if (Shape::kTokenTiles > 1 && whole) { // one vector of rows a thread
            constexpr int kVectors = Shape::kRows / kVector;
            for (int i = threadIdx.x; i < tokens * kVectors; i += kDecodeThreads) {
                const int row = i % kVectors * kVector;
                float x[kVector] = {};
#pragma unroll
                for (int g = 0; g < Shape::kGroups; ++g) {
                    float part[kVector];
                    load_vector(&shared[g][i / kVectors][row], part);
#pragma unroll
                    for (int e = 0; e < kVector; ++e) {
                        x[e] += part[e];
                    }
                }
                finish_vector(task.epilogue, x, pass * 8 + i / kVectors, first_feature + row);
            }
            continue;
        }
        for (int i = threadIdx.x; i < tokens * Shape::kRows; i += kDecodeThreads) {
            const int row = i % Shape::kRows, token = pass * 8 + i / Shape::kRows;
            float x = 0;
#pragma unroll
            for (int g = 0; g < Shape::kGroups; ++g) {
                x += shared[g][i / Shape::kRows][row];
            }
            if (item.w >= 0) {
                task.parts[(int64_t{item.w} * task.tokens + token) * task.block_rows + tile_row + row] = x;
            } else if (row < rows) {
                finish(task.epilogue, x, token, first_feature + row);
            }
        }
    }
}

// One thread block: one tile of an item, kRows rows of its block row for all tokens.
template <typename Shape>
__global__ __launch_bounds__(kDecodeThreads, Shape::kResident) void decode(const __grid_constant__ DecodeTask task) {
    start_early();
    const int4 item = __ldcg(task.items + blockIdx.x / task.tiles);
    const int tile_row = static_cast<int>(blockIdx.x % task.tiles) * Shape::kRows;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (int block = item.y + warp; block < min(item.z, item.y + task.ahead); block += kDecodeWarps) {
            bring_tile_into_l2(task, block, tile_row, Shape::kRows);
        }
    }
    const int group = warp % Shape::kGroups, row_group = warp / Shape::kGroups;
    DecodeWarp<Shape> part(task, item, tile_row, group, row_group);
    float sums[Shape::kRowTiles][Shape::kTokenTiles][4] = {};
    wait_for_inputs();
    part.multiply_all(sums);
    finish_tile<Shape>(task, item, tile_row, group, row_group, sums);
}

} // namespace bsparse::gpu
