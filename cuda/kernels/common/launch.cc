#include "launch.h"

#include "../../src/error.h"

namespace bsparse::gpu {
namespace {

void check_launch(cudaError_t error, const char *kernel) {
    if (error != cudaSuccess) {
        backend_error("the launch of %s failed, and CUDA answers \"%s\": check the device with nvidia-smi", kernel,
                      take_error(error));
    }
}

} // namespace

const char *take_error(cudaError_t error) {
    cudaGetLastError();
    return cudaGetErrorString(error);
}

void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        backend_error("%s failed, and CUDA answers \"%s\": check the device and the pointers passed", what,
                      take_error(error));
    }
}

void Launcher::start(const char *name, const void *kernel, const LaunchShape &shape, cudaStream_t stream,
                     void **arguments) const {
    allow_shared_memory(name, kernel, shape.shared_bytes);
    cudaLaunchAttribute attributes[2];
    unsigned count = 0;
    if (shape.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
    }
    if (shape.early) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    // Not <<<>>>: after it, an earlier failure of the process would look like this launch's.
    cudaLaunchConfig_t config{};
    config.gridDim = shape.blocks;
    config.blockDim = dim3(shape.threads);
    config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    check_launch(cudaLaunchKernelExC(&config, kernel, arguments), name);
}

void Launcher::allow_shared_memory(const char *name, const void *kernel, int bytes) const {
    constexpr int kAllowedToAll = 48 << 10;
    if (bytes <= kAllowedToAll) {
        return;
    }
    std::atomic<const void *> *free = nullptr;
    for (std::atomic<const void *> &allowed : allowed_) {
        const void *found = allowed.load(std::memory_order_relaxed);
        if (found == kernel) {
            return;
        }
        if (found == nullptr) {
            free = &allowed;
            break;
        }
    }
    check_launch(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
    const void *nothing = nullptr;
    if (free != nullptr) {
        free->compare_exchange_strong(nothing, kernel, std::memory_order_relaxed);
    }
}

} // namespace bsparse::gpu
