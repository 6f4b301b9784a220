// The kernels for instruction set "avx512"; CMakeLists.txt gives its flags.
#define BSPARSE_CPU_LANES 16
#define BSPARSE_CPU_ISA BSPARSE_CPU_AVX512
#define BSPARSE_CPU_KERNELS kAvx512Kernels
#include "kernel/all.h"
