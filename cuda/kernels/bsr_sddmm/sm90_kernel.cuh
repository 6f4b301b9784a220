// bsr_sddmm on Hopper: values = alpha * dY^T X at the stored blocks + beta * values, bf16 or f16 in, f32 sums.
//
// One thread block for each multiprocessor: one thread loads, two warpgroups multiply. A stage holds some tokens of the
// tile's strips of dY and of this half's chunks of X, all as boxes [tokens][64] in the order of memory, which wgmma
// reads as MN-major operands. Each warpgroup has one strip, or both the same, and multiplies it by a run of
// neighbouring chunks. Where two thread blocks are a cluster, each loads one strip for both.
//
// A tile that is cut into ranges of tokens is added up by whoever finishes last: the others have left their sums in the
// workspace. Nobody waits for anybody there, and the order of addition is that of the tokens: the same bits in every
// run.
#pragma once

#include <cstring>
#include <cuda_runtime.h>
#include <type_traits>
#include <utility>

#include "../common/sm90.cuh"
#include "../common/wgmma.cuh"
#include "sm90_launch.h"
#include "sm90_pace.cuh"

namespace bsparse::gpu::sddmm_sm90 {

constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kLoaderRegisters = 56, kMathRegisters = 224;
constexpr int kSums = 32; // f32 of a thread for each chunk: its part of [64, 64]
constexpr int kDepth = 16; // tokens of one wgmma

// Shared memory: stages, each strips, chunks; barriers; a flag for each warpgroup. kHalves_: thread blocks of a
// cluster.
template <Layout kLayout, int kHalves_> struct Shared {
    static constexpr Shape kShape = shape_of(kLayout);
    static constexpr int kHalves = kHalves_;
    static constexpr bool kAlwaysPairs = kLayout == Layout::kPair; // of strips
    static constexpr int kMostChunks = kShape.boxes - (kAlwaysPairs ? 2 : 1);
    static constexpr uint32_t kStages = kShape.stages;
    static constexpr uint32_t kBoxBytes = kTokens * kEdge * 2;
    static constexpr uint32_t kStageBytes = kShape.boxes * kBoxBytes;
    static constexpr uint32_t kAlign = 1024; // of the swizzle
    static constexpr uint32_t kBytes = kStages * kStageBytes + kStages * 16 + 8;
    static_assert(kBytes + kAlign <= 227 * 1024 && kBoxBytes % kAlign == 0);

    uint32_t start;

    __device__ uint32_t stage(uint32_t i) const { return start + i * kStageBytes; }
    __device__ uint32_t full(uint32_t i) const { return start + kStages * kStageBytes + i * 8; }
    __device__ uint32_t empty(uint32_t i) const { return full(kStages + i); }
};

// All lists into L2, by all threads of the grid: whoever starts reads three of them one after the other, and has
// nothing else to do meanwhile.
__device__ __forceinline__ void prefetch_lists(const Params &params, uint32_t thread, uint32_t threads) {
    constexpr uint32_t kLine = 128;
    const char *lists = reinterpret_cast<const char *>(params.first_segment);
    for (uint32_t at = thread * kLine; at < params.lists_bytes; at += threads * kLine) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(lists + at) : "memory");
    }
}

__device__ __forceinline__ int step_of(int32_t fraction, int32_t steps) {
    return static_cast<int>((int64_t{fraction} * steps + kFractions / 2) / kFractions);
}

template <class S> __device__ __forceinline__ int strips_of(const Tile &tile) {
    return S::kAlwaysPairs ? 2 : tile.strips();
}

