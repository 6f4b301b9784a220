// The threads of one context. A run hands them a job: items that any thread may take, in two kinds of
// phases that alternate (prepare, multiply, prepare, multiply, ...), each phase after the one before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace bsparse::cpu {

// What a run does, cut into items. Items are numbered 0 .. rounds * (prepare + multiply) - 1 and taken in that
// order; an item starts once all items of earlier phases are done, so no barrier among threads is needed and a
// thread that wakes late, or never, is not waited for.
class Job {
public:
    Job(int64_t rounds, int64_t prepare, int64_t multiply)
        : prepare_(prepare), round_(prepare + multiply), total_(rounds * (prepare + multiply)) {}
    virtual ~Job() = default;

    virtual void prepare(int64_t round, int64_t item, int slot) = 0;
    // slot: which thread's memory. A thread keeps its slot from run to run, and so the memory its core's cache: on two
    // cores that share no cache, sddmm took 1.8 times as long when the slots changed hands.
    virtual void multiply(int64_t round, int64_t item, int slot) = 0;

    // Takes items until there are none left, as one of the job's threads.
    void work(int slot);
    int64_t total() const { return total_; }

private:
    void wait_until(int64_t done);

    const int64_t prepare_, round_, total_; // items of a prepare phase, of both phases, of all
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    std::mutex mutex_;
    std::condition_variable phase_done_;
};

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
    const OpenMpParallel openmp_; // NULL, or the next: threads of our own
    const OpenMpThread openmp_thread_;
    std::atomic_flag openmp_busy_ = ATOMIC_FLAG_INIT;
    std::atomic<Workers *> workers_{nullptr}; // made by the first run that needs them, and again after a fork
};

} // namespace bsparse::cpu
