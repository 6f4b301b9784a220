// One plan run by several threads at once, contexts of 1, 2 and 3 threads, and runs before and after fork().
#include <algorithm>
#include <thread>
#include <vector>

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "cases.h"

namespace {

// A plan with its operands: enough blocks that threads share the work.
struct Work {
    Case c{"work for threads", 256, 192, 16, 16, scattered(16, 12, 4), 48};
    CasePattern pattern{c};
    ContextHandle context;
    PlanHandle plan;
    std::vector<float> values, x, expected;

    explicit Work(int32_t threads)
        : context(make_context(cpu_desc(threads))), values(static_cast<size_t>(pattern.values(c))),
          x(static_cast<size_t>(c.tokens * c.cols)) {
        bsparse_plan_desc desc{};
        desc.struct_size = sizeof(desc);
        desc.op = BSPARSE_SPMM;
        desc.dtype = BSPARSE_F32;
        plan = make_plan(context, pattern.handle, desc);
        for (size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>(i % 13) / 13.0f;
        }
        for (size_t i = 0; i < x.size(); ++i) {
            x[i] = static_cast<float>(i % 17) / 17.0f;
        }
        expected = run();
    }

    // y [tokens, rows]
    std::vector<float> run() {
        std::vector<float> y(static_cast<size_t>(c.tokens * c.rows));
        std::vector<char> memory(bsparse_plan_workspace_bytes(plan.get(), c.tokens) + 64);
        bsparse_args args{};
        args.struct_size = sizeof(args);
        args.tokens = c.tokens;
        args.s_values = values.data();
        args.b = x.data();
        args.ldb = c.cols;
        args.d = y.data();
        args.ldd = c.rows;
        args.alpha = 1;
        void *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
        CHECK(bsparse_plan_run(plan.get(), &args, nullptr, workspace, nullptr) == BSPARSE_OK);
        return y;
    }
};

void run_at_once(Work &work, int callers) {
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i) {
        threads.emplace_back([&work] {
            for (int run = 0; run < 20; ++run) {
                CHECK(work.run() == work.expected); // bit for bit
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

void test_concurrent_runs() {
    for (const int32_t threads : {1, 2, 3}) {
        Work work(threads);
        run_at_once(work, 4);
    }
}

// How many threads share the work does not change a bit.
void test_thread_counts_agree() {
    const std::vector<float> alone = Work(1).expected;
    CHECK(Work(2).expected == alone && Work(3).expected == alone);
}

void test_two_contexts_at_once() {
    Work first(2), second(3);
    std::thread other([&] { run_at_once(second, 2); });
    run_at_once(first, 2);
    other.join();
}

#if defined(__unix__)
// The child has none of the parent's threads and makes its own; the parent keeps its.
void test_run_after_fork() {
    Work work(3);
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
    test_concurrent_runs();
    test_thread_counts_agree();
    test_two_contexts_at_once();
#if defined(__unix__)
    test_run_after_fork();
#endif
    return 0;
}
