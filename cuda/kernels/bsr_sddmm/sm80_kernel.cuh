// sddmm with mma.sync: s_values = alpha A B at the stored blocks + beta s_values, the sum running over the tokens.
//
// A thread block computes one tile for one part of the tokens. Both operands are [tokens, features], so both lie in
// shared memory with the tokens going from line to line and are transposed on the way to the registers. A warp owns 32
// rows and some pieces of 16 columns.
#pragma once

#include "../common/tile_sm80.cuh"
#include "sm80_launch.h"

namespace bsparse::gpu::sm80 {

constexpr int kThreads = 256;
constexpr int kPiece = 16; // rows or columns: those of one fragment
constexpr int kSumsStride = kTileColumns + 8; // f32: lines that are written together start 8 banks apart

template <typename Math, bool kAny, int kRows> struct SddmmTraits {
    using T = typename Math::Type;
    using ATile = OuterMajorTile<T, kRows>;
    using BTile = OuterMajorTile<T, kTileColumns>;
    static constexpr int kStages = kAny ? 1 : kRows == 128 ? 3 : 4; // in shared memory at a time
    static constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
    static constexpr int kSumsBytes = kRows * kSumsStride * 4;
    static constexpr int kSharedBytes = kStages * kStageBytes > kSumsBytes ? kStages * kStageBytes : kSumsBytes;
    static constexpr int kRowWarps = kRows / 32;
    static constexpr int kColumnWarps = kThreads / 32 / kRowWarps;
    static constexpr int kPieces = kTileColumns / kPiece / kColumnWarps; // of a warp's columns
};

// Where column i of a tile lies.
struct TileColumn {
    int64_t block, column; // column within the block
    __device__ TileColumn(const SddmmTask &task, const SddmmTile &tile, int i) {
        const uint32_t at = static_cast<uint32_t>(tile.first_column) + i;
        block = tile.first_block + at / task.block_cols;
        column = at % task.block_cols;
    }
    __device__ int64_t in_matrix(const SddmmTask &task) const {
        return int64_t{task.minors[block]} * task.block_cols + column;
    }
};

// Copies one operand's part of a stage, 16 bytes at a time, without waiting. Each thread copies at one chunk of a line.
template <typename Tile, typename T> class LineLoader {
    static constexpr int kLines = kThreads / Tile::kChunks; // that all threads copy at once

public:
    static __device__ int chunk() { return threadIdx.x % Tile::kChunks; }

    // From `feature` on, this thread's chunk, `left` features exist. whole: never a part of a chunk.
    __device__ LineLoader(const DenseView &view, int64_t feature, int64_t left, int64_t first_token, bool whole)
        : stride_(view.token_stride * kLines), whole_(whole), bytes_(left >= kChunk<T> ? 16
                                                                     : left > 0 ? static_cast<int>(left * sizeof(T))
                                                                                : 0) {
        const int line = threadIdx.x / Tile::kChunks;
        from_ = reinterpret_cast<const T *>(view.data) + (first_token + line) * view.token_stride + feature;
        to_ = Tile::chunk_at(line, chunk());
    }

    // tokens_left: from the stage's first token to the end. What lies behind the last feature is left as it is: it
    // reaches only sums of elements that do not exist.
    __device__ void issue(uint32_t tile, int64_t tokens_left) {
        const int line = threadIdx.x / Tile::kChunks;
        const bool plain = whole_ && tokens_left >= kStageInner<T>;
#pragma unroll
        for (int i = 0; i < kStageInner<T> / kLines; ++i, from_ += stride_) {
            const uint32_t to = tile + to_ + i * kLines * Tile::kChunks * 16; // chunks in the order of the first line
            if (plain) {
                copy_async_if(bytes_ != 0, to, from_);
            } else {
                copy_async(to, from_, line + i * kLines < tokens_left ? bytes_ : 0);
            }
        }
    }

private:
    static_assert(kLines % 8 == 0, "chunks are exchanged with a period of 8 lines");
    int64_t stride_;
    bool whole_;
    int bytes_;
    const T *from_;
    uint32_t to_;
};

// Fills one operand's part of a stage element by element. column_of(i) is the feature of column i, or -1.
template <typename Tile, typename T, typename ColumnOf>
__device__ void load_anything(const DenseView &view, int64_t first_token, int64_t tokens_left, int columns, char *tile,
                              const ColumnOf &column_of) {
    const bool by_tokens = view.feature_stride == 1;
    for (int i = threadIdx.x; i < columns * kStageInner<T>; i += kThreads) {
        // Neighbours in memory go to neighbouring threads.
        const int line = by_tokens ? i / columns : i % kStageInner<T>;
        const int column = by_tokens ? i % columns : i / kStageInner<T>;
        const int64_t feature = column_of(column);
        const bool exists = feature >= 0 && line < tokens_left;
        *reinterpret_cast<T *>(tile + Tile::element_at(line, column)) =
            exists ? reinterpret_cast<const T *>(view.data)[index_of(view, first_token + line, feature)] : T(0.0f);
    }
}

// One stage of a warp. Unless kFull, only row_pieces of its two and column_pieces of its kPieces exist.
template <typename Math, typename Traits, bool kFull>
__device__ inline void multiply_stage(float (&sums)[2][2 * Traits::kPieces][4], uint32_t a_tile, uint32_t b_tile,
                                      int first_row, int first_column, int row_pieces, int column_pieces) {
#pragma unroll(Math::kSplitSums ? 1 : kSlices) // as far as registers last
    for (int slice = 0; slice < kSlices; ++slice) {
        Fragment<Math, 4> a[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            Traits::ATile::template load_a<Math>(a[m], a_tile, first_row + kPiece * m, slice);
        }
#pragma unroll
        for (int n = 0; n < Traits::kPieces; ++n) {
            if (!kFull && n >= column_pieces) {
                continue;
            }
            Fragment<Math, 4> b;
            Traits::BTile::load_b(b.big, b_tile, first_column + kPiece * n, slice);
            b.prepare();
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                if (kFull || m < row_pieces) {
                    multiply<Math, 2>(sums[m] + 2 * n, a[m], b);
                }
            }
        }
    }
}

