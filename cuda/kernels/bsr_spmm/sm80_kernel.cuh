// spmm and spmm_t with mma.sync: D[tokens, outer] = X[tokens, inner] S^T, block by stored block.
//
// A thread block computes one tile of 128 outer features for some tokens. It walks the tile's stages: slices of inner
// features in which some block row of the tile has a block. A warp owns some pieces of 16 outer features and some of
// the tokens; it skips what is not stored, so that only stored blocks are multiplied.
#pragma once

#include "../common/tile_sm80.cuh"
#include "sm80_launch.h"

namespace bsparse::gpu::sm80 {

constexpr int kThreads = 256;
constexpr int kTokenGroup = 16; // token tiles whose thread blocks are neighbours: they share values and x in L2
constexpr int kSumsStride = kTileOuter + 8; // f32: lines that are written together start 8 banks apart

template <typename Math, bool kTransposed, bool kAny, int kTokens> struct SpmmTraits {
    using T = typename Math::Type;
    using XTile = InnerMajorTile<T, kTokens>;
    using STile = std::conditional_t<kTransposed, OuterMajorTile<T, kTileOuter>, InnerMajorTile<T, kTileOuter>>;
    static constexpr int kStages = kAny ? 1 : kTokens == 32 ? 4 : 3; // in shared memory at a time
    static constexpr int kStageBytes = XTile::kBytes + STile::kBytes;
    static constexpr int kSumsBytes = kTokens * kSumsStride * 4;
    static constexpr int kSharedBytes = kStages * kStageBytes > kSumsBytes ? kStages * kStageBytes : kSumsBytes;
    // Warps 0 to 3, which run on the four quarters of a multiprocessor, own different tokens of the same features:
    // which blocks are stored then keeps no quarter waiting for another.
    static constexpr int kTokenWarps = kTokens == 32 ? 2 : 4;
    static constexpr int kWarpTokens = kTokens / kTokenWarps;
    static constexpr int kTokenTiles = kWarpTokens / 16;            // of mma, of a warp
    static constexpr int kWarpPieces = kPieces / (8 / kTokenWarps); // of outer features, of a warp
    static constexpr uint32_t kAllStored = 0x01010101u * ((1u << kWarpPieces) - 1);
    using Sums = float[kTokenTiles][2 * kWarpPieces][4]; // [16 tokens][8 outer features][of mma], of a warp
};

// Copies stages to shared memory 16 bytes at a time, without waiting.
template <typename Traits, bool kTransposed, int kTokens> class PieceLoader {
    using T = typename Traits::T;
    static constexpr int kLines = kThreads / 8; // of 128 bytes that all threads copy at once
    static constexpr int kSChunks = kTransposed ? kTileOuter / kChunk<T> : 8; // of a line of values
    static constexpr int kPieceChunks = kTransposed ? kPieceOuter / kChunk<T> : 2;

public:
    __device__ PieceLoader(const SpmmTask &task, const SpmmTile &tile, int64_t first_token)
        : inner_(task.inner), tokens_(static_cast<int>(min(task.tokens - first_token, int64_t{kTokens}))),
          x_stride_(task.x.token_stride * kLines) {
        const int line = threadIdx.x / 8, chunk = threadIdx.x % 8;
        const int s_line = threadIdx.x / kSChunks, s_chunk = threadIdx.x % kSChunks;
        x_ = reinterpret_cast<const T *>(task.x.data) + (first_token + line) * task.x.token_stride +
             chunk % 2 * kChunk<T>;
        // The part of a piece's corner that this thread copies.
        values_ = static_cast<const T *>(task.values) + s_chunk % kPieceChunks * kChunk<T> +
                  (kTransposed ? s_line * task.inner_stride : s_line % kPieceOuter * task.outer_stride);
        stages_ = reinterpret_cast<const int32_t *>(task.stages + tile.first_stage) + chunk / 2;
        pieces_ = reinterpret_cast<const int32_t *>(task.pieces + tile.first_stage) +
                  (kTransposed ? s_chunk / kPieceChunks : chunk / 2 * kPieces + s_line / kPieceOuter);
        x_to_ = Traits::XTile::chunk_at(line, chunk);
        s_to_ = Traits::STile::chunk_at(s_line, s_chunk);
        // All chunks of all lines exist: nothing needs to be compared with the ends.
        whole_ = tokens_ == kTokens && task.inner % kSliceInner<T> == 0;
        keep(x_);
        keep(values_);
        keep(x_to_);
        keep(s_to_);
    }

    // Reads what issue will need of the next stage.
    __device__ void fetch() {
        inner_unit_ = __ldg(stages_);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unit_[i] = __ldg(pieces_ + i * (kTransposed ? kPieces : kLines / kPieceOuter));
        }
        stages_ += sizeof(SpmmStage) / sizeof(int32_t);
        pieces_ += sizeof(SpmmPieces) / sizeof(int32_t);
    }

