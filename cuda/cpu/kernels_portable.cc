// The kernels for instruction set "portable"; CMakeLists.txt gives its flags.
#define BSPARSE_CPU_LANES 4
#define BSPARSE_CPU_ISA BSPARSE_CPU_PORTABLE
#define BSPARSE_CPU_KERNELS kPortableKernels
#include "kernel/all.h"
