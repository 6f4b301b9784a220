#include "pool.h"

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <deque>
#include <dlfcn.h>
#include <exception>
#include <fstream>
#include <mutex>
#include <pthread.h>
#include <string>
#include <thread>
#include <unistd.h>

#include "relax.h"

namespace bsparse::cpu {
namespace {

// Whether this process has been forked and runs its parent's program (PF_FORKNOEXEC in Linux's /proc/self/stat).
// False where the system does not say.
bool forked_without_exec() {
    constexpr unsigned long kForkNoExec = 0x40;
    std::ifstream file("/proc/self/stat");
    std::string stat;
    std::getline(file, stat, '\0'); // "pid (name) state parent group session terminal foreground flags ...", any name
    unsigned long flags = 0;
    const size_t name_end = stat.rfind(')');
    if (name_end != std::string::npos) {
        std::sscanf(stat.c_str() + name_end + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags);
    }
    return (flags & kForkNoExec) != 0;
}

// No OpenMP runtime survives fork(): a region in the child waits for ever for threads that only the parent has. So its
// threads run only in the process that loaded this library, and only if no earlier one can have used the runtime.
const pid_t kOpenMpProcess = forked_without_exec() ? 0 : getpid();

// Whether both are there, and from one library: another runtime's thread numbers would say nothing.
bool of_one_library(void *function, void *other) {
    Dl_info of_function, of_other;
    return function != nullptr && other != nullptr && dladdr(function, &of_function) != 0 &&
           dladdr(other, &of_other) != 0 && of_function.dli_fbase == of_other.dli_fbase;
}

// A run of several threads, as the threads of OpenMP see it.
struct Team {
    Job &job;
    const int slots;
    const OpenMpThread number;
};

void join_team(void *data) {
    const Team &team = *static_cast<const Team *>(data);
    const int slot = team.number();
    if (slot < team.slots) {
        team.job.work(slot);
    }
}

} // namespace

// The threads besides the caller's, and the one job they work on.
struct Pool::Workers {
    struct Worker {
        std::condition_variable job_posted;
        bool wanted = false; // may still join the job
        std::thread thread;
    };

    const pid_t process = getpid();
    std::atomic_flag busy = ATOMIC_FLAG_INIT; // held by the run that has the workers
    std::mutex mutex;
    std::condition_variable workers_left;
    Job *job = nullptr;
    std::atomic<int> working{0}; // workers in the job; changed under the lock
    bool stop = false;
    std::deque<Worker> workers;

    // Starts them; with fewer than asked for, or none, when the system has no more threads to give.
    void start(int count) {
        sigset_t masked, before;
        sigfillset(&masked); // signals stay with the program's own threads, but for a thread's own faults
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
            sigdelset(&masked, fault);
        }
        pthread_sigmask(SIG_SETMASK, &masked, &before);
        try {
            for (int slot = 1; slot <= count; ++slot) { // the caller's is 0
                Worker &worker = workers.emplace_back();
                worker.thread = std::thread([this, &worker, slot] { loop(worker, slot); });
            }
        } catch (const std::exception &) { // the run goes on with those there are
            if (!workers.empty() && !workers.back().thread.joinable()) {
                workers.pop_back();
            }
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void loop(Worker &worker, int slot) {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            worker.job_posted.wait(lock, [&] { return stop || worker.wanted; });
            if (stop) {
                return;
            }
            Job *mine = job;
            worker.wanted = false;
            ++working;
            lock.unlock();
            mine->work(slot);
            lock.lock();
            if (--working == 0) {
                workers_left.notify_one();
            }
        }
    }

    void want(size_t helpers, bool wanted) {
        for (size_t i = 0; i < helpers && i < workers.size(); ++i) {
            workers[i].wanted = wanted;
            if (wanted) {
                workers[i].job_posted.notify_one();
            }
        }
    }

    void run(Job &posted, int helpers) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            job = &posted;
            want(helpers, true);
        }
        posted.work(0);
        {
            std::lock_guard<std::mutex> lock(mutex);
            want(helpers, false); // who has not come by now is not needed
        }
        for (int i = 0; i < kSpins && working.load(std::memory_order_acquire) > 0; ++i) {
            relax();
        }
        std::unique_lock<std::mutex> lock(mutex);
        workers_left.wait(lock, [&] { return working == 0; });
    }
};

Pool::Pool(int threads)
    : threads_(threads), openmp_(reinterpret_cast<OpenMpParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"))),
      openmp_thread_(reinterpret_cast<OpenMpThread>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"))),
      openmp_is_whole_(of_one_library(reinterpret_cast<void *>(openmp_), reinterpret_cast<void *>(openmp_thread_))) {}

Pool::Workers *Pool::workers() {
    Workers *old = workers_.load(std::memory_order_acquire);
    if (old != nullptr && old->process == getpid()) {
        return old;
    }
    // After fork() the parent's threads do not exist here and their locks may be held for ever: `old` is left
    // alone, neither joined nor freed.
    Workers *made = new Workers;
    if (workers_.compare_exchange_strong(old, made, std::memory_order_acq_rel)) {
        return made;
    }
    delete made; // another thread was faster
    return old;
}

void Pool::run(Job &job, int threads) {
    const int helpers = (threads < threads_ ? threads : threads_) - 1;
    if (helpers < 1 || job.items() < 2) {
        job.work(0);
        return;
    }
    if (openmp_is_whole_ && getpid() == kOpenMpProcess) {
        run_on_openmp(job, helpers + 1);
        return;
    }
    Workers *all = workers();
    if (all->busy.test_and_set(std::memory_order_acquire)) {
        job.work(0);
        return;
    }
    if (all->workers.empty()) {
        all->start(threads_ - 1);
    }
    all->run(job, helpers);
    all->busy.clear(std::memory_order_release);
}

void Pool::run_on_openmp(Job &job, int threads) {
    if (openmp_busy_.test_and_set(std::memory_order_acquire)) {
        job.work(0);
        return;
    }
    Team team{job, threads, openmp_thread_};
    openmp_(join_team, &team, threads_, 0); // always all threads: a team that changes size makes threads anew
    openmp_busy_.clear(std::memory_order_release);
}

Pool::~Pool() {
    Workers *all = workers_.load(std::memory_order_acquire);
    if (all == nullptr || all->process != getpid()) {
        return;
    }
    {
        std::lock_guard<std::mutex> lock(all->mutex);
        all->stop = true;
    }
    for (Workers::Worker &worker : all->workers) {
        worker.job_posted.notify_one();
        worker.thread.join();
    }
    delete all;
}

} // namespace bsparse::cpu
