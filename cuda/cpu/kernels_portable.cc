// The kernels for instruction set "portable"; CMakeLists.txt gives its flags. Tested on x86-64, where they become SSE2.
// For aarch64 they were compiled (to NEON, by clang 14) but never run.
#define BSPARSE_CPU_LANES 4
#define BSPARSE_CPU_ISA BSPARSE_CPU_PORTABLE
#define BSPARSE_CPU_KERNELS kPortableKernels
#include "kernel/all.h"
