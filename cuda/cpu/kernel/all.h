// The kernel source. Each kernels_<isa>.cc includes it once, compiled with its own instruction set, after defining
//   BSPARSE_CPU_LANES    f32 numbers of a register: 4, 8 or 16
//   BSPARSE_CPU_KERNELS  the table that it fills
// Everything else is static: two instruction sets never share a function, and no header of the C++ library is used,
// whose inline functions they would share.
#include <stddef.h>
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../kernels.h"

namespace bsparse::cpu {
namespace {

constexpr int kLanes = BSPARSE_CPU_LANES;

#include "vector.h"
// after vector.h
#include "dense.h"
#include "math.h"
#include "rows.h"
#include "tile.h"
// after those
#include "epilogue.h"
#include "spmm.h"
// after those
#include "decode.h"
#include "sddmm.h"

union Scratch { // of one thread; an item uses one of them
    SpmmScratch spmm;
    DecodeScratch decode;
    SddmmScratch sddmm;
};

} // namespace

const Kernels BSPARSE_CPU_KERNELS = {
    BSPARSE_CPU_ISA,
    kLanes,
    kGroup,
#if defined(__AVX512BF16__)
    true,
#else
    false,
#endif
    sizeof(Scratch),
    image,
    spmm,
    decode,
    sddmm,
};

} // namespace bsparse::cpu
