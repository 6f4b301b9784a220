// 32x32 blocks on Hopper: a strip is two block rows of 32 outputs, which may lie anywhere in D, and a step has up to
// two halves of 32 inputs, neighbouring block columns, of which both strips take what they store. See
// sm90_merge_schedule.h.
//
// Inputs come 64 wide where both halves are wanted, and a block, 2 KB on end, as 16 lines of 128 bytes: see kFold in
// sm90_kernel.cuh.
#pragma once

#include "sm90_kernel.cuh"

namespace bsparse::gpu::spmm_sm90 {

template <class T_, bool kStaged_> struct MergedKernel {
    using T = T_;
    static constexpr bool kTransposed = false, kPaired = false, kStaged = kStaged_, kMerged = true;
    static constexpr int kFold = 2;
    static constexpr int kTokens = 256;
    static constexpr uint32_t kBlockBytes = 32 * 32 * sizeof(T);
    static constexpr uint32_t kHalfBytes = 2 * kBlockBytes;  // a strip's blocks of a half of the inputs
    static constexpr uint32_t kPieceBytes = 2 * kHalfBytes;
    static constexpr uint32_t kInputBytes = kTokens * 64 * sizeof(T);
    static constexpr uint32_t kStages = 4;
};

// Flags of a strip's step.
constexpr int kPresent = 1;     // it takes part in the first half
constexpr int kPresentLate = 2; // in the second
constexpr int kNarrow = 4;      // only one half has inputs

// Parts of MergeStep, for for_each_step().
struct InputRecord {
    int input_and_mask;

    __device__ __forceinline__ void load(const Arguments &args, int index) {
        input_and_mask = __ldcg(&args.steps[3 * static_cast<int64_t>(index)].x);
    }
    __device__ __forceinline__ InputRecord shuffle(int lane) const {
        return {__shfl_sync(kWholeWarp, input_and_mask, lane)};
    }
};

struct BlockRecord {
    int mask;
    int4 rows[2]; // of either half

    __device__ __forceinline__ void load(const Arguments &args, int index) {
        const int4 *step = args.steps + 3 * static_cast<int64_t>(index);
        mask = __ldcg(&step->x);
        rows[0] = __ldcg(step + 1);
        rows[1] = __ldcg(step + 2);
    }
    __device__ __forceinline__ BlockRecord shuffle(int lane) const {
        return {__shfl_sync(kWholeWarp, mask, lane),
                {spmm_sm90::shuffle(rows[0], lane), spmm_sm90::shuffle(rows[1], lane)}};
    }
};

// Two warps ask for a step's boxes. This one for its inputs; it also says what the stage will hold.
template <class K>
__device__ __forceinline__ void produce_inputs(const Arguments &args, const Shared<K> &shared, int worker) {
    Ring ring{0, 1};
    const auto map_of = [&](bool narrow) { return narrow ? &args.narrow_map : &args.input_map; };
    const auto expect = [&](const Unit &unit, const InputRecord &record) {
        const int word = record.input_and_mask;
        prefetch_box(map_of((word & kMergeNarrow) != 0), word & ~31, unit.group * K::kTokens);
    };
    for_each_step<InputRecord>(args, worker, expect, [&](const Unit &unit, int index, const InputRecord &record) {
        wait(shared.empty(ring.stage), ring.parity);
        if (lane_number() == 0) {
            const int token = unit.group * K::kTokens;
            const int input = record.input_and_mask & ~31;
            const int mask = record.input_and_mask & 31;
            const bool narrow = (mask & kMergeNarrow) != 0;
            const uint32_t full = shared.full(ring.stage);
            if (index == 0) {
                write_notes(shared, ring.stage, unit, token);
            }
#pragma unroll
            for (int strip = 0; strip < 2; ++strip) {
                const int present = (mask >> strip & 1 ? kPresent : 0) | (mask >> (2 + strip) & 1 ? kPresentLate : 0);
                store_shared(shared.note(ring.stage, strip) + kStepFlags, present | (narrow ? kNarrow : 0));
            }
            if (mask == 0) {
                arrive(full);
            } else {
                const uint32_t pieces = __popc(mask & 15);
                arrive_expect_bytes(full, (narrow ? K::kInputBytes / 2 : K::kInputBytes) + pieces * 2 * K::kBlockBytes);
                load_box(shared.inputs(ring.stage), map_of(narrow), full, input, token);
            }
        }
        ring.template advance<K::kStages>();
    });
    stop(shared, ring);
}

// And this one for its blocks, which are many. One that a present piece lacks is read beyond the last one: zeros. Its
// boxes may arrive before the other warp has said how many bytes to wait for: the phase waits for that as well.
template <class K>
__device__ __forceinline__ void produce_blocks(const Arguments &args, const Shared<K> &shared, int worker) {
    Ring ring{0, 1};
    const auto expect = [](const Unit &, const BlockRecord &) {};
    for_each_step<BlockRecord>(args, worker, expect, [&](const Unit &, int, const BlockRecord &record) {
        wait(shared.empty(ring.stage), ring.parity);
        if (lane_number() == 0) {
            const uint32_t full = shared.full(ring.stage);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int4 row = record.rows[half];
                if (record.mask >> 2 * half & 1) {
                    const uint32_t to = shared.piece(ring.stage, 0) + half * K::kHalfBytes;
                    load_box(to, &args.value_map, full, 0, row.x);
                    load_box(to + K::kBlockBytes, &args.value_map, full, 0, row.y);
                }
                if (record.mask >> 2 * half & 2) {
                    const uint32_t to = shared.piece(ring.stage, 1) + half * K::kHalfBytes;
                    load_box(to, &args.value_map, full, 0, row.z);
                    load_box(to + K::kBlockBytes, &args.value_map, full, 0, row.w);
                }
            }
        }
        ring.template advance<K::kStages>();
    });
}

// Starts a strip's products of one step: of both halves, or of the only one it takes part in.
template <class K>
__device__ __forceinline__ void multiply_halves(float (&sums)[K::kTokens / 2], const Shared<K> &shared, uint32_t stage,
                                                int strip, int flags, bool written) {
    constexpr uint32_t kAdvance = 32 / 16; // 16 inputs on, in a descriptor's units of 16 bytes
    constexpr uint32_t kHalf = K::kHalfBytes / 16;
    const uint64_t piece = describe(shared.piece(stage, strip), 0, 8 * 64, OperandSwizzle::k64);
    const uint64_t inputs = describe(shared.inputs(stage), 0, 8 * 128);
    if ((flags & (kPresent | kPresentLate)) == (kPresent | kPresentLate)) {
        fence_wgmma();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            multiply<typename K::T, K::kTokens, false, false>(sums, piece + k / 2 * kHalf + k % 2 * kAdvance,
                                                              inputs + k * kAdvance, written || k > 0);
        }
        commit_wgmma();
    } else {
        const bool late = (flags & kPresentLate) != 0;
        const uint64_t own = piece + (late ? kHalf : 0);
        const uint64_t narrow = describe(shared.inputs(stage), 0, 8 * 64, OperandSwizzle::k64);
        const uint64_t shown = flags & kNarrow ? narrow : inputs + (late ? 2 * kAdvance : 0);
        fence_wgmma();
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            multiply<typename K::T, K::kTokens, false, false>(sums, own + k * kAdvance, shown + k * kAdvance,
                                                              written || k > 0);
        }
        commit_wgmma();
    }
}

} // namespace bsparse::gpu::spmm_sm90