// Through shared memory, where each thread finds neighbours of one row of a block: kWidth of them.
template <int kWidth>
__device__ inline void write_tile(const SddmmTask &task, const SddmmTile &tile, const float *shared, int row_count) {
    static_assert(kWidth == 1 || kWidth == kVector);
    const int parts = tile.columns / kWidth; // of a row
    const int64_t first_row = int64_t{tile.block_row} * task.block_rows + tile.first_row;
    const int64_t block_size = int64_t{task.block_rows} * task.block_cols;
#pragma unroll 1
    for (int i = threadIdx.x; i < row_count * parts; i += kThreads) {
        const int row = i / parts, part = i % parts * kWidth;
        const TileColumn at(task, tile, part);
        const int64_t column = at.in_matrix(task);
        const int64_t to = blockIdx.y * task.split_elements + at.block * block_size +
                           (int64_t{tile.first_row} + row) * task.block_cols + at.column;
        float x[kWidth], before[kWidth] = {};
#pragma unroll
        for (int j = 0; j < kWidth; ++j) { // the padding of a block at the matrix's edge is zero, whatever alpha is
            const bool exists = first_row + row < task.rows && column + j < task.cols;
            x[j] = exists ? task.alpha * shared[row * kSumsStride + part + j] : 0;
        }
        if (task.beta != 0) {
            if constexpr (kWidth == 1) {
                before[0] = load_as_f32(task.values, task.values_dtype, to);
            } else {
                load_vector_as_f32(task.values, task.values_dtype, to, before);
            }
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                x[j] += task.beta * before[j];
            }
        }
        if constexpr (kWidth == 1) {
            store_from_f32(task.values, task.values_dtype, to, x[0]);
        } else {
            store_vector_from_f32(task.values, task.values_dtype, to, x);
        }
    }
}

