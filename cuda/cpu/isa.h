// Which instruction sets this processor runs, and the kernels compiled for each.
#pragma once

#include "kernels.h"

namespace bsparse::cpu {

// Asks the processor and the operating system (which must save the wide registers).
bool runs(bsparse_cpu_isa isa);

// The fastest that this processor runs.
bsparse_cpu_isa best_isa();

// "avx512" and so on; "unknown" for a number that is no instruction set.
const char *isa_name(bsparse_cpu_isa isa);

// The kernels compiled for it; it must run here.
const Kernels &kernels_of(bsparse_cpu_isa isa);

} // namespace bsparse::cpu
