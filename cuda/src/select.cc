#include "select.h"

namespace bsparse::gpu {

bool multiplies_as_tf32(const bsparse_plan_desc &desc) {
    return desc.dtype == BSPARSE_F32 && (desc.flags & BSPARSE_ALLOW_TF32) != 0;
}

std::vector<Kind> candidates(const Plan &plan, int arch) {
    const bsparse_plan_desc &desc = plan.desc;
    std::vector<Kind> kinds;
    const bool half = desc.dtype == BSPARSE_BF16 || desc.dtype == BSPARSE_F16;
    // wgmma takes f32 as TF32 alone, and K-major: sddmm has it the other way.
    const bool tf32 = multiplies_as_tf32(desc) && desc.op != BSPARSE_SDDMM;
    const bool forced = (desc.flags & BSPARSE_FORCE_SM80) != 0;
    if ((half || tf32) && !forced && plan.pattern.blocks > 0) { // without blocks there is nothing to multiply fast
        if (half && desc.op == BSPARSE_SPMM) {
            kinds.push_back(Kind::kDecode);
        }
        if (arch == 90) { // wgmma: these instructions exist on Hopper alone, not on what follows it
            kinds.push_back(Kind::kSm90);
        }
    }
    kinds.push_back(Kind::kSm80);
    return kinds;
}

bool suits(Kind kind, int64_t tokens) {
    switch (kind) {
    case Kind::kDecode:
        return tokens <= kDecodeTokens;
    default:
        return true;
    }
}

} // namespace bsparse::gpu