    __device__ void issue(uint32_t x_tile, uint32_t s_tile) const {
        const T *from = x_ + int64_t{inner_unit_} * kUnit;
        const uint32_t to = x_tile + x_to_;
        if (whole_) {
#pragma unroll
            for (int i = 0; i < kTokens / kLines; ++i, from += x_stride_) {
                copy_async_if(inner_unit_ >= 0, to + i * kLines * 128, from);
            }
        } else if (inner_unit_ >= 0) {
            const int line = threadIdx.x / 8;
            const int64_t left = inner_ - int64_t{inner_unit_} * kUnit - threadIdx.x % 2 * kChunk<T>;
            const int bytes = left >= kChunk<T> ? 16 : left > 0 ? static_cast<int>(left * sizeof(T)) : 0;
#pragma unroll
            for (int i = 0; i < kTokens / kLines; ++i, from += x_stride_) {
                copy_async(to + i * kLines * 128, from, line + i * kLines < tokens_ ? bytes : 0);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) { // lines that are a multiple of 8 apart have their chunks in the same order
            constexpr int kBytes = kTransposed ? kSliceInner<T> * kSChunks * 16 : kLines * 128;
            copy_async_if(unit_[i] >= 0, s_tile + s_to_ + i * kBytes, values_ + int64_t{unit_[i]} * kUnit);
        }
    }

private:
    const T *x_, *values_;
    const int32_t *stages_, *pieces_; // of the next stage
    uint32_t x_to_, s_to_;
    int64_t inner_;
    int tokens_; // of the tile that exist
    int64_t x_stride_;
    bool whole_;
    int32_t inner_unit_;
    int32_t unit_[4];
};

// Fills one stage element by element, whatever the strides, the alignment and the blocks; all threads call it together.
template <typename Traits, int kTokens>
__device__ void load_anything(const SpmmTask &task, const SpmmTile &tile, const SpmmStage &stage, int64_t first_token,
                              char *x_tile, char *s_tile) {
    using T = typename Traits::T;
    constexpr int kInner = kStageInner<T>;
    const bool by_tokens = task.x.feature_stride == 1;
    const auto *x = reinterpret_cast<const T *>(task.x.data);
    __syncthreads(); // the stage before has been multiplied
    for (int i = threadIdx.x; i < kTokens * kInner; i += kThreads) {
        const int line = by_tokens ? i / kInner : i % kTokens; // neighbours in memory go to neighbouring threads
        const int column = by_tokens ? i % kInner : i / kTokens;
        const int32_t unit = stage.inner[column / kSliceInner<T>];
        const int64_t inner = int64_t{unit} * kUnit + column % kSliceInner<T>;
        const int64_t token = first_token + line;
        const bool exists = unit >= 0 && inner < task.inner && token < task.tokens;
        *reinterpret_cast<T *>(x_tile + Traits::XTile::element_at(line, column)) =
            exists ? x[index_of(task.x, token, inner)] : T(0.0f);
    }
    for (int i = threadIdx.x; i < Traits::STile::kBytes / 16; i += kThreads) {
        reinterpret_cast<uint4 *>(s_tile)[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    const int outer_count = min(task.block_outer, kTileOuter);
    const int inner_count = min(task.block_inner, kSliceInner<T>);
    const int each = outer_count * inner_count;
    const int count = (stage.last_part - stage.first_part) * each;
    const int64_t block_size = int64_t{task.block_outer} * task.block_inner;
    for (int i = threadIdx.x; i < count; i += kThreads) {
        const SpmmPart part = task.parts[stage.first_part + i / each];
        const int outer = max(part.outer, 0) + i % each / inner_count;
        const int inner = max(part.inner, 0) + i % inner_count;
        const uint32_t row = static_cast<uint32_t>(outer) - part.outer; // within the block, as is column
        const uint32_t column = static_cast<uint32_t>(inner) - part.inner;
        if (outer < kTileOuter && inner < kSliceInner<T> && row < static_cast<uint32_t>(task.block_outer) &&
            column < static_cast<uint32_t>(task.block_inner)) {
            const int64_t from = part.block * block_size + row * task.outer_stride + column * task.inner_stride;
            *reinterpret_cast<T *>(s_tile + Traits::STile::element_at(outer, part.slice * kSliceInner<T> + inner)) =
                static_cast<const T *>(task.values)[from];
        }
    }
    __syncthreads();
}

// One stage of a warp. stored: as SpmmStage::mask, of the warp's pieces.
template <typename Math, typename Traits, bool kFull>
__device__ inline void multiply_stage(typename Traits::Sums &sums, uint32_t x_tile, uint32_t s_tile, int first_line,
                                      int first_outer, uint32_t stored) {
#pragma unroll(kFull && !Math::kSplitSums ? kSlices / 2 : 1) // as far as registers last
    for (int slice = 0; slice < kSlices; ++slice, stored >>= kPieces) {
        if (!kFull && (stored & Traits::kAllStored & 0xff) == 0) {
            continue;
        }
        Fragment<Math, 4> x[Traits::kTokenTiles];
#pragma unroll
        for (int m = 0; m < Traits::kTokenTiles; ++m) {
            Traits::XTile::template load_a<Math>(x[m], x_tile, first_line + 16 * m, slice);
        }
#pragma unroll
        for (int piece = 0; piece < Traits::kWarpPieces; ++piece) {
            if (kFull || (stored >> piece & 1) != 0) {
                Fragment<Math, 4> s;
                Traits::STile::load_b(s.big, s_tile, first_outer + piece * kPieceOuter, slice);
                s.prepare();
#pragma unroll
                for (int m = 0; m < Traits::kTokenTiles; ++m) {
                    multiply<Math, 2>(sums[m] + 2 * piece, x[m], s);
                }
            }
        }
    }
}

// Through shared memory, where each thread finds neighbouring features of one token.
template <typename Traits, int kTokens>
__device__ inline void write_tile(const SpmmTask &task, const typename Traits::Sums &sums, float *shared,
                                  int first_line, int first_outer, int64_t first_token, int64_t tile_outer) {
    const Epilogue &e = task.epilogue;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < Traits::kTokenTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 2 * Traits::kWarpPieces; ++j) {
            float *to = shared + (first_line + 16 * m + lane / 4) * kSumsStride + first_outer + 8 * j + lane % 4 * 2;
            *reinterpret_cast<float2 *>(to) = make_float2(sums[m][j][0], sums[m][j][1]);
            *reinterpret_cast<float2 *>(to + 8 * kSumsStride) = make_float2(sums[m][j][2], sums[m][j][3]);
        }
    }
    __syncthreads();
    const int64_t outer_left = task.outer - tile_outer, tokens_left = task.tokens - first_token;
    if (e.vectors) {
        constexpr int kVectors = kTileOuter / kVector; // of a token
#pragma unroll 1
        for (int i = threadIdx.x; i < kTokens * kVectors; i += kThreads) {
            const int line = i / kVectors, outer = i % kVectors * kVector;
            if (line < tokens_left && outer + kVector <= outer_left) {
                float x[kVector];
                load_vector(shared + line * kSumsStride + outer, x);
                finish_vector(e, x, first_token + line, tile_outer + outer);
            }
        }
        if (outer_left >= kTileOuter) {
            return;
        }
    }
    // Everything, or behind the last whole vector.
    const int outer_count = outer_left < kTileOuter ? static_cast<int>(outer_left) : kTileOuter;
    const int done = e.vectors ? outer_count / kVector * kVector : 0;
    const int left = outer_count - done;
    const bool by_tokens = e.d.feature_stride == 1;
#pragma unroll 1
    for (int i = threadIdx.x; i < kTokens * left; i += kThreads) {
        const int line = by_tokens ? i / left : i % kTokens;
        const int outer = done + (by_tokens ? i % left : i / kTokens);
        if (line < tokens_left) {
            finish(e, shared[line * kSumsStride + outer], first_token + line, tile_outer + outer);
        }
    }
}

template <typename Math, bool kTransposed, bool kAny, int kTokens>
__global__ void __launch_bounds__(kThreads, 2) spmm_sm80(const __grid_constant__ SpmmTask task) {
    using Traits = SpmmTraits<Math, kTransposed, kAny, kTokens>;
    extern __shared__ __align__(128) char shared[];

    // Token tiles go in groups; within one, the longest tiles first, and all token tiles of a tile together.
    const int64_t token_tiles = (task.tokens + kTokens - 1) / kTokens;
    const int64_t group = blockIdx.x / (int64_t{task.tile_count} * kTokenGroup);
    const int64_t within = blockIdx.x - group * task.tile_count * kTokenGroup;
    const int64_t group_tiles = min(int64_t{kTokenGroup}, token_tiles - group * kTokenGroup);
    const SpmmTile tile = task.tiles[within / group_tiles];
    const int64_t first_token = (group * kTokenGroup + within % group_tiles) * kTokens;

    const int warp = threadIdx.x / 32;
    const int first_line = warp % Traits::kTokenWarps * Traits::kWarpTokens;
    const int first_piece = warp / Traits::kTokenWarps * Traits::kWarpPieces;
    const int first_outer = first_piece * kPieceOuter;
    const SpmmStage *stages = task.stages + tile.first_stage;
    const int count = tile.last_stage - tile.first_stage;
    typename Traits::Sums sums = {};
    const auto multiply_stage_at = [&](uint32_t x_tile, uint32_t mask) {
        const uint32_t s_tile = x_tile + Traits::XTile::kBytes;
        const uint32_t stored = mask >> first_piece;
        if ((stored & Traits::kAllStored) == Traits::kAllStored) { // no branches: loads run ahead of products
            multiply_stage<Math, Traits, true>(sums, x_tile, s_tile, first_line, first_outer, stored);
        } else {
            multiply_stage<Math, Traits, false>(sums, x_tile, s_tile, first_line, first_outer, stored);
        }
    };

    if constexpr (kAny) {
        char *s_tile = shared + Traits::XTile::kBytes;
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            load_anything<Traits, kTokens>(task, tile, stages[i], first_token, shared, s_tile);
            multiply_stage_at(shared_address(shared), stages[i].mask);
        }
    } else {
        constexpr int kAhead = Traits::kStages - 1; // stages under way while one is multiplied
        const uint32_t buffers = shared_address(shared);
        const auto x_tile = [&](int stage) { return buffers + stage % Traits::kStages * Traits::kStageBytes; };
        const auto s_tile = [&](int stage) { return x_tile(stage) + Traits::XTile::kBytes; };
        PieceLoader<Traits, kTransposed, kTokens> loader(task, tile, first_token);
        if (count > 0) {
            loader.fetch();
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (i < count) {
                loader.issue(x_tile(i), s_tile(i));
            }
            commit_copies(); // also an empty group: their number tells which stage has come
            if (i + 1 < count) {
                loader.fetch();
            }
        }
        uint32_t mask = count > 0 ? __ldg(&stages[0].mask) : 0;
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            wait_copies<kAhead - 1>();
            __syncthreads(); // stage i has come for everybody, and everybody has multiplied stage i - 1
            if (i + kAhead < count) {
                loader.issue(x_tile(i + kAhead), s_tile(i + kAhead));
            }
            commit_copies();
            if (i + kAhead + 1 < count) {
                loader.fetch();
            }
            const uint32_t stored = mask;
            mask = i + 1 < count ? __ldg(&stages[i + 1].mask) : 0;
            multiply_stage_at(x_tile(i), stored);
        }
        wait_copies<0>();
    }
    __syncthreads(); // the last stage has been multiplied: its memory is free
    write_tile<Traits, kTokens>(task, sums, reinterpret_cast<float *>(shared), first_line, first_outer, first_token,
                                int64_t{tile.number} * kTileOuter);
}

} // namespace bsparse::gpu::sm80
