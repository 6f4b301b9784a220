// What a run does, cut into items that any of its threads may take. A thread that wakes late, or never, is waited for
// only if it has taken an item.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace bsparse::cpu {

class Job {
public:
    explicit Job(int64_t items) : items_(items) {}
    virtual ~Job() = default;

    // Takes items until there are none left, as one of the job's threads. A thread keeps its slot from run to run, and
    // so do the memory and the work that belong to a slot: they stay in the cache of one core. (On two cores that share
    // no cache, sddmm took 1.8 times as long when the slots changed hands.)
    virtual void work(int slot) = 0;
    int64_t items() const { return items_; } // of all

private:
    const int64_t items_;
};

// Rounds one after the other: an item starts once all items of earlier rounds are done.
class Rounds : public Job {
public:
    Rounds(int64_t rounds, int64_t items_per_round) : Job(rounds * items_per_round), round_(items_per_round) {}
    void work(int slot) override;

protected:
    virtual void run_item(int64_t round, int64_t item, int slot) = 0;

private:
    void wait_until(int64_t done);

    const int64_t round_; // items of one
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    std::mutex mutex_;
    std::condition_variable round_done_;
};

// Shares side by side, for threads that prepare memory of their own before an item: each thread starts with the share
// of its slot, always the same one, and helps with others' when that has no more items.
class Shares : public Job {
public:
    // worth_helping: items left of a share, below which preparing to help costs more than is won.
    Shares(int64_t shares, int64_t items_per_share, int threads, int64_t worth_helping);
    void work(int slot) override;

    static constexpr int64_t kMost = 64;

protected:
    virtual void run_item(int64_t share, int64_t item, int slot) = 0;

private:
    struct alignas(64) Counter {
        std::atomic<int64_t> next; // item of the share
    };

    const int64_t shares_, share_; // how many, and items of one
    const int threads_;
    const int64_t worth_helping_;
    Counter counters_[kMost]; // [shares]
};

} // namespace bsparse::cpu