// One thread: everything that this half's segments read, in order.
template <class S>
__device__ __forceinline__ void load(const Params &params, const CUtensorMap *dy_map, const CUtensorMap *x_map,
                                     S shared, int first, int last, int rank) {
    constexpr int kLoaded = S::kHalves == 2 ? 1 : 2; // strips at most; the other half loads its own
    sm90::Ring ring{0, 1};
    Pace pace(params, !S::kAlwaysPairs && rank == 0); // whoever is in its cluster depends on its boxes
    for (int i = first; i < last; ++i) {
        const Segment &segment = params.segments[i];
        const Half half = segment.tile.half[rank];
        const int chunks = half.chunks(), strips = strips_of<S>(segment.tile);
        int row[kLoaded], column[S::kMostChunks];
#pragma unroll
        for (int s = 0; s < kLoaded; ++s) {
            row[s] = segment.tile.row[S::kHalves == 2 ? rank : s];
        }
#pragma unroll
        for (int c = 0; c < S::kMostChunks; ++c) {
            column[c] = c < chunks ? params.chunks[half.first_chunk + c].column : 0;
        }
        const int begin = step_of(segment.begin, params.steps), end = step_of(segment.end, params.steps);
        const bool whole_tile = segment.parts == 1;
        for (int step = begin; step < end; ++step) {
            const uint32_t full = shared.full(ring.stage);
            const uint32_t stage = shared.stage(ring.stage);
            pace.keep(step, whole_tile);
            sm90::wait(shared.empty(ring.stage), ring.parity); // in all halves
            sm90::arrive_expect_bytes(full, (strips + chunks) * S::kBoxBytes);
            if constexpr (S::kHalves == 2) {
                if (S::kAlwaysPairs || rank < strips) {
                    constexpr uint16_t kBoth = 3;
                    sm90::load_box_multicast(stage + rank * S::kBoxBytes, dy_map, full, kBoth, row[0], step * kTokens);
                }
            } else {
#pragma unroll
                for (int s = 0; s < kLoaded; ++s) {
                    if (s < strips) {
                        sm90::load_box(stage + s * S::kBoxBytes, dy_map, full, row[s], step * kTokens);
                    }
                }
            }
#pragma unroll
            for (int c = 0; c < S::kMostChunks; ++c) {
                if (c < chunks) {
                    sm90::load_box(stage + (strips + c) * S::kBoxBytes, x_map, full, column[c], step * kTokens);
                }
            }
            ring.advance<S::kStages>();
        }
    }
}

// This warpgroup no longer reads a stage, into which all halves write. wgmma keeps its warps together.
template <class S> __device__ __forceinline__ void release(S shared, uint32_t stage, int thread) {
    if constexpr (S::kHalves == 1) {
        if (thread == 0) {
            sm90::arrive(shared.empty(stage));
        }
    } else if (thread < S::kHalves) {
        sm90::arrive_remote(shared.empty(stage), thread);
    }
}

// sums += strip^T [64, tokens] times chunks [tokens, 64 * kCount] over some steps, at least one.
template <class T, class S, int kCount>
__device__ __forceinline__ void multiply_steps(float (&sums)[kCount * kSums], S shared, uint32_t strip_offset,
                                               uint32_t chunks_offset, int steps, sm90::Ring &ring, int thread) {
    uint32_t previous = 0;
    for (int step = 0; step < steps; ++step) {
        sm90::wait(shared.full(ring.stage), ring.parity);
        const uint32_t stage = shared.stage(ring.stage);
        sm90::pin(sums);
        sm90::fence_wgmma();
#pragma unroll
        for (int k = 0; k < kTokens; k += kDepth) {
            constexpr uint32_t kLine = kEdge * 2, kEightLines = 8 * kLine;
            const uint64_t a = sm90::describe(stage + strip_offset + k * kLine, S::kBoxBytes, kEightLines);
            const uint64_t b = sm90::describe(stage + chunks_offset + k * kLine, S::kBoxBytes, kEightLines);
            sm90::multiply<T, kCount * kEdge, true, true>(sums, a, b, true);
        }
        sm90::commit_wgmma();
        sm90::pin(sums);
        sm90::wait_wgmma<1>();
        if (step > 0) {
            release(shared, previous, thread);
        }
        previous = ring.stage;
        ring.advance<S::kStages>();
    }
    sm90::wait_wgmma<0>();
    release(shared, previous, thread);
    sm90::pin(sums);
}

