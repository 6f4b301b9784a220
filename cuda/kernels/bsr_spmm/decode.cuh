// D = S X for few tokens, where time is the time to read S. Each value is read once, from device memory straight into
// the registers of mma.sync: lane (g, t) loads neighbours of row g, k's 8 t to 8 t + 7 of a run of 32, as if they were
// those that the instruction wants from it. X is loaded with the same k's, and a sum may take them in any order.
#pragma once

#include <cstdint>

#include "../common/epilogue.cuh"
#include "../common/mma_sm80.cuh"
#include "../common/sm90.cuh"

namespace bsparse::gpu {

constexpr int kDecodeWarps = 8;
constexpr int kDecodeThreads = kDecodeWarps * 32;
constexpr int kDecodeUnit = 8;  // k's that a lane loads at once, all of one block: widths are multiples of 16

// Everything of a run, passed to the kernels by value.
struct DecodeTask {
    const char *x;      // [tokens, cols], rows of ldx elements
    const char *values; // [blocks, block_rows, block_cols]
    int64_t ldx, rows, cols; // cols a multiple of 8
    int32_t tokens, block_rows, block_cols;
    int32_t tiles;          // of a block row
    int32_t ahead;          // blocks whose values are brought into L2 ahead of their use
    bool plain;             // D is the sum in T, times alpha: a short way out
    const int4 *items;      // {block row, first block, last block, part or -1}
    const int4 *joins;      // {block row, first part, parts, 0}
    const int32_t *columns; // [blocks], block column of each
    int64_t joined;         // elements of D that are sums of parts
    float *parts;           // [parts, tokens, block_rows]
    Epilogue epilogue;
};

// Programmatic dependent launch, where the code is compiled for it (decode.cu asks before it launches that way).
// Before the wait a kernel may read nothing that a kernel writes: X, C and the bias, but also the values, which an
// optimizer's step may have written just before. Those are only brought into L2, where later writes find them. The
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

// 16 bytes of the values, which this multiprocessor needs once; where they are not wanted, the registers stay.
__device__ inline void load_once_if(bool wanted, uint32_t (&to)[4], const char *from) {
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.s32 wanted, %5, 0;\n"
                 "@wanted ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
                 : "l"(from), "r"(static_cast<int>(wanted)));
}

// The same of X, or zeros. Not through __ldg: X may be written while this kernel already runs, before the wait.
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
// of them kGroups warps, of which every one takes every kGroups-th step along k. A step is kStep k's of the item, whose
// blocks stand side by side. Long steps keep more loads under way, where there are registers for them; many tokens need
// those for sums. Then also two warps share X through L1.
template <typename Type, int kTokenTiles_, int kRows_> struct DecodeShape {
    using T = Type;
    static constexpr int kTokenTiles = kTokenTiles_;
    static constexpr int kRows = kRows_;
    static constexpr bool kMany = kTokenTiles > 2;
    static constexpr int kStep = kTokenTiles == 1 ? 64 : 32;
    static constexpr int kUnits = kStep / 4 / kDecodeUnit; // of a row of a step that one lane holds
    static constexpr int kRowGroups = kRows == 64 ? 2 : 1;
    static constexpr int kRowTiles = kRows / 16 / kRowGroups;
    static constexpr int kGroups = kDecodeWarps / kRowGroups;
    static constexpr int kPass = kTokenTiles < 4 ? kTokenTiles : 4; // token tiles summed over warps at a time
    static constexpr int kResident = kTokenTiles < 8 ? 2 : 1; // thread blocks that registers suffice for
};

// One warp's way through the blocks of an item.
template <typename Shape> class DecodeWarp {
public:
    // Reads the rows of values from `row` of the block row on, and every step from number `group` on.
    __device__ DecodeWarp(const DecodeTask &task, const int4 &item, int tile_row, int group, int row_group)
        : task_(task), last_(item.z), tile_row_(tile_row), prefetches_(row_group == 0 && threadIdx.x % 32 == 0) {
        const int lane = threadIdx.x % 32;
        const int k = group * Shape::kStep;
        const int all = (item.z - item.y) * task.block_cols;
        steps_ = k < all ? (all - k - 1) / (kGroups * Shape::kStep) + 1 : 0;
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            const int mine = k + u * 32 + lane % 4 * kDecodeUnit;
            at_[u] = {item.y + mine / task.block_cols, mine % task.block_cols};
        }
        stride_ = {kGroups * Shape::kStep / task.block_cols, kGroups * Shape::kStep % task.block_cols};
        row_ = tile_row + row_group * kRowTiles * 16 + lane / 4;
        token_ = lane / 4;
        look_up_columns();
    }

    // sums[i][j]: the mma tile of 16 rows number i and 8 tokens number j. Waits for the inputs on the way.
    __device__ void multiply_all(float (&sums)[Shape::kRowTiles][Shape::kTokenTiles][4]) {
        Values even = {}, odd = {}; // one is loaded while the other is multiplied
        Inputs x[Shape::kMany ? 2 : 1];
        wait_for_inputs();
        if (steps_ == 0) {
            return;
        }
        load(even);
        if (Shape::kMany) {
            load(x[0]);
        }
#pragma unroll 1
        for (int left = steps_;; left -= 2) {
            load_and_multiply(sums, even, odd, x[0], x[Shape::kMany], left > 1);
            if (left <= 1) {
                break;
            }
            load_and_multiply(sums, odd, even, x[Shape::kMany], x[0], left > 2);
            if (left <= 2) {
                break;
            }
        }
    }

