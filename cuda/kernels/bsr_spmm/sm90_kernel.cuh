// spmm and spmm_t on Hopper: D^T tiles of two strips of 64 outputs by 64, 128 or 256 tokens, wgmma out of a ring of
// stages that one warp fills with bulk tensor copies. See sm90_schedule.h for tiles, steps and units.
//
// Transposed on purpose: the pieces of S are wgmma's A, in either direction as they are stored (spmm_t reads the same
// bytes MN-major; those of f32 are transposed before), and the inputs, shared by both strips, its B.
#pragma once

#include "../common/sm90.cuh"
#include "../common/wgmma.cuh"
#include "sm90_arguments.h"
#include "sm90_epilogue.cuh"
#include "sm90_outgoing_f32.cuh"
#include "sm90_units.cuh"

namespace bsparse::gpu::spmm_sm90 {

// The copy engine's time goes by lines rather than bytes. So pieces of blocks 16 or 32 wide, which lie on end, come as
// fewer lines of 128 bytes: kFold of the block's lines in each. The 128-byte swizzle of such a piece is the narrower
// swizzle of the block's own lines that wgmma is told, but that line r is found where r ^ (r / 8 % kFold) belongs: the
// epilogue puts them back.
//
// Paired: both strips take part in every step that has any. Staged: finish_staged() instead of Outgoing.
template <class T_, int kDepth_, bool kTransposed_, bool kPaired_, int kTokens_, bool kStaged_> struct Kernel {
    using T = T_;
    static constexpr int kDepth = kDepth_; // inputs of a step
    static constexpr bool kTransposed = kTransposed_, kPaired = kPaired_, kStaged = kStaged_, kMerged = false;
    static constexpr int kFold = kTransposed ? 1 : 128 / (kDepth * sizeof(T));
    static constexpr int kTokens = kTokens_;
    static constexpr uint32_t kPieceBytes = kStrip * kDepth * sizeof(T);
    static constexpr uint32_t kInputBytes = kTokens * kDepth * sizeof(T);
    static constexpr uint32_t kStages = 192 * 1024 / (2 * kPieceBytes + kInputBytes);

    // Descriptors of a piece and of inputs, whose lines are as long as their swizzle spans: depth elements in whatever
    // is K-major, a strip's in the MN-major pieces of spmm_t. And how far on the next 32 bytes of k are, in a
    // descriptor's units of 16 bytes.
    static constexpr uint32_t kInputLine = kDepth * sizeof(T);
    static constexpr uint32_t kPieceLine = kTransposed ? kStrip * sizeof(T) : kInputLine;
    static constexpr uint32_t kInputAdvance = 32 / 16;
    static constexpr uint32_t kPieceAdvance = kTransposed ? 16 * kPieceLine / 16 : 32 / 16;
    static __device__ __forceinline__ uint64_t describe_lines(uint32_t address, uint32_t line) {
        const OperandSwizzle swizzle = line == 128  ? OperandSwizzle::k128
                                       : line == 64 ? OperandSwizzle::k64
                                                    : OperandSwizzle::k32;
        return describe(address, 0, 8 * line, swizzle);
    }
};

// What the producer tells the consumers of a unit in its first stage, for each strip. As it lies in shared memory: the
// first output, the first token, take and skip; in merged kernels the first output of the strip's second half, and, in
// every stage, the flags of its step.
struct Note {
    Place place;
    int take; // steps of the unit that the strip takes part in
    int skip; // the others: before them for strip 1, after them for strip 0
};
constexpr int kStop = 1 << 30; // as output, beyond any: no more units, there is nothing in this stage
constexpr uint32_t kSecondOutput = 16, kStepFlags = 20;
constexpr uint32_t kNoteBytes = 32;

// Addresses in a thread block's shared memory. Pieces and inputs lie as the copy engine puts them: lines swizzled.
template <class K> struct Shared {
    uint32_t base; // 1024-byte aligned: the pieces of one strip, stage by stage, of the other, and the inputs

    static constexpr uint32_t kInputs = 2 * K::kStages * K::kPieceBytes;
    static constexpr uint32_t kStaging = kInputs + K::kStages * K::kInputBytes; // for either warpgroup
    static constexpr uint32_t kNotes = kStaging + 2 * kStagingBytes;
    static constexpr uint32_t kFull = kNotes + K::kStages * 2 * kNoteBytes;
    static constexpr uint32_t kEmpty = kFull + K::kStages * 8;
    static constexpr int kBytes = kEmpty + K::kStages * 8 + 1024; // what a launch asks for: it may start unaligned

    __device__ __forceinline__ uint32_t piece(uint32_t stage, int strip) const {
        return base + (strip * K::kStages + stage) * K::kPieceBytes;
    }
    __device__ __forceinline__ uint32_t inputs(uint32_t stage) const { return base + kInputs + stage * K::kInputBytes; }
    __device__ __forceinline__ uint32_t staging(int strip) const { return base + kStaging + strip * kStagingBytes; }
    __device__ __forceinline__ uint32_t note(uint32_t stage, int strip) const {
        return base + kNotes + (stage * 2 + strip) * kNoteBytes;
    }
    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + kFull + stage * 8; }
    __device__ __forceinline__ uint32_t empty(uint32_t stage) const { return base + kEmpty + stage * 8; }
};