// The stages of a tile in which this warpgroup has nothing to do.
template <class S>
__device__ __forceinline__ void pass_steps(S shared, int steps, sm90::Ring &ring, int warpgroup, int thread) {
    for (int step = 0; step < steps; ++step) {
        sm90::wait(shared.full(ring.stage), ring.parity);
        sm90::sync_named(1 + warpgroup, kWarpgroup); // or a slow warp would miss the stage's next phase
        release(shared, ring.stage, thread);
        ring.advance<S::kStages>();
    }
}

// What one warpgroup does in a segment.
struct Share {
    int row, first_chunk, chunks; // chunks: how many are its own
    int strip, skipped; // its strip of the stage, and the boxes before its chunks
    int steps, parts, part, width, first_unit, meeting;
};

template <class S>
__device__ __forceinline__ Share share_of(const Params &params, int segment_index, int rank, int warpgroup) {
    const Segment &segment = params.segments[segment_index];
    const Half &half = segment.tile.half[rank];
    const int others = warpgroup == 0 ? 0 : half.only_0;
    const int strips = strips_of<S>(segment.tile);
    return {segment.tile.row[warpgroup],
            half.first_chunk + others,
            half.of_strip(warpgroup),
            strips == 1 ? 0 : warpgroup,
            strips + others,
            step_of(segment.end, params.steps) - step_of(segment.begin, params.steps),
            segment.parts,
            segment.part,
            segment.width,
            segment.first_unit,
            segment.meeting};
}

// Leaves the sums of one part of a tile in the workspace. Whether all parts are there: then sums is their total.
template <int kHalves, int kCount>
__device__ __forceinline__ bool meet(float (&sums)[kCount], const Params &params, const Share &share, int owner,
                                     int warpgroup, int thread, int *last_flag) {
    constexpr int kUnit = kEdge * kEdge / 4; // float4
    const int64_t part_stride = int64_t{kHalves} * 2 * share.width * kUnit;
    float4 *all =
        reinterpret_cast<float4 *>(params.sums) + (share.first_unit + int64_t{owner} * share.width) * kUnit + thread;
    float4 *mine = all + share.part * part_stride;
#pragma unroll
    for (int f = 0; f < kCount / 4; ++f) {
        __stcg(mine + f * kWarpgroup, make_float4(sums[4 * f], sums[4 * f + 1], sums[4 * f + 2], sums[4 * f + 3]));
    }
    __threadfence();
    sm90::sync_named(1 + warpgroup, kWarpgroup);
    if (thread == 0) {
        uint32_t *counter = params.counters + share.meeting * kCounters + owner;
        *last_flag = atomicAdd(counter, 1) == static_cast<uint32_t>(share.parts - 1);
        __threadfence();
    }
    sm90::sync_named(1 + warpgroup, kWarpgroup);
    if (*last_flag == 0) {
        return false;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        sums[i] = 0;
    }
    for (int part = 0; part < share.parts; ++part) {
        const float4 *other = all + part * part_stride;
#pragma unroll
        for (int f = 0; f < kCount / 4; ++f) {
            const float4 x = __ldcg(other + f * kWarpgroup);
            sums[4 * f] += x.x;
            sums[4 * f + 1] += x.y;
            sums[4 * f + 2] += x.z;
            sums[4 * f + 3] += x.w;
            if (f % 8 == 7) {
                asm volatile("" ::: "memory"); // all loads at once would need more registers than there are
            }
        }
    }
    return true;
}

__device__ __forceinline__ float2 load_pair(const float *from) { return *reinterpret_cast<const float2 *>(from); }
__device__ __forceinline__ float2 load_pair(const __nv_bfloat16 *from) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(from));
}
__device__ __forceinline__ float2 load_pair(const __half *from) {
    return __half22float2(*reinterpret_cast<const __half2 *>(from));
}

