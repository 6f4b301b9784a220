#include "select.h"

namespace bsparse::gpu {

std::vector<Kind> candidates(const Plan &plan, int arch) {
    const bsparse_plan_desc &desc = plan.desc;
    std::vector<Kind> kinds;
    const bool half = desc.dtype == BSPARSE_BF16 || desc.dtype == BSPARSE_F16;
    const bool forced = (desc.flags & BSPARSE_FORCE_SM80) != 0;
    if (half && !forced && plan.pattern.blocks > 0) { // without blocks there is nothing to multiply fast
        if (desc.op == BSPARSE_SPMM) {
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
