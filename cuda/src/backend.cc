#include "backend.h"

#include "error.h"

namespace bsparse {

const BackendOps *find_backend(bsparse_backend backend, const char *field) {
    for (const BackendOps *ops : {&kCpuBackend, &kCudaBackend}) {
        if (ops->backend == backend) {
            return ops;
        }
    }
    invalid_argument("%s is %d, which is no backend: use BSPARSE_BACKEND_CPU (1) or BSPARSE_BACKEND_CUDA (2)", field,
                     backend);
}

} // namespace bsparse
