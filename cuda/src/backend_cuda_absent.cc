// The CUDA backend's seat in a library that was built without it.
#include "backend.h"
#include "error.h"

namespace bsparse {
namespace {

int32_t devices() { return 0; }

void open(Context &) {
    unsupported("context_desc.backend is 2 (CUDA), but this libbsparse was built without CUDA: build it with "
                "-DBSPARSE_CUDA=ON, or use BSPARSE_BACKEND_CPU");
}

constexpr BackendOps make_backend() {
    BackendOps ops{}; // without a context nothing else can be called
    ops.backend = BSPARSE_BACKEND_CUDA;
    ops.devices = devices;
    ops.open = open;
    return ops;
}

} // namespace

const BackendOps kCudaBackend = make_backend();

} // namespace bsparse
