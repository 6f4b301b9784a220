// A process that has used OpenMP forks, and only the child opens the library: the runtime that the child inherits has
// no threads there, and a run that waited for them would never return.
#include <atomic>
#include <cstdio>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "bsparse/bsparse.h"

namespace {

#define FIND(library, name) reinterpret_cast<decltype(&name)>(dlsym(library, #name))

// 0 where the library opened from this path packs a matrix, large enough for two threads, and returns.
int pack(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const std::vector<int32_t> offsets{0, 1, 2}, columns{0, 1};
    const bsparse_context_desc context_desc{sizeof(context_desc), BSPARSE_BACKEND_CPU, 0, 2, BSPARSE_CPU_BEST};
    const bsparse_pattern_desc pattern_desc{
        sizeof(pattern_desc), BSPARSE_BSR, 512, 512, 0, 1024, 1024, 2, offsets.data(), columns.data(),
    };
    bsparse_context *context = nullptr;
    bsparse_pattern *pattern = nullptr;
    const std::vector<float> dense(1024 * 1024);
    std::vector<float> values(2 * 512 * 512);
    const bool packed = FIND(library, bsparse_context_create)(&context, &context_desc) == BSPARSE_OK &&
                        FIND(library, bsparse_pattern_create)(&pattern, &pattern_desc) == BSPARSE_OK &&
                        FIND(library, bsparse_pack)(context, pattern, BSPARSE_F32, dense.data(), 1024, values.data(),
                                                    nullptr, nullptr) == BSPARSE_OK;
    FIND(library, bsparse_pattern_destroy)(pattern);
    FIND(library, bsparse_context_destroy)(context);
    return packed ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
    std::atomic<int> team{0};
#pragma omp parallel num_threads(2)
    ++team;
    if (argc != 2 || team != 2) {
        std::fprintf(stderr, "usage: test_load_after_fork <path of libbsparse>; OpenMP gave %d threads\n", team.load());
        return 1;
    }
    const pid_t child = fork();
    if (child == 0) {
        alarm(20); // ends a child that waits for ever
        _exit(pack(argv[1]));
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        std::fprintf(stderr, "the child ended with status 0x%x\n", static_cast<unsigned>(status));
        return 1;
    }
    return 0;
}
