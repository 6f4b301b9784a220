// Which kernel families a CUDA plan considers: rules that need no device.
#include "select.h"

#include <cstdint>
#include <vector>

#include "check.h"

namespace {

using bsparse::gpu::candidates;
using bsparse::gpu::Kind;
using bsparse::gpu::suits;
using Kinds = std::vector<Kind>;

Kinds of(bsparse_op op, bsparse_dtype dtype, int arch, int32_t flags = 0, int64_t blocks = 1) {
    bsparse::Plan plan;
    plan.desc.op = op;
    plan.desc.dtype = dtype;
    plan.desc.flags = flags;
    plan.pattern.blocks = blocks;
    return candidates(plan, arch);
}

void test_hopper() {
    CHECK((of(BSPARSE_SPMM, BSPARSE_BF16, 90) == Kinds{Kind::kDecode, Kind::kSm90, Kind::kSm80}));
    CHECK((of(BSPARSE_SPMM_T, BSPARSE_F16, 90) == Kinds{Kind::kSm90, Kind::kSm80}));
    CHECK((of(BSPARSE_SDDMM, BSPARSE_BF16, 90) == Kinds{Kind::kSm90, Kind::kSm80}));
}

void test_before_and_after_hopper() {
    for (const int arch : {80, 86, 89, 100, 120}) {
        CHECK((of(BSPARSE_SPMM, BSPARSE_BF16, arch) == Kinds{Kind::kDecode, Kind::kSm80}));
        CHECK((of(BSPARSE_SDDMM, BSPARSE_BF16, arch) == Kinds{Kind::kSm80}));
    }
}

void test_tf32_where_it_is_allowed() {
    CHECK((of(BSPARSE_SPMM, BSPARSE_F32, 90, BSPARSE_ALLOW_TF32) == Kinds{Kind::kSm90, Kind::kSm80}));
    CHECK((of(BSPARSE_SPMM, BSPARSE_F32, 80, BSPARSE_ALLOW_TF32) == Kinds{Kind::kSm80}));
    CHECK((of(BSPARSE_SPMM_T, BSPARSE_F32, 90, BSPARSE_ALLOW_TF32) == Kinds{Kind::kSm90, Kind::kSm80}));
    CHECK((of(BSPARSE_SDDMM, BSPARSE_F32, 90, BSPARSE_ALLOW_TF32) == Kinds{Kind::kSm80}));
}

void test_always_sm80() {
    CHECK((of(BSPARSE_SPMM, BSPARSE_F32, 90) == Kinds{Kind::kSm80}));
    CHECK((of(BSPARSE_SPMM, BSPARSE_BF16, 90, BSPARSE_FORCE_SM80) == Kinds{Kind::kSm80}));
    CHECK((of(BSPARSE_SPMM, BSPARSE_BF16, 90, 0, 0) == Kinds{Kind::kSm80})); // without blocks
}

void test_few_tokens() {
    CHECK(suits(Kind::kDecode, 1) && suits(Kind::kDecode, 64) && !suits(Kind::kDecode, 65));
    CHECK(suits(Kind::kSm90, 1) && suits(Kind::kSm80, 1 << 20));
}

} // namespace

int main() {
    test_hopper();
    test_before_and_after_hopper();
    test_tf32_where_it_is_allowed();
    test_always_sm80();
    test_few_tokens();
    return 0;
}