// One lane: what goes with a unit's first stage.
template <class K>
__device__ __forceinline__ void write_notes(const Shared<K> &shared, uint32_t stage, const Unit &unit, int token) {
    const int steps = unit.steps;
    const int second = K::kMerged ? unit.output.z : unit.output.y;
    store_shared(shared.note(stage, 0), make_int4(unit.output.x, token, steps - unit.only[1], unit.only[1]));
    store_shared(shared.note(stage, 1), make_int4(second, token, steps - unit.only[0], unit.only[0]));
    if constexpr (K::kMerged) {
        store_shared(shared.note(stage, 0) + kSecondOutput, unit.output.y);
        store_shared(shared.note(stage, 1) + kSecondOutput, unit.output.w);
    }
}

// Tells the consumers that the last unit has gone.
template <class K> __device__ __forceinline__ void stop(const Shared<K> &shared, const Ring &ring) {
    wait(shared.empty(ring.stage), ring.parity);
    if (lane_number() == 0) {
        write_notes(shared, ring.stage, {0, 0, {0, 0}, make_int4(kStop, kStop, kStop, kStop), 0}, 0);
        arrive(shared.full(ring.stage));
    }
}

// Step, for for_each_step().
struct StepRecord {
    int4 step; // {input, row 0, row 1, cols}

    __device__ __forceinline__ void load(const Arguments &args, int index) { step = __ldcg(args.steps + index); }
    __device__ __forceinline__ StepRecord shuffle(int lane) const { return {spmm_sm90::shuffle(step, lane)}; }
};

// A warp: asks for every step's boxes, as far ahead as the ring allows. In a cluster each block loads its own inputs,
// and the piece of the strip of its rank for both.
template <class K>
__device__ __forceinline__ void produce(const Arguments &args, const Shared<K> &shared, int worker, int rank) {
    Ring ring{0, 1};
    const auto first_token = [&](const Unit &unit) { return (unit.group * args.cluster + rank) * K::kTokens; };
    const auto expect = [&](const Unit &unit, const StepRecord &record) {
        const int4 step = record.step;
        if (step.y >= 0) {
            prefetch_box(&args.value_map, step.w & 0xFFFF, step.y);
        }
        if (step.z >= 0) {
            prefetch_box(&args.value_map, step.w >> 16, step.z);
        }
        prefetch_box(&args.input_map, step.x, first_token(unit));
    };
    for_each_step<StepRecord>(args, worker, expect, [&](const Unit &unit, int index, const StepRecord &record) {
        const int4 step = record.step;
        wait(shared.empty(ring.stage), ring.parity);
        if (lane_number() == 0) {
            const int token = first_token(unit);
            const int strips = (step.y >= 0 ? 1 : 0) | (step.z >= 0 ? 2 : 0);
            const uint32_t full = shared.full(ring.stage);
            if (index == 0) {
                write_notes(shared, ring.stage, unit, token);
            }
            if (strips == 0) {
                arrive(full);
            } else {
                arrive_expect_bytes(full, K::kInputBytes + (strips == 3 ? 2 : 1) * K::kPieceBytes);
                load_box(shared.inputs(ring.stage), &args.input_map, full, step.x, token);
                if (args.cluster > 1) {
                    if (strips >> rank & 1) {
                        load_box_multicast(shared.piece(ring.stage, rank), &args.value_map, full, 3,
                                           rank ? step.w >> 16 : step.w & 0xFFFF, rank ? step.z : step.y);
                    }
                } else {
                    if (strips & 1) {
                        load_box(shared.piece(ring.stage, 0), &args.value_map, full, step.w & 0xFFFF, step.y);
                    }
                    if (strips & 2) {
                        load_box(shared.piece(ring.stage, 1), &args.value_map, full, step.w >> 16, step.z);
                    }
                }
            }
        }
        ring.template advance<K::kStages>();
    });
    stop(shared, ring);
}

