// Keeps the clusters of bsr_sddmm within some steps of one another.
#pragma once

#include <cuda_runtime.h>

#include "sm90_launch.h"

namespace bsparse::gpu::sddmm_sm90 {

constexpr int kMostAhead = 2;  // milestones
constexpr int kMostTries = 64; // looks at how far others are, each of half a microsecond or more

// What one cluster has brought into L2 the others find there, as long as they come by soon: operands larger than L2 are
// otherwise read from device memory again and again, as some multiprocessors get ahead of others. So each cluster
// counts itself at every milestone, and goes no further while too few have passed the one kMostAhead before. The
// results do not depend on it. Whoever waits in vain, as others are not running, neither waits nor counts again, so
// that the others soon give up, too.
class Pace {
public:
    __device__ Pace(const Params &params, bool counts)
        : params_(params), milestones_(static_cast<int>(milestones_of(params.steps))),
          left_(counts ? params.paced_tiles * milestones_ : 0) {}

    // Before each step.
    __device__ __forceinline__ void keep(int step, bool whole_tile) {
        if (left_ == 0 || step % kMilestone != 0) {
            return;
        }
        if (!whole_tile) {
            left_ = 0;
            return;
        }
        atomicAdd(params_.passed + at_, 1);
        for (int tries = 0; passed_ < quorum_; ++tries) {
            if (tries == kMostTries) {
                left_ = 0;
                return;
            }
            passed_ = look(at_ - kMostAhead);
        }
        ++at_;
        --left_;
        const int next = at_ - kMostAhead; // what is read of it now comes while the steps before it are loaded
        if (next >= 0 && left_ > 0) {
            passed_ = look(next);
            quorum_ = params_.quorum[next / milestones_];
        }
    }

private:
    __device__ __forceinline__ int32_t look(int milestone) const {
        int32_t passed;
        asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(passed) : "l"(params_.passed + milestone));
        return passed;
    }

    const Params &params_;
    int milestones_; // of a tile
    int left_, at_ = 0;
    int32_t passed_ = 0, quorum_ = 0; // of the milestone kMostAhead before this one
};

} // namespace bsparse::gpu::sddmm_sm90
