// One plan run by several threads at once, contexts of 1, 2 and 3 threads, and runs before and after fork().
// test_threads_openmp is the same with an OpenMP runtime in the process.
#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "cases.h"

namespace {

// A plan with its operands: enough multiplications that a run wakes three threads.
struct Work {
    Case c{"work for threads", 256, 192, 16, 16, scattered(16, 12, 4), 200};
    bsparse_op op;
    bsparse_order b_order;
    CasePattern pattern{c};
    ContextHandle context;
    PlanHandle plan;
    std::vector<float> values, x, y; // [blocks, block_rows, block_cols], [tokens, cols], [tokens, rows]
    std::vector<float> expected;

    Work(bsparse_op op_, int32_t threads, bsparse_order b_order_ = BSPARSE_ORDER_DEFAULT)
        : op(op_), b_order(b_order_), context(make_context(cpu_desc(threads))), values(numbers(pattern.values(c))),
          x(numbers(c.tokens * c.cols)), y(numbers(c.tokens * c.rows)) {
        bsparse_plan_desc desc{};
        desc.struct_size = sizeof(desc);
        desc.op = op;
        desc.dtype = BSPARSE_F32;
        desc.b_order = b_order;
        plan = make_plan(context, pattern.handle, desc);
        expected = run();
    }

    static std::vector<float> numbers(int64_t count) {
        std::vector<float> all(static_cast<size_t>(count));
        for (size_t i = 0; i < all.size(); ++i) {
            all[i] = static_cast<float>(i % 13) / 13.0f;
        }
        return all;
    }

    // What the product writes: y from x, x from y, or values from both.
    std::vector<float> run() const {
        std::vector<float> result = op == BSPARSE_SPMM ? y : op == BSPARSE_SPMM_T ? x : values;
        std::vector<char> memory(bsparse_plan_workspace_bytes(plan.get(), c.tokens) + 64);
        bsparse_args args{};
        args.struct_size = sizeof(args);
        args.tokens = c.tokens;
        args.alpha = 1;
        if (op == BSPARSE_SDDMM) {
            args.s_values = result.data();
            args.a = y.data();
            args.lda = c.rows;
            args.b = x.data();
            args.ldb = c.cols;
        } else {
            args.s_values = const_cast<float *>(values.data()); // read only in spmm
            args.b = op == BSPARSE_SPMM ? x.data() : y.data();
            const int64_t features = op == BSPARSE_SPMM ? c.cols : c.rows;
            args.ldb = b_order == BSPARSE_ROW_MAJOR ? c.tokens : features;
            args.d = result.data();
            args.ldd = op == BSPARSE_SPMM ? c.rows : c.cols;
        }
        void *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
        CHECK(bsparse_plan_run(plan.get(), &args, nullptr, workspace, nullptr) == BSPARSE_OK);
        return result;
    }
};

void run_at_once(const Work &work, int callers) {
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i) {
        threads.emplace_back([&work] {
            for (int run = 0; run < 5; ++run) {
                CHECK(work.run() == work.expected); // bit for bit
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

constexpr bsparse_op kOps[] = {BSPARSE_SPMM, BSPARSE_SPMM_T, BSPARSE_SDDMM};

void test_concurrent_runs() {
    for (const bsparse_op op : kOps) {
        for (const int32_t threads : {1, 2, 3}) {
            run_at_once(Work(op, threads), 4);
            run_at_once(Work(op, threads, BSPARSE_ROW_MAJOR), 4); // spmm: each thread makes an image of x
        }
    }
}

// How many threads share the work does not change a bit.
void test_thread_counts_agree() {
    for (const bsparse_op op : kOps) {
        for (const bsparse_order b_order : {BSPARSE_ORDER_DEFAULT, BSPARSE_ROW_MAJOR}) {
            const std::vector<float> alone = Work(op, 1, b_order).expected;
            CHECK(Work(op, 2, b_order).expected == alone && Work(op, 3, b_order).expected == alone);
        }
    }
}

void test_two_contexts_at_once() {
    const Work first(BSPARSE_SPMM, 2), second(BSPARSE_SPMM_T, 3);
    std::thread other([&] { run_at_once(second, 2); });
    run_at_once(first, 2);
    other.join();
}

#if defined(__linux__)
void test_one_thread_for_each_core_allowed() {
    std::thread([] {
        cpu_set_t allowed, one;
        CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
        int first = 0;
        while (!CPU_ISSET(first, &allowed)) {
            ++first;
        }
        CPU_ZERO(&one);
        CPU_SET(first, &one);
        CHECK(sched_setaffinity(0, sizeof(one), &one) == 0); // of this thread alone
        CHECK(std::strstr(bsparse_context_name(make_context(cpu_desc(0)).get()), ", 1 thread") != nullptr);
    }).join();
}
#endif

#if defined(__linux__) && defined(_OPENMP)
int64_t threads_of_this_process() {
    const std::filesystem::directory_iterator first("/proc/self/task"), end;
    return std::distance(first, end);
}

// Where OpenMP has its threads already, the library makes none.
void test_openmp_runs_the_work() {
    std::atomic<int> team{0};
#pragma omp parallel num_threads(3)
    ++team;
    CHECK(team == 3 && threads_of_this_process() == 3);
    const Work work(BSPARSE_SPMM, 3);
    CHECK(work.run() == work.expected && threads_of_this_process() == 3);
}
#endif

#if defined(__unix__)
// The child has none of the parent's threads and makes its own; the parent keeps its.
void test_run_after_fork() {
    const Work work(BSPARSE_SPMM, 3);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        _exit(work.run() == work.expected && work.run() == work.expected ? 0 : 1);
    }
    CHECK(work.run() == work.expected);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

} // namespace

int main() {
#if defined(__linux__) && defined(_OPENMP)
    test_openmp_runs_the_work(); // first: the other tests start threads
#endif
    test_concurrent_runs();
    test_thread_counts_agree();
    test_two_contexts_at_once();
#if defined(__linux__)
    test_one_thread_for_each_core_allowed();
#endif
#if defined(__unix__)
    test_run_after_fork();
#endif
    return 0;
}
