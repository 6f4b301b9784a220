#include "sm90_variants.cuh"

namespace bsparse::gpu::spmm_sm90 {

KernelChoice choose_tf32(const Variant &variant) {
    return variant.depth == 32 ? choose_direction<float, 32, false>(variant)
                               : choose_direction<float, 16, false>(variant);
}

} // namespace bsparse::gpu::spmm_sm90
