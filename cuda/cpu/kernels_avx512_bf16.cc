// The kernels for instruction set "avx512_bf16"; CMakeLists.txt gives its flags.
#define BSPARSE_CPU_LANES 16
#define BSPARSE_CPU_ISA BSPARSE_CPU_AVX512_BF16
#define BSPARSE_CPU_KERNELS kAvx512Bf16Kernels
#include "kernel/all.h"
