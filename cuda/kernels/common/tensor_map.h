// What the bulk tensor copies of sm_90 read: a matrix in device memory, cut into boxes.
#pragma once

#include <cstdint>
#include <cuda.h>

#include "bsparse/bsparse.h"

namespace bsparse::gpu {

// A matrix of lines of contiguous elements; element (x, y) lies at data + (y * pitch + x) elements.
struct MapMatrix {
    bsparse_dtype dtype; // BF16, F16, F32
    const void *data;    // a multiple of 16
    int64_t width;       // elements in a line; reads beyond give 0, writes beyond are dropped
    int64_t height;      // lines; likewise
    int64_t pitch;       // elements from a line to the next; in bytes a multiple of 16
    bool to_tf32 = false; // F32: reads round it to TF32, to nearest
};

// Boxes of [box_height, box_width] elements, each at most 256. A line of a box spans at most 128 bytes: they are
// swizzled in shared memory with the span of 128, 64 or 32 bytes that fits it. Throws Error.
CUtensorMap make_tensor_map(const MapMatrix &matrix, int box_width, int box_height);

// Whether make_tensor_map() takes this address and pitch.
bool can_map(bsparse_dtype dtype, const void *data, int64_t pitch);

} // namespace bsparse::gpu