private:
    static constexpr int kTokenTiles = Shape::kTokenTiles, kRowTiles = Shape::kRowTiles, kGroups = Shape::kGroups;
    static constexpr int kUnits = Shape::kUnits;

    struct Place {
        int block, within; // stored block, k within it
    };
    using Values = uint32_t[kRowTiles][2][kUnits][4]; // of a step: rows g and g + 8 of each tile
    using Inputs = uint32_t[kTokenTiles][kUnits][4];  // of a step: token g of each tile

    // Many tokens: X is loaded a step ahead, as the values are. Few: just before it is used, while the next values
    // come.
    __device__ void load_and_multiply(float (&sums)[kRowTiles][kTokenTiles][4], const Values &values,
                                      Values &next_values, Inputs &x, Inputs &next_x, bool more) {
        if (!Shape::kMany) {
            load(x);
        }
        if (more) {
            load(next_values);
            if (Shape::kMany) {
                load(next_x);
            }
        }
        multiply(sums, values, x);
    }

    // Of the step at at_, in time for its load of X; -1 behind the last block.
    __device__ void look_up_columns() {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            columns_[u] = at_[u].block < last_ ? __ldcg(task_.columns + at_[u].block) : -1;
        }
    }

    __device__ void load(Values &values) const {
        const int64_t pitch = int64_t{task_.block_cols} * 2;
        const char *from[kUnits];
        bool inside[kUnits], all = true;
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            inside[u] = at_[u].block < last_;
            all = all && inside[u];
            from[u] = task_.values + (int64_t{at_[u].block} * task_.block_rows + row_) * pitch + at_[u].within * 2;
        }
        if (!all) { // a last step
            clear(values);
        }
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int u = 0; u < kUnits; ++u) {
                    load_once_if(inside[u], values[i][half][u], from[u]);
                    from[u] += 8 * pitch;
                }
            }
        }
        // One block a step at most: of blocks whose width is no multiple of 32, some are not brought.
        if (Shape::kMany && prefetches_ && at_[0].within == 0 && at_[0].block + task_.ahead < last_) {
            bring_tile_into_l2(task_, at_[0].block + task_.ahead, tile_row_, Shape::kRows);
        }
    }

    // Behind the values of the same step, which need not wait for the columns. Goes on to the next step.
    __device__ void load(Inputs &x) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            const int64_t k = int64_t{columns_[u]} * task_.block_cols + at_[u].within;
            const bool inside = columns_[u] >= 0 && k < task_.cols; // or none of the unit is: cols is a multiple of 8
            const char *from = task_.x + (token_ * task_.ldx + k) * 2;
#pragma unroll
            for (int j = 0; j < kTokenTiles; ++j) {
                load_if(inside && j * 8 + token_ < task_.tokens, x[j][u], from + j * 8 * task_.ldx * 2);
            }
            at_[u].block += stride_.block;
            at_[u].within += stride_.within;
            if (at_[u].within >= task_.block_cols) {
                at_[u].within -= task_.block_cols;
                ++at_[u].block;
            }
        }
        look_up_columns();
    }

    __device__ static void clear(Values &values) {
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    values[i][0][u][w] = values[i][1][u][w] = 0;
                }
            }
        }
    }

    __device__ static void multiply(float (&sums)[kRowTiles][kTokenTiles][4], const Values &all, const Inputs &x) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
#pragma unroll
            for (int w = 0; w < 4; w += 2) { // 16 k's
#pragma unroll
                for (int i = 0; i < kRowTiles; ++i) {
                    const auto &values = all[i];
                    const uint32_t a[4] = {values[0][u][w], values[1][u][w], values[0][u][w + 1], values[1][u][w + 1]};
#pragma unroll
                    for (int j = 0; j < kTokenTiles; ++j) {
                        mma<typename Shape::T>(sums[i][j], a, &x[j][u][w]);
                    }
                }
            }
        }
    }

    const DecodeTask &task_;
    const int last_;
    const int tile_row_; // first row of the thread block's tile within the block row
    const bool prefetches_;
    int steps_; // of this warp
    Place at_[kUnits], stride_; // this lane's units of the next step to load, and how far apart this warp's steps are
    int row_, token_; // of this lane's loads: within the block row, within 8 tokens
    int columns_[kUnits];
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
                    const int token = j * 8 + lane % 4 * 2 + q % 2;
                    if (Shape::kTokenTiles > 1 || token < tokens) {
                        shared[group][token][row] = sums[i][pass + j][q];
                    }
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
            if (task.plain && item.w < 0) {
                if (row < rows) {
                    using T = typename Shape::T;
                    const DenseView &d = task.epilogue.d;
                    reinterpret_cast<T *>(d.data)[token * d.token_stride + first_feature + row] =
                        from_f32<T>(x * task.epilogue.alpha);
                }
            } else if (item.w >= 0) {
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
    part.multiply_all(sums);
    finish_tile<Shape>(task, item, tile_row, group, row_group, sums);
}

} // namespace bsparse::gpu