// A warp gives a stage back to the producers of the cluster: each of them fills a part of it. The other block hears of
// it once for a warpgroup where every stage takes a wgmma, which all its warps must reach.
template <class K>
__device__ __forceinline__ void release(const Shared<K> &shared, int stage, int cluster, int thread) {
    __syncwarp();
    const int lane = lane_number();
    if (lane == 0) {
        arrive(shared.empty(stage));
    }
    if (cluster == 2 && (K::kPaired ? thread : lane) == 1) {
        arrive_remote(shared.empty(stage), cluster_rank() ^ 1);
    }
}

// Arrivals that a stage needs to be free.
template <class K> __device__ __forceinline__ int releases(int cluster) {
    constexpr int kOwn = 8;
    constexpr int kOther = K::kPaired ? 2 : 8;
    return kOwn + (cluster - 1) * kOther;
}

// Waits for a unit's first stage, and reads its note by the lane that will give the stage back: racecheck does not
// take other lanes' reads to be over then.
template <class K> __device__ __forceinline__ Note next_note(const Shared<K> &shared, const Ring &ring, int strip) {
    wait(shared.full(ring.stage), ring.parity);
    const uint32_t from = shared.note(ring.stage, strip);
    int4 words = make_int4(0, 0, 0, 0);
    int second = 0;
    if (lane_number() == 0) {
        words = load_shared_vector(from);
        second = K::kMerged ? load_shared(from + kSecondOutput) : 0;
    }
    words = shuffle(words, 0);
    second = K::kMerged ? __shfl_sync(kWholeWarp, second, 0) : words.x + kStrip / 2;
    return {{words.x, second, words.y}, words.z, words.w};
}

// Starts a strip's products of one step.
template <class K>
__device__ __forceinline__ void multiply_step(float (&sums)[K::kTokens / 2], const Shared<K> &shared, uint32_t stage,
                                              int strip, bool written) {
    const uint64_t piece = K::describe_lines(shared.piece(stage, strip), K::kPieceLine);
    const uint64_t inputs = K::describe_lines(shared.inputs(stage), K::kInputLine);
    fence_wgmma();
#pragma unroll
    for (int k = 0; k < static_cast<int>(K::kInputLine / 32); ++k) {
        multiply<typename K::T, K::kTokens, K::kTransposed, false>(sums, piece + k * K::kPieceAdvance,
                                                                   inputs + k * K::kInputAdvance, written || k > 0);
    }
    commit_wgmma();
}

// Passes over stages that the strip takes no part in.
template <class K>
__device__ __forceinline__ void skip(const Shared<K> &shared, Ring &ring, int steps, int cluster, int thread) {
    for (; steps > 0; --steps) {
        wait(shared.full(ring.stage), ring.parity);
        release(shared, static_cast<int>(ring.stage), cluster, thread);
        ring.template advance<K::kStages>();
    }
}

