#include "sm90_kernel.cuh"

namespace bsparse::gpu::sm90 {

KernelChoice choose_bf16(bool transposed, bool paired, int tokens, bool staged) {
    return choose_kernel<__nv_bfloat16>(transposed, paired, tokens, staged);
}

} // namespace bsparse::gpu::sm90
