#include "sm90_kernel.cuh"

namespace bsparse::gpu::sm90 {

KernelChoice choose_f16(const Variant &variant) {
    switch (variant.depth) {
    case 64:
        return choose_tile<__half, 64>(variant);
    case 32:
        return choose_tile<__half, 32>(variant);
    default:
        return choose_tile<__half, 16>(variant);
    }
}

} // namespace bsparse::gpu::sm90
