// spmm and spmm_t on Hopper: D^T tiles of two strips of 64 outputs by 128 or 256 tokens, wgmma out of a ring of stages
// that one thread fills with bulk tensor copies. See sm90_schedule.h for tiles, steps and units.
//
// Transposed on purpose: the pieces of S are wgmma's A, in either direction as they are stored (spmm_t reads the same
// bytes MN-major), and the inputs, shared by both strips, its B.
#pragma once

#include "../common/sm90.cuh"
#include "../common/wgmma.cuh"
#include "sm90_arguments.h"
#include "sm90_epilogue.cuh"

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
    static constexpr int kFold = kTransposed ? 1 : 64 / kDepth;
    static constexpr int kTokens = kTokens_;
    static constexpr uint32_t kPieceBytes = kStrip * kDepth * sizeof(T);
    static constexpr uint32_t kInputBytes = kTokens * kDepth * sizeof(T);
    static constexpr uint32_t kStageBytes = 2 * kPieceBytes + kInputBytes;
    static constexpr uint32_t kStages = 192 * 1024 / kStageBytes;
    // Arrivals that free a stage, per thread block of the cluster. One for a warpgroup is enough where every stage
    // takes a wgmma, which all its warps must reach.
    static constexpr uint32_t kReleases = kPaired ? 2 : 8;

    // Descriptors of a piece and of inputs, whose lines are as long as their swizzle spans: depth elements in whatever
    // is K-major, a strip's in the MN-major pieces of spmm_t. And how far on the next 16 of k are, in a descriptor's
    // units of 16 bytes.
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

// What the producer tells the consumers of a stage, for each strip: {first output | flags, first token, first output of
// the second half}; the last only where strips are merged, see sm90_merge.cuh.
constexpr int kPresent = 1;     // the strip takes part; merged: in the step's first half
constexpr int kPresentLate = 2; // merged: in its second half
constexpr int kNarrow = 4;      // merged: only one half has inputs
constexpr int kLastStep = 8;    // of the unit
constexpr int kStop = 16;       // no more units: there is nothing in this stage
constexpr int kFlags = 31;      // outputs are multiples of 32

// Addresses in a thread block's shared memory. Pieces and inputs lie as the copy engine puts them: lines swizzled.
template <class K> struct Shared {
    uint32_t base; // 1024-byte aligned: the stages, each with a piece for either strip and the inputs

    static constexpr uint32_t kStaging = K::kStages * K::kStageBytes; // for either warpgroup
    static constexpr uint32_t kNotes = kStaging + 2 * kStagingBytes;
    static constexpr uint32_t kFull = kNotes + K::kStages * 2 * sizeof(int4);
    static constexpr uint32_t kEmpty = kFull + K::kStages * 8;
    static constexpr int kBytes = kEmpty + K::kStages * 8 + 1024; // what a launch asks for: it may start unaligned

    __device__ __forceinline__ uint32_t piece(uint32_t stage, int strip) const {
        return base + stage * K::kStageBytes + strip * K::kPieceBytes;
    }
    __device__ __forceinline__ uint32_t inputs(uint32_t stage) const { return piece(stage, 2); }
    __device__ __forceinline__ uint32_t staging(int strip) const { return base + kStaging + strip * kStagingBytes; }
    __device__ __forceinline__ uint32_t note(uint32_t stage, int strip) const {
        return base + kNotes + (stage * 2 + strip) * sizeof(int4);
    }
    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + kFull + stage * 8; }
    __device__ __forceinline__ uint32_t empty(uint32_t stage) const { return base + kEmpty + stage * 8; }
};

// A worker's units whose group exists: its list, and again for each further period of groups.
class Units {
public:
    __device__ __forceinline__ Units(const Arguments &args, int worker)
        : worker_(worker), at_(worker), groups_left_(args.groups), base_(0) {}

    // Whether there is another.
    __device__ __forceinline__ bool next(const Arguments &args, int &tile, int &group) {
        while (groups_left_ > 0) {
            if (at_ < args.units_end) {
                const int word = __ldg(args.units + at_);
                at_ += args.workers;
                const int of_period = word & ((1 << kGroupBits) - 1);
                if (word != kNoUnit && (of_period & -args.supergroup) < groups_left_) {
                    if (of_period < groups_left_) {
                        tile = word >> kGroupBits;
                        group = base_ + of_period;
                        return true;
                    }
                    continue; // the last supergroup may be cut
                }
            }
            at_ = worker_;
            base_ += args.period;
            groups_left_ -= args.period;
        }
        return false;
    }

private:
    int worker_, at_, groups_left_, base_;
};

// Tells the consumers that the last unit has gone.
template <class K>
__device__ __forceinline__ void stop(const Arguments &args, const Shared<K> &shared, const Ring &ring) {
    wait(shared.empty(ring.stage), ring.parity);
    for (int strip = 0; strip < 2; ++strip) {
        store_shared(shared.note(ring.stage, strip), args.beyond | kStop, 0);
        store_shared(shared.note(ring.stage, strip) + sizeof(int2), args.beyond, 0);
    }
    arrive(shared.full(ring.stage));
}

