// The kernels for instruction set "avx2"; CMakeLists.txt gives its flags.
#define BSPARSE_CPU_LANES 8
#define BSPARSE_CPU_ISA BSPARSE_CPU_AVX2
#define BSPARSE_CPU_KERNELS kAvx2Kernels
#include "kernel/all.h"
