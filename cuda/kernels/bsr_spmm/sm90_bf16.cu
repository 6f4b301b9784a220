#include "sm90_variants.cuh"

namespace bsparse::gpu::spmm_sm90 {

KernelChoice choose_bf16(const Variant &variant) { return choose_variant<__nv_bfloat16>(variant); }

} // namespace bsparse::gpu::spmm_sm90
