#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace bsparse::cpu {

#if defined(__x86_64__)
static bool has_f16c() { // clang's run-time check does not know its name
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

bool runs(bsparse_cpu_isa isa) {
    switch (isa) {
    case BSPARSE_CPU_PORTABLE:
        return true;
#if defined(__x86_64__)
    // The compiler's run-time check reads cpuid and, for AVX and AVX-512, XGETBV: false where the system would not
    // save the registers.
    case BSPARSE_CPU_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case BSPARSE_CPU_AVX512:
        return runs(BSPARSE_CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case BSPARSE_CPU_AVX512_BF16:
        return runs(BSPARSE_CPU_AVX512) && __builtin_cpu_supports("avx512bf16");
#endif
    default:
        return false;
    }
}

// vdpbf16ps does the work of two multiply-adds. Zen 4 starts one wherever it would start one of those; on Sapphire
// Rapids it is slower than converting to f32: docs/decisions/0007 has the numbers.
static bool bf16_pays() {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

bsparse_cpu_isa best_isa() {
    bsparse_cpu_isa isa = bf16_pays() ? BSPARSE_CPU_AVX512_BF16 : BSPARSE_CPU_AVX512;
    while (!runs(isa)) {
        --isa;
    }
    return isa;
}

const char *isa_name(bsparse_cpu_isa isa) {
    switch (isa) {
    case BSPARSE_CPU_PORTABLE:
        return "portable";
    case BSPARSE_CPU_AVX2:
        return "avx2";
    case BSPARSE_CPU_AVX512:
        return "avx512";
    case BSPARSE_CPU_AVX512_BF16:
        return "avx512_bf16";
    default:
        return "unknown";
    }
}

const Kernels &kernels_of(bsparse_cpu_isa isa) {
    switch (isa) {
#if defined(__x86_64__)
    case BSPARSE_CPU_AVX2:
        return kAvx2Kernels;
    case BSPARSE_CPU_AVX512:
        return kAvx512Kernels;
    case BSPARSE_CPU_AVX512_BF16:
        return kAvx512Bf16Kernels;
#endif
    default:
        return kPortableKernels;
    }
}

} // namespace bsparse::cpu