template <class T> __device__ __forceinline__ uint32_t round_pair(float x, float y) {
    uint32_t bits;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        memcpy(&bits, &pair, sizeof bits);
    } else {
        const __half2 pair = __floats2half2_rn(x, y);
        memcpy(&bits, &pair, sizeof bits);
    }
    return bits;
}

// Thread t of four that are neighbours gets element t of each one's four.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&v)[4], int t) {
#pragma unroll
    for (int m = 1; m < 4; m *= 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = m == 1 ? 2 * i : i, high = low + m;
            const bool upper = (t & m) != 0;
            const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, upper ? v[low] : v[high], m);
            v[low] = upper ? other : v[low];
            v[high] = upper ? v[high] : other;
        }
    }
}

// Where this thread's share of [64, 64] results goes: x[4 j + 2 h + c] to row 8 h and column 8 j + c of it.
template <class Out> struct Target {
    Out *to; // row 0, column 0 of the share
    int64_t pitch; // elements
    int rows_left, cols_left; // of the matrix from there on: what lies beyond is padding
};

template <int kFirst, int kCount>
__device__ __forceinline__ void store(const Target<float> &target, const float (&x)[kCount], int) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        float *to = target.to + i % 2 * 8 * target.pitch + i / 2 * 8;
        *reinterpret_cast<float2 *>(to) = make_float2(x[kFirst + 2 * i], x[kFirst + 2 * i + 1]);
    }
}

// 16 bytes at a time: the quad's threads first exchange their pairs of columns.
template <int kFirst, int kCount, class Out>
__device__ __forceinline__ void store(const Target<Out> &target, const float (&x)[kCount], int t) {
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int pair = kFirst + 4 * (j + i) + 2 * h;
                v[i] = round_pair<Out>(x[pair], x[pair + 1]);
            }
            transpose_in_quad(v, t);
            Out *to = target.to - 2 * t + 8 * h * target.pitch + 8 * (j + t);
            *reinterpret_cast<uint4 *>(to) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

// x[kFirst] on: one chunk's.
template <int kFirst, class Out, int kCount>
__device__ __forceinline__ void finish_chunk(const Target<Out> &target, float (&x)[kCount], float alpha, float beta,
                                             int t) {
    if (beta != 0) {
        float2 before[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            before[i] = load_pair(target.to + i % 2 * 8 * target.pitch + i / 2 * 8);
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            x[kFirst + 2 * i] = alpha * x[kFirst + 2 * i] + beta * before[i].x;
            x[kFirst + 2 * i + 1] = alpha * x[kFirst + 2 * i + 1] + beta * before[i].y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            x[kFirst + i] *= alpha;
        }
    }
    if (target.rows_left < 9 || target.cols_left < 58) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const bool inside = i / 2 % 2 * 8 < target.rows_left && i / 4 * 8 + i % 2 < target.cols_left;
            x[kFirst + i] = inside ? x[kFirst + i] : 0; // also where X or dY hold infinity or NaN
        }
    }
    store<kFirst>(target, x, t);
}

// Where the chunks of a share go.
template <int kCount> struct Places {
    int place[kCount], column[kCount];
};

// All chunks' results; c: 0, 1, ... kCount - 1.
template <class Out, int... c, int kCount>
__device__ __forceinline__ void finish(float (&sums)[kCount * kSums], const Params &params, int row,
                                       const Places<kCount> &places, int thread, std::integer_sequence<int, c...>) {
    const int t = thread % 4;
    const int own_row = thread / 32 * 16 + thread % 32 / 4;
    const auto target = [&](int place, int column) {
        Out *chunk = static_cast<Out *>(params.values) + int64_t{place} * kEdge;
        return Target<Out>{chunk + int64_t{own_row} * params.block_cols + 2 * t, params.block_cols,
                           params.rows - row - own_row, params.cols - column - 2 * t};
    };
    (finish_chunk<c * kSums>(target(places.place[c], places.column[c]), sums, params.alpha, params.beta, t), ...);
}