template <typename Math, bool kAny, int kRows>
__global__ void __launch_bounds__(kThreads, 2) sddmm_sm80(const __grid_constant__ SddmmTask task) {
    using Traits = SddmmTraits<Math, kAny, kRows>;
    using T = typename Traits::T;
    using ATile = typename Traits::ATile;
    using BTile = typename Traits::BTile;
    extern __shared__ __align__(128) char shared[];

    const SddmmTile tile = task.tiles[blockIdx.x];
    const int64_t first_token = blockIdx.y * task.split_tokens;
    const int64_t tokens = min(task.split_tokens, task.tokens - first_token); // may be 0 or less: the sums are then 0
    const int count = static_cast<int>((tokens + kStageInner<T> - 1) / kStageInner<T>);
    const int64_t first_row = int64_t{tile.block_row} * task.block_rows + tile.first_row;
    const int row_count = min(kRows, task.block_rows - tile.first_row); // of the block, padding included

    const int warp = threadIdx.x / 32;
    const int warp_row = warp % Traits::kRowWarps * 32;
    const int warp_column = warp / Traits::kRowWarps * Traits::kPieces * kPiece;
    const int row_pieces = (row_count - warp_row + kPiece - 1) / kPiece;
    const int column_pieces = (tile.columns - warp_column + kPiece - 1) / kPiece;
    const bool full = row_pieces >= 2 && column_pieces >= Traits::kPieces;
    const bool nothing = row_pieces <= 0 || column_pieces <= 0;
    float sums[2][2 * Traits::kPieces][4] = {}; // [16 rows][8 columns][of mma]
    const auto multiply_stage_at = [&](uint32_t a_tile) {
        const uint32_t b_tile = a_tile + ATile::kBytes;
        if (full) {
            multiply_stage<Math, Traits, true>(sums, a_tile, b_tile, warp_row, warp_column, 2, Traits::kPieces);
        } else if (!nothing) {
            multiply_stage<Math, Traits, false>(sums, a_tile, b_tile, warp_row, warp_column, row_pieces, column_pieces);
        }
    };

    if constexpr (kAny) {
        const auto row_of = [&](int i) { return i < row_count && first_row + i < task.rows ? first_row + i : -1; };
        const auto column_of = [&](int i) {
            const int64_t column = i < tile.columns ? TileColumn(task, tile, i).in_matrix(task) : -1;
            return column < task.cols ? column : -1;
        };
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const int64_t done = int64_t{i} * kStageInner<T>;
            __syncthreads(); // the stage before has been multiplied
            load_anything<ATile, T>(task.a, first_token + done, tokens - done, kRows, shared, row_of);
            load_anything<BTile, T>(task.b, first_token + done, tokens - done, kTileColumns, shared + ATile::kBytes,
                                    column_of);
            __syncthreads();
            multiply_stage_at(shared_address(shared));
        }
    } else {
        constexpr int kAhead = Traits::kStages - 1; // stages under way while one is multiplied
        const uint32_t buffers = shared_address(shared);
        const auto a_tile = [&](int stage) { return buffers + stage % Traits::kStages * Traits::kStageBytes; };
        const int a_first = LineLoader<ATile, T>::chunk() * kChunk<T>;
        const int64_t rows_left = min(first_row + row_count, task.rows) - first_row - a_first;
        LineLoader<ATile, T> a_loader(task.a, first_row + a_first, rows_left, first_token, task.rows % kChunk<T> == 0);
        const int b_first = LineLoader<BTile, T>::chunk() * kChunk<T>;
        const int64_t b_column = b_first < tile.columns ? TileColumn(task, tile, b_first).in_matrix(task) : task.cols;
        LineLoader<BTile, T> b_loader(task.b, b_column, task.cols - b_column, first_token, task.cols % kChunk<T> == 0);
        const auto issue = [&](int stage) {
            const int64_t left = tokens - int64_t{stage} * kStageInner<T>;
            a_loader.issue(a_tile(stage), left);
            b_loader.issue(a_tile(stage) + ATile::kBytes, left);
        };
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (i < count) {
                issue(i);
            }
            commit_copies(); // also an empty group: their number tells which stage has come
        }
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            wait_copies<kAhead - 1>();
            __syncthreads(); // stage i has come for everybody, and everybody has multiplied stage i - 1
            if (i + kAhead < count) {
                issue(i + kAhead);
            }
            commit_copies();
            multiply_stage_at(a_tile(i));
        }
        wait_copies<0>();
    }
    __syncthreads(); // the last stage has been multiplied: its memory is free
    auto *sums_tile = reinterpret_cast<float *>(shared);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 2 * Traits::kPieces; ++n) {
            float *to = sums_tile + (warp_row + 16 * m + lane / 4) * kSumsStride + warp_column + 8 * n + lane % 4 * 2;
            *reinterpret_cast<float2 *>(to) = make_float2(sums[m][n][0], sums[m][n][1]);
            *reinterpret_cast<float2 *>(to + 8 * kSumsStride) = make_float2(sums[m][n][2], sums[m][n][3]);
        }
    }
    __syncthreads();
    write_tile<kAny ? 1 : kVector>(task, tile, sums_tile, row_count);
}

} // namespace bsparse::gpu::sm80
