#include "sm90_variants.cuh"

namespace bsparse::gpu::sm90 {

KernelChoice choose_f16(const Variant &variant) { return choose_variant<__half>(variant); }

} // namespace bsparse::gpu::sm90