// One of the two that multiply.
template <class T, class S> struct Warpgroup {
    const Params &params;
    S shared;
    int *last_flag;
    int rank, index, thread; // index: which one of the two
    sm90::Ring ring;

    template <int kCount> __device__ __forceinline__ void multiply(const Share &share) {
        Places<kCount> places; // read now, used later
        float sums[kCount * kSums];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const Chunk &chunk = params.chunks[share.first_chunk + i];
            places.place[i] = chunk.place[index];
            places.column[i] = chunk.column;
        }
#pragma unroll
        for (int i = 0; i < kCount * kSums; ++i) {
            sums[i] = 0;
        }
        multiply_steps<T, S, kCount>(sums, shared, share.strip * S::kBoxBytes, share.skipped * S::kBoxBytes,
                                     share.steps, ring, thread);
        if (share.parts > 1 && !meet<S::kHalves>(sums, params, share, rank * 2 + index, index, thread, last_flag)) {
            return;
        }
        constexpr auto each = std::make_integer_sequence<int, kCount>{};
        if (params.f32_values) {
            finish<float>(sums, params, share.row, places, thread, each);
        } else {
            finish<T>(sums, params, share.row, places, thread, each);
        }
    }

    __device__ __forceinline__ void run(const Share &share) {
        switch (share.chunks) {
        case 4:
            return multiply<4>(share);
        case 3:
            return multiply<3>(share);
        case 2:
            return multiply<2>(share);
        case 1:
            return multiply<1>(share);
        default:
            return pass_steps(shared, share.steps, ring, index, thread);
        }
    }
};

template <class T, Layout kLayout, int kHalves>
__global__ __launch_bounds__(kThreads, 1) void sddmm_sm90(const __grid_constant__ CUtensorMap dy_map,
                                                          const __grid_constant__ CUtensorMap x_map,
                                                          const __grid_constant__ Params params) {
    using S = Shared<kLayout, kHalves>;
    extern __shared__ uint8_t raw[];
    const uint32_t raw_start = sm90::shared_address(raw);
    const S shared{(raw_start + S::kAlign - 1) / S::kAlign * S::kAlign};
    if (threadIdx.x == 0) {
        sm90::prefetch_map(&dy_map);
        sm90::prefetch_map(&x_map);
        for (uint32_t i = 0; i < S::kStages; ++i) {
            sm90::init_barrier(shared.full(i), 1);
            sm90::init_barrier(shared.empty(i), 2 * S::kHalves); // warpgroups of the cluster
        }
        sm90::fence_barrier_init();
    }
    __syncwarp();
    sm90::cluster_arrive();
    sm90::cluster_wait();
    sm90::let_next_kernel_start();
    prefetch_lists(params, blockIdx.x * kThreads + threadIdx.x, gridDim.x * kThreads);
    sm90::wait_for_previous_kernel(); // uses nothing of the device's memory before

    const int rank = static_cast<int>(sm90::cluster_rank());
    const int cluster = blockIdx.x / S::kHalves;
    const int first = params.first_segment[cluster], last = params.first_segment[cluster + 1];
    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == 2) {
        sm90::give_registers<kLoaderRegisters>();
        if (threadIdx.x == 2 * kWarpgroup) {
            load(params, &dy_map, &x_map, shared, first, last, rank);
        }
    } else {
        sm90::take_registers<kMathRegisters>();
        int *flags = reinterpret_cast<int *>(raw + (shared.empty(S::kStages) - raw_start));
        const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
        Warpgroup<T, S> work{params, shared, flags + warpgroup, rank, warpgroup, thread, {0, 0}};
        Share next = share_of<S>(params, first, rank, warpgroup); // no cluster is without a segment
        for (int i = first; i < last; ++i) {
            const Share share = next;
            if (i + 1 < last) {
                next = share_of<S>(params, i + 1, rank, warpgroup); // read before it is waited for
            }
            work.run(share);
        }
    }
    // A thread block stays until the other one has sent it its last boxes and arrivals.
    __syncwarp();
    sm90::cluster_arrive();
    sm90::cluster_wait();
}

} // namespace bsparse::gpu::sddmm_sm90
