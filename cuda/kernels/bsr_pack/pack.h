// Dense [rows, cols], row-major, to stored blocks [blocks, block_rows, block_cols] and back.
#pragma once

#include <cstdint>

#include "../../src/pattern.h"

struct CUstream_st; // cudaStream_t without CUDA's headers

namespace bsparse::gpu {

// Enqueues on the stream and returns. Needs no device memory: the positions of the blocks travel as parameters of the
// kernels, some thousands at a launch, so that a CUDA graph holds its own copy. Padding of edge blocks is written zero.
void pack(const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld, void *values,
          CUstream_st *stream);

// Where no block is stored, the matrix is written zero.
void unpack(const Pattern &pattern, bsparse_dtype dtype, const void *values, void *dense, int64_t ld,
            CUstream_st *stream);

} // namespace bsparse::gpu
