#include "job.h"

#include "relax.h"

namespace bsparse::cpu {

void Rounds::wait_until(int64_t done) {
    for (int i = 0; i < kSpins; ++i) {
        if (done_.load(std::memory_order_acquire) >= done) {
            return;
        }
        relax();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    round_done_.wait(lock, [&] { return done_.load(std::memory_order_acquire) >= done; });
}

void Rounds::work(int slot) {
    for (;;) {
        const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= items()) {
            return;
        }
        const int64_t round = item / round_;
        wait_until(round * round_);
        run_item(round, item % round_, slot);
        if ((done_.fetch_add(1, std::memory_order_acq_rel) + 1) % round_ == 0) { // others may wait for it
            std::lock_guard<std::mutex> lock(mutex_);
            round_done_.notify_all();
        }
    }
}

Shares::Shares(int64_t shares, int64_t items_per_share, int threads, int64_t worth_helping)
    : Job(shares * items_per_share), shares_(shares), share_(items_per_share), threads_(threads),
      worth_helping_(worth_helping) {
    for (int64_t share = 0; share < shares; ++share) {
        counters_[share].next.store(0, std::memory_order_relaxed);
    }
}

void Shares::work(int slot) {
    const int64_t own = slot * shares_ / threads_;
    for (int64_t i = 0; i < shares_; ++i) {
        const int64_t share = (own + i) % shares_;
        std::atomic<int64_t> &next = counters_[share].next;
        // A share that was begun is also ended without help: who took its last item looks for the next one.
        const int64_t begun = next.load(std::memory_order_relaxed);
        if (i > 0 && begun > 0 && share_ - begun < worth_helping_) {
            continue;
        }
        for (;;) {
            const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
            if (item >= share_) {
                break;
            }
            run_item(share, item, slot);
        }
    }
}

} // namespace bsparse::cpu
