#include "sm90_variants.cuh"

namespace bsparse::gpu::spmm_sm90 {

KernelChoice choose_f16(const Variant &variant) { return choose_variant<__half>(variant); }

} // namespace bsparse::gpu::spmm_sm90