// A warpgroup: multiplies its strip's pieces and finishes its tiles.
template <class K>
__device__ __forceinline__ void consume(const Arguments &args, const Shared<K> &shared, int strip, int thread) {
    const Worker worker{thread, 1 + strip, shared.staging(strip)};
    const int cluster = args.cluster;
    float sums[K::kTokens / 2]; // [64 outputs][kTokens], wgmma's order
    [[maybe_unused]] Outgoing<typename K::T, K::kTokens, K::kFold, K::kMerged> outgoing;
    Ring ring{0, 0};
    wait_for_previous_kernel();
    Note note;
    if constexpr (K::kPaired) {
        note = next_note(shared, ring, strip);
    }
    for (;;) { // a unit
        if constexpr (!K::kPaired) {
            note = next_note(shared, ring, strip);
        }
        if (note.place.output == kStop) {
            break;
        }
        if (strip == 1) {
            skip(shared, ring, note.skip, cluster, thread);
        }
        constexpr int kNoneYet = -2, kGivenBack = -1;
        int held = kNoneYet; // the stage whose products may still run
        for (int left = note.take; left > 0; --left) {
            const uint32_t full = shared.full(ring.stage);
            if constexpr (!K::kPaired) { // these wait for loads more often than not: gives the stage back early
                if (held >= 0 && !test_wait(full, ring.parity)) {
                    wait_wgmma<0>();
                    release(shared, held, cluster, thread);
                    held = kGivenBack;
                }
            }
            wait(full, ring.parity);
            if constexpr (K::kMerged) {
                const int flags = load_shared(shared.note(ring.stage, strip) + kStepFlags);
                pin(sums);
                multiply_halves(sums, shared, ring.stage, strip, flags, held != kNoneYet);
            } else {
                pin(sums);
                multiply_step(sums, shared, ring.stage, strip, held != kNoneYet);
            }
            pin(sums);
            if (held >= 0) {
                wait_wgmma<1>();
                release(shared, held, cluster, thread);
            }
            held = static_cast<int>(ring.stage);
            if constexpr (!K::kStaged) {
                if (!outgoing.empty()) {
                    outgoing.send(&args.output_map, args.tokens, args.epilogue.activation, worker);
                }
            }
            ring.template advance<K::kStages>();
        }
        const Place place = note.place;
        Bias bias;
        if constexpr (!K::kStaged) { // arrives while the last products run
            bias = load_bias<K::kFold, K::kMerged>(args.epilogue, place, args.outputs);
        }
        wait_wgmma<0>();
        pin(sums);
        if (held >= 0) {
            release(shared, held, cluster, thread);
        }
        if constexpr (K::kPaired) { // the next note comes while the sums are packed
            if (strip == 0) {
                skip(shared, ring, note.skip, cluster, thread); // of a unit without steps
            }
            note = next_note(shared, ring, strip);
        }
        const bool written = held != kNoneYet;
        if constexpr (K::kStaged) {
            finish_staged<K::kTokens, K::kFold>(sums, written, args.epilogue, place, args.tokens, args.outputs, worker);
        } else {
            while (!outgoing.empty()) { // what is left of the unit before: this one had few steps
                outgoing.send(&args.output_map, args.tokens, args.epilogue.activation, worker);
            }
            if constexpr (std::is_same_v<typename K::T, float>) { // half of it leaves at once
                outgoing.take(sums, written, args.epilogue, bias, place, worker, &args.output_map, args.tokens);
            } else {
                outgoing.take(sums, written, args.epilogue, bias, place, worker);
            }
        }
        if constexpr (!K::kPaired) {
            if (strip == 0) {
                skip(shared, ring, note.skip, cluster, thread);
            }
        }
    }
    if constexpr (K::kStaged) {
        return;
    } else if constexpr (sizeof(typename K::T) == 2) { // its pieces have all been read: there is room for all of it
        static_assert(K::kStages * K::kPieceBytes >= K::kTokens / kChunk * kBoxBytes);
        outgoing.drain(shared.piece(0, strip), &args.output_map, args.tokens, args.epilogue.activation, worker);
    } else {
        while (!outgoing.empty()) {
            outgoing.send(&args.output_map, args.tokens, args.epilogue.activation, worker);
        }
    }
    if (thread == 0) {
        wait_stores_read<0>();
    }
}

template <class K> __global__ __launch_bounds__(kThreads, 1) void spmm_kernel(const __grid_constant__ Arguments args) {
    extern __shared__ char raw[];
    const Shared<K> shared{__shfl_sync(~0u, keep((shared_address(raw) + 1023) / 1024 * 1024), 0)};
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < K::kStages; ++stage) {
            init_barrier(shared.full(stage), 1);
            init_barrier(shared.empty(stage), releases<K>(args.cluster));
        }
        fence_barrier_init();
        prefetch_map(&args.value_map);
        prefetch_map(&args.input_map);
        if constexpr (!K::kStaged) {
            prefetch_map(&args.output_map);
        }
    }
    cluster_arrive_relaxed();
    cluster_wait();
    let_next_kernel_start();
    if (warpgroup == 0) {
        give_registers<40>();
        const int warp = __shfl_sync(~0u, threadIdx.x / kLanes, 0);
        if constexpr (K::kMerged) {
            if (warp == 0) {
                produce_inputs(args, shared, static_cast<int>(blockIdx.x));
            } else if (warp == 1) {
                produce_blocks(args, shared, static_cast<int>(blockIdx.x));
            }
        } else if (warp == 0) {
            produce(args, shared, static_cast<int>(blockIdx.x) / args.cluster, static_cast<int>(cluster_rank()));
        }
    } else {
        take_registers<232>();
        consume(args, shared, warpgroup - 1, static_cast<int>(threadIdx.x) % kWarpgroup);
    }
    if (args.cluster > 1) { // a block must not end while the other may still write to its memory or its barriers
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    }
}

} // namespace bsparse::gpu::spmm_sm90
