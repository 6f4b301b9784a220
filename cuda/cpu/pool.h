// The threads of one context. A run hands them a job.
#pragma once

#include <atomic>

#include "job.h"

namespace bsparse::cpu {

// Runs body(data) on so many threads, the caller's included: what every OpenMP runtime of GCC's kind exports.
using OpenMpParallel = void (*)(void (*body)(void *), void *data, unsigned threads, unsigned flags);

using OpenMpThread = int (*)(); // the calling thread's number within the region

// Where the process had loaded an OpenMP runtime before the context was made, as torch does, that runtime's threads run
// the job, unless the process was forked: after each parallel region they spin for milliseconds, and threads of our own
// would not get the cores (measured beside torch on two cores: half the speed). Elsewhere the pool has threads of its
// own, which start at the first run that needs them and sleep between runs.
class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const { return threads_; }
    // Runs the job on at most `threads` threads, the caller's included, and returns when it is done. A caller that
    // finds the others busy with another run works alone.
    void run(Job &job, int threads);

private:
    struct Workers;
    Workers *workers();
    void run_on_openmp(Job &job, int threads);

    const int threads_;
    const OpenMpParallel openmp_;
    const OpenMpThread openmp_thread_;
    const bool openmp_is_whole_; // else threads of our own run
    std::atomic_flag openmp_busy_ = ATOMIC_FLAG_INIT;
    std::atomic<Workers *> workers_{nullptr}; // made by the first run that needs them, and again after a fork
};

} // namespace bsparse::cpu
