#include "sm90_kernel.cuh"

namespace bsparse::gpu::sm90 {

KernelChoice choose_f16(bool transposed, bool paired, int tokens, bool staged) {
    return choose_kernel<__half>(transposed, paired, tokens, staged);
}

} // namespace bsparse::gpu::sm90
