#include "tensor_map.h"

#include <cinttypes>
#include <cuda_runtime_api.h>

#include "../../src/dtype.h"
#include "../../src/error.h"
#include "launch.h"

namespace bsparse::gpu {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// By name at run time: the library then loads where there is no driver.
Encode find_encode() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        backend_error("the driver has no cuTensorMapEncodeTiled (%s): install one for CUDA 12 or newer",
                      error != cudaSuccess ? take_error(error) : "not found");
    }
    return reinterpret_cast<Encode>(function);
}

CUtensorMapDataType map_dtype(const MapMatrix &matrix) {
    switch (matrix.dtype) {
    case BSPARSE_BF16:
        return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case BSPARSE_F16:
        return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default:
        return matrix.to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    }
}

CUtensorMapSwizzle swizzle_of(int64_t line_bytes) {
    if (line_bytes > 64) {
        return CU_TENSOR_MAP_SWIZZLE_128B;
    }
    return line_bytes > 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
}

} // namespace

CUtensorMap make_tensor_map(const MapMatrix &matrix, int box_width, int box_height) {
    static const Encode encode = find_encode(); // thread-safe; tried again if it threw
    const int64_t bytes = dtype_bytes(matrix.dtype);
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix.width), static_cast<cuuint64_t>(matrix.height)};
    const cuuint64_t pitch_bytes[1] = {static_cast<cuuint64_t>(matrix.pitch * bytes)};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_width), static_cast<cuuint32_t>(box_height)};
    const cuuint32_t steps[2] = {1, 1};
    CUtensorMap map;
    const CUresult result = encode(&map, map_dtype(matrix), 2, const_cast<void *>(matrix.data), sizes, pitch_bytes, box,
                                   steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(box_width * bytes),
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        backend_error("cuTensorMapEncodeTiled answers %d for [%" PRId64 ", %" PRId64 "] of %s at %p with pitch %" PRId64
                      " and boxes [%d, %d]: please report it",
                      static_cast<int>(result), matrix.height, matrix.width, dtype_name(matrix.dtype), matrix.data,
                      matrix.pitch, box_height, box_width);
    }
    return map;
}

bool can_map(bsparse_dtype dtype, const void *data, int64_t pitch) {
    constexpr int64_t kMostBytes = int64_t{1} << 40; // of a pitch, and less
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && pitch < kMostBytes / dtype_bytes(dtype) &&
           pitch * dtype_bytes(dtype) % 16 == 0;
}

} // namespace bsparse::gpu
