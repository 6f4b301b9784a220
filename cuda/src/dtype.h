// Element types: their sizes, their names in messages, and which of them are served.
#pragma once

#include <cstdint>

#include "bsparse/bsparse.h"

namespace bsparse {

// Bytes of one element of a served dtype.
constexpr int64_t dtype_bytes(bsparse_dtype dtype) {
    switch (dtype) {
    case BSPARSE_F64:
        return 8;
    case BSPARSE_F32:
        return 4;
    default:
        return 2; // F16, BF16
    }
}

// "f32" and so on; "unknown" for a number that is no dtype.
const char *dtype_name(bsparse_dtype dtype);

// Throws unless dtype is one that this version serves; field is how the caller knows it ("plan_desc.dtype").
void check_dtype(bsparse_dtype dtype, const char *field);

} // namespace bsparse
