// Starting kernels: the one place that describes a launch to CUDA, and that turns what CUDA answers into an Error.
#pragma once

#include <atomic>
#include <cuda_runtime_api.h>
#include <type_traits>

namespace bsparse::gpu {

// The text of an error. Clears it: CUDA would otherwise report it again to the next caller of the process.
const char *take_error(cudaError_t error);

// Throws Error unless CUDA answered success; what: "the copy of the schedule".
void check(cudaError_t error, const char *what);

struct LaunchShape {
    dim3 blocks;
    unsigned threads; // of a block
    int shared_bytes = 0; // of a block: dynamic
    unsigned cluster = 1; // blocks in a cluster, along x
    bool early = false; // may start while the kernel before it in the stream still runs: it waits for that by itself
};

// Launches the kernels of one plan. Threads may use it at once.
class Launcher {
public:
    Launcher() = default;
    Launcher(const Launcher &) = delete;
    Launcher &operator=(const Launcher &) = delete;

    // The plan's device is current. Throws Error, which says name, if the launch fails.
    template <class... Parameters>
    void operator()(const char *name, void (*kernel)(Parameters...), const LaunchShape &shape, cudaStream_t stream,
                    const std::decay_t<Parameters> &...arguments) const {
        void *addresses[] = {const_cast<void *>(static_cast<const void *>(&arguments))...};
        start(name, reinterpret_cast<const void *>(kernel), shape, stream, addresses);
    }

    // The same with the addresses of the arguments.
    void start(const char *name, const void *kernel, const LaunchShape &shape, cudaStream_t stream,
               void **arguments) const;

private:
    // A kernel needs leave for more than 48 KB of shared memory, once on each device.
    void allow_shared_memory(const char *name, const void *kernel, int bytes) const;

    static constexpr int kKernels = 8;
    mutable std::atomic<const void *> allowed_[kKernels] = {}; // those with leave; more of them ask every time
};

} // namespace bsparse::gpu