// One thread: asks for every step's boxes, as far ahead as the ring allows. In a cluster each block loads its own
// inputs, and the piece of the strip of its rank for both.
template <class K>
__device__ __forceinline__ void produce(const Arguments &args, const Shared<K> &shared, int worker, int rank) {
    Units units(args, worker);
    Ring ring{0, 1};
    int tile, group;
    bool more = units.next(args, tile, group);
    int4 head, step; // Tile: {output 0, output 1, first, steps}, Step: {input, row 0, row 1, cols}
    if (more) {
        head = __ldg(args.tiles + 2 * tile);
        step = __ldg(args.tiles + 2 * tile + 1);
    }
    wait_for_previous_kernel();
    while (more) {
        const int token = (group * args.cluster + rank) * K::kTokens;
        int4 next_head = head;
        for (int left = head.w; left > 0; --left) {
            const int strips = (step.y >= 0 ? 1 : 0) | (step.z >= 0 ? 2 : 0);
            const uint32_t full = shared.full(ring.stage);
            wait(shared.empty(ring.stage), ring.parity);
            const int last = left == 1 ? kLastStep : 0;
            store_shared(shared.note(ring.stage, 0), head.x | last | (strips & 1), token);
            store_shared(shared.note(ring.stage, 1), head.y | last | strips >> 1, token);
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
            ring.template advance<K::kStages>();
            if (left == head.w) { // the next unit is looked up early, behind the first boxes
                more = units.next(args, tile, group);
                if (more) {
                    next_head = __ldg(args.tiles + 2 * tile);
                }
            }
            ++head.z;
            step = __ldg(args.steps + (left > 1 ? head.z : next_head.z));
        }
        head = next_head;
    }
    stop(args, shared, ring);
}

// Gives a stage back to the producers of the cluster: each of them fills a part of it.
template <class K>
__device__ __forceinline__ void release(const Shared<K> &shared, int stage, int cluster, int thread) {
    if constexpr (K::kPaired) {
        if (thread < cluster) {
            arrive_remote(shared.empty(stage), thread);
        }
    } else {
        __syncwarp();
        const int lane = lane_number();
        if (lane < cluster) {
            arrive_remote(shared.empty(stage), lane);
        }
    }
}

// Starts a strip's products of one step.
template <class K>
__device__ __forceinline__ void multiply_step(float (&sums)[K::kTokens / 2], const Shared<K> &shared, uint32_t stage,
                                              int strip, bool written) {
    const uint64_t piece = K::describe_lines(shared.piece(stage, strip), K::kPieceLine);
    const uint64_t inputs = K::describe_lines(shared.inputs(stage), K::kInputLine);
    fence_wgmma();
#pragma unroll
    for (int k = 0; k < K::kDepth / 16; ++k) {
        multiply<typename K::T, K::kTokens, K::kTransposed, false>(sums, piece + k * K::kPieceAdvance,
                                                                   inputs + k * K::kInputAdvance, written || k > 0);
    }
    commit_wgmma();
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
    for (;;) { // a unit
        int held = -1; // the stage whose products may still run
        bool written = false;
        int2 note;
        int second = 0; // output
        do { // a step
            const uint32_t full = shared.full(ring.stage);
            if constexpr (!K::kPaired) { // without this, two blocks of a cluster could wait for each other's stages
                if (held >= 0 && !test_wait(full, ring.parity)) {
                    wait_wgmma<0>();
                    release(shared, held, cluster, thread);
                    held = -1;
                }
            }
            wait(full, ring.parity);
            note = load_shared(shared.note(ring.stage, strip));
            if constexpr (K::kMerged) {
                second = load_shared(shared.note(ring.stage, strip) + sizeof(int2)).x;
            }
            if (note.x & (kPresent | kPresentLate)) {
                pin(sums);
                if constexpr (K::kMerged) {
                    multiply_halves(sums, shared, ring.stage, strip, note.x, written);
                } else {
                    multiply_step(sums, shared, ring.stage, strip, written);
                }
                pin(sums);
                written = true;
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
            } else if (!(note.x & kStop)) {
                if constexpr (K::kPaired) {
                    worker.sync(); // all have read the note
                }
                release(shared, static_cast<int>(ring.stage), cluster, thread);
            }
            ring.template advance<K::kStages>();
        } while (!(note.x & (kLastStep | kStop)));
        const int first = note.x & ~kFlags;
        const Place place{first, K::kMerged ? second : first + 32, note.y};
        Bias bias;
        if constexpr (!K::kStaged) { // arrives while the last products run
            bias = load_bias<K::kFold, K::kMerged>(args.epilogue, place, args.outputs);
        }
        wait_wgmma<0>();
        pin(sums);
        if (held >= 0) {
            release(shared, held, cluster, thread);
        }
        if constexpr (!K::kStaged) { // what is left of the unit before: it had few steps, or this is the end
            while (!outgoing.empty()) {
                outgoing.send(&args.output_map, args.tokens, args.epilogue.activation, worker);
            }
        }
        if (note.x & kStop) {
            break;
        }
        if constexpr (K::kStaged) {
            finish_staged<K::kTokens, K::kFold>(sums, written, args.epilogue, place, args.tokens, args.outputs, worker);
        } else {
            outgoing.take(sums, written, args.epilogue.alpha, bias, place, worker);
        }
    }
    if (!K::kStaged && thread == 0) {
        wait_stores_read<0>();
    }
}

template <class K> __global__ __launch_bounds__(kThreads, 1) void spmm_kernel(const __grid_constant__ Arguments args) {
    extern __shared__ char raw[];
    const Shared<K> shared{(shared_address(raw) + 1023) / 1024 * 1024};
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < K::kStages; ++stage) {
            init_barrier(shared.full(stage), 1);
            init_barrier(shared.empty(stage), K::kReleases * args.cluster);
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
        if (threadIdx.x == 0) {
            if constexpr (K::kMerged) {
                produce_merged(args, shared, static_cast<int>(blockIdx.x));
            } else {
                produce(args, shared, static_cast<int>(blockIdx.x) / args.cluster, static_cast<int>(cluster_rank()));
            }
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
