// How a producer warp of the sm_90 spmm kernels finds its work: a lane looks up a unit, or a step, and the warp goes
// through what its lanes hold by shuffles. So the reads, each of which depends on the one before (unit, tile, step),
// are made once for 32 units or steps and ahead of their use, and no stage waits for them. They begin before the
// kernels before this one are done and pass by L1, which may remember what another list had at these addresses.
#pragma once

#include "../common/sm90.cuh"
#include "sm90_arguments.h"

namespace bsparse::gpu::spmm_sm90 {

using namespace sm90;

constexpr int kLanes = 32;
constexpr unsigned kWholeWarp = ~0u;

// A tile and a group of tokens, the same in all lanes.
struct Unit {
    int first, steps;
    int only[2]; // steps that the other strip takes no part in, see Tile
    int4 output; // of Tile or MergeTile
    int group;
};

__device__ __forceinline__ int4 shuffle(const int4 &v, int lane) {
    return make_int4(__shfl_sync(kWholeWarp, v.x, lane), __shfl_sync(kWholeWarp, v.y, lane),
                     __shfl_sync(kWholeWarp, v.z, lane), __shfl_sync(kWholeWarp, v.w, lane));
}

// A worker's units whose group exists: its list, and again for each further period of groups.
class Units {
public:
    __device__ __forceinline__ Units(const Arguments &args, int worker)
        : worker_(worker), round_(0), groups_left_(args.groups), base_(0), lane_(0), found_(0), head_{}, output_{},
          group_(0) {}

    // To the next one, the first at first; whether there is one.
    __device__ __forceinline__ bool next(const Arguments &args) {
        while (found_ == 0) {
            if (groups_left_ <= 0) {
                return false;
            }
            look_up(args);
        }
        lane_ = __ffs(static_cast<int>(found_)) - 1;
        found_ &= found_ - 1;
        return true;
    }

    __device__ __forceinline__ int first() const { return __shfl_sync(kWholeWarp, head_.x, lane_); }
    __device__ __forceinline__ int steps() const { return __shfl_sync(kWholeWarp, head_.y, lane_); }
    __device__ __forceinline__ Unit get() const {
        const int4 head = shuffle(head_, lane_);
        return {head.x, head.y, {head.z, head.w}, shuffle(output_, lane_), __shfl_sync(kWholeWarp, group_, lane_)};
    }

private:
    // The next 32 rounds, or those that the period still has.
    __device__ __forceinline__ void look_up(const Arguments &args) {
        const int at = (round_ + lane_number()) * args.workers + worker_;
        const int word = at < args.units_end ? __ldcg(args.units + at) : kNoUnit;
        const int of_period = word & ((1 << kGroupBits) - 1);
        // Whether no later round has a unit either. The last supergroup may be cut: its units' groups come mixed.
        const bool over = word == kNoUnit || (of_period & -args.supergroup) >= groups_left_;
        const bool found = !over && of_period < groups_left_;
        if (found) {
            const int tile = word >> kGroupBits;
            head_ = __ldcg(args.tiles + 2 * tile);
            output_ = __ldcg(args.tiles + 2 * tile + 1);
            group_ = base_ + of_period;
        }
        found_ = __ballot_sync(kWholeWarp, found);
        round_ += kLanes;
        if (__any_sync(kWholeWarp, over)) {
            round_ = 0;
            base_ += args.period;
            groups_left_ -= args.period;
        }
    }

    int worker_, round_, groups_left_, base_;
    int lane_;           // of the unit at hand
    unsigned found_;     // lanes with units to come
    int4 head_, output_; // a lane's tile: {first, steps, only}, {output}
    int group_;
};

// Calls visit(unit, step of the unit, record) for every step of a worker, in order, by a whole warp. Record: what is
// wanted of a step, with load(args, step) by a lane, and shuffle(lane). While the kernels before this one may still
// run, the lane that has the very first step calls expect(unit, record).
template <class Record, class Expect, class Visit>
__device__ __forceinline__ void for_each_step(const Arguments &args, int worker, Expect expect, Visit visit) {
    const int lane = lane_number();
    Units units(args, worker);
    bool more = units.next(args);
    Record ahead{}; // a lane's, of the 32 steps to come
    if (more) {
        const int first = units.first();
        const int steps = units.steps();
        if (lane < steps) {
            ahead.load(args, first + lane);
        }
        const Unit unit = units.get();
        if (lane == 0) {
            expect(unit, ahead);
        }
    }
    wait_for_previous_kernel();
    while (more) {
        const Unit unit = units.get();
        more = units.next(args);
        for (int begin = 0; begin < unit.steps; begin += kLanes) {
            const Record records = ahead;
            const int rest = unit.steps - begin - kLanes;
            const int next_first = units.first(); // shuffles are for all lanes, whatever the case
            const int next_steps = units.steps();
            const int first = rest > 0 ? unit.first + begin + kLanes : next_first;
            const int count = rest > 0 ? rest : more ? next_steps : 0;
            if (lane < count) {
                ahead.load(args, first + lane);
            }
            const int end = min(kLanes, unit.steps - begin);
            for (int i = 0; i < end; ++i) {
                visit(unit, begin + i, records.shuffle(i));
            }
        }
    }
}

} // namespace bsparse::gpu::spmm_sm90
