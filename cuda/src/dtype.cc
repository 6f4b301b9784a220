#include "dtype.h"

#include "error.h"

namespace bsparse {

const char *dtype_name(bsparse_dtype dtype) {
    switch (dtype) {
    case BSPARSE_F32:
        return "f32";
    case BSPARSE_F16:
        return "f16";
    case BSPARSE_BF16:
        return "bf16";
    case BSPARSE_F8E4M3:
        return "f8e4m3";
    case BSPARSE_I8:
        return "i8";
    case BSPARSE_F64:
        return "f64";
    default:
        return "unknown";
    }
}

void check_dtype(bsparse_dtype dtype, const char *field) {
    switch (dtype) {
    case BSPARSE_F32:
    case BSPARSE_F16:
    case BSPARSE_BF16:
    case BSPARSE_F64:
        return;
    case BSPARSE_F8E4M3:
    case BSPARSE_I8:
        unsupported("%s is %d (%s), which is reserved for a later version: use f32, f16, bf16 or f64", field, dtype,
                    dtype_name(dtype));
    default:
        invalid_argument("%s is %d, which is no dtype: use BSPARSE_F32 (1), BSPARSE_F16 (2), BSPARSE_BF16 (3) or "
                         "BSPARSE_F64 (6)",
                         field, dtype);
    }
}

} // namespace bsparse
