// Host nanoseconds of bsparse_plan_run for each family of CUDA kernels, and of what CUDA takes for the pieces of a run.
//
// A line each: nanoseconds of a call, then what was called. Medians of batches of calls; the device is idle before
// each, so that no call waits for room in the stream's queue. bench_gpu.py compiles and runs this.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cuda.h>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#include "../c/handles.h"

namespace {

constexpr int kBatch = 100, kBatches = 101;
constexpr int64_t kSize = 4096; // rows and columns of S, a quarter of whose blocks are stored
constexpr int32_t kBlockRows = 128, kBlockCols = 64;

#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)

template <class Call> void print_cost(const std::string &what, Call call) {
    std::vector<double> nanoseconds;
    for (int batch = 0; batch <= kBatches; ++batch) {
        CHECK_CUDA(cudaDeviceSynchronize());
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kBatch; ++i) {
            call();
        }
        const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
        if (batch > 0) { // the first one loads kernels
            nanoseconds.push_back(taken.count() / kBatch);
        }
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    std::nth_element(nanoseconds.begin(), nanoseconds.begin() + kBatches / 2, nanoseconds.end());
    std::printf("%6.0f ns  %s\n", nanoseconds[kBatches / 2], what.c_str());
    std::fflush(stdout);
}

// CUDA --------------------------------------------------------------------------------------------------

struct Parameters {
    char bytes[768]; // about those of an sm90 kernel: three tensor maps and a little more
};

__global__ void nothing(const __grid_constant__ Parameters) {}

void launch_nothing(unsigned cluster, bool early, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2];
    unsigned count = 0;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {cluster, 1, 1};
    }
    if (early) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(132);
    config.blockDim = dim3(384);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    CHECK_CUDA(cudaLaunchKernelEx(&config, nothing, Parameters{}));
}

// Zeros in device memory, for the life of the process.
char *zeros(size_t bytes) {
    void *data = nullptr;
    CHECK_CUDA(cudaMalloc(&data, bytes + 1)); // not NULL where bytes is 0
    CHECK_CUDA(cudaMemset(data, 0, bytes + 1));
    return static_cast<char *>(data);
}

void print_tensor_map() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
    const cuuint64_t sizes[2] = {kSize, kSize}, pitch[1] = {2 * kSize};
    const cuuint32_t box[2] = {64, 128}, steps[2] = {1, 1};
    char *data = zeros(2 * kSize * kSize);
    CUtensorMap map;
    print_cost("cuTensorMapEncodeTiled", [&] {
        CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, sizes, pitch, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    });
}

void print_cuda(cudaStream_t stream) {
    int device = 0;
    print_cost("cudaGetDevice", [&] { cudaGetDevice(&device); });
    print_cost("cudaFuncSetAttribute",
               [] { cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10); });
    print_tensor_map();
    for (const unsigned cluster : {1u, 2u}) {
        for (const bool early : {false, true}) {
            print_cost(std::string("an empty kernel") + (cluster > 1 ? " in clusters" : "") +
                           (early ? ", started early" : ""),
                       [&] { launch_nothing(cluster, early, stream); });
        }
    }
}

// bsparse -----------------------------------------------------------------------------------------------

PatternHandle make_quarter(bool empty = false) {
    const int32_t rows = kSize / kBlockRows, cols = kSize / kBlockCols;
    std::vector<int32_t> offsets{0}, indices;
    for (int32_t row = 0; row < rows; ++row) {
        for (int32_t col = row % 4; col < cols && !empty; col += 4) {
            indices.push_back(col);
        }
        offsets.push_back(static_cast<int32_t>(indices.size()));
    }
    return make_pattern({sizeof(bsparse_pattern_desc), BSPARSE_BSR, kBlockRows, kBlockCols, 0, kSize, kSize,
                         offsets.back(), offsets.data(), indices.data()});
}

void print_run(const char *what, const ContextHandle &context, const PatternHandle &pattern, bsparse_op op,
               int64_t tokens, int32_t flags, cudaStream_t stream) {
    bsparse_plan_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.op = op;
    desc.dtype = BSPARSE_BF16;
    desc.flags = flags;
    const PlanHandle plan = make_plan(context, pattern, desc);
    char *schedule = zeros(bsparse_plan_schedule_bytes(plan.get()));
    char *workspace = zeros(bsparse_plan_workspace_bytes(plan.get(), tokens));
    CHECK(bsparse_plan_upload(plan.get(), schedule, stream) == BSPARSE_OK);
    CHECK_CUDA(cudaStreamSynchronize(stream));
    size_t bytes = 0;
    CHECK(bsparse_pattern_sizes(pattern.get(), BSPARSE_BF16, &bytes, nullptr) == BSPARSE_OK);
    bsparse_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens;
    args.alpha = 1;
    args.s_values = zeros(bytes);
    args.b = zeros(2 * tokens * kSize);
    args.ldb = kSize;
    if (op == BSPARSE_SDDMM) {
        args.a = zeros(2 * tokens * kSize);
        args.lda = kSize;
    } else {
        args.d = zeros(2 * tokens * kSize);
        args.ldd = kSize;
    }
    const std::string kernel = bsparse_plan_kernel(plan.get(), tokens);
    print_cost(std::string(what) + ", " + kernel + ", tokens: " + std::to_string(tokens),
               [&] { CHECK(bsparse_plan_run(plan.get(), &args, schedule, workspace, stream) == BSPARSE_OK); });
}

void print_bsparse(cudaStream_t stream) {
    const ContextHandle context = make_context({sizeof(bsparse_context_desc), BSPARSE_BACKEND_CUDA, 0, 0, 0});
    print_run("arguments checked, nothing launched", context, make_quarter(true), BSPARSE_SDDMM, 128, 0, stream);
    const PatternHandle pattern = make_quarter();
    for (const int64_t tokens : {1, 16, 128}) {
        print_run("C call", context, pattern, BSPARSE_SPMM, tokens, 0, stream);
    }
    print_run("C call", context, pattern, BSPARSE_SPMM_T, 128, 0, stream);
    print_run("C call", context, pattern, BSPARSE_SDDMM, 128, 0, stream);
    print_run("C call", context, pattern, BSPARSE_SPMM, 128, BSPARSE_FORCE_SM80, stream);
}

} // namespace

int main() {
    if (bsparse_backend_devices(BSPARSE_BACKEND_CUDA) == 0) {
        std::fprintf(stderr, "host_cost: no NVIDIA device that bsparse can use here\n");
        return 77;
    }
    cudaStream_t stream;
    CHECK_CUDA(cudaStreamCreate(&stream));
    print_cuda(stream);
    print_bsparse(stream);
    return 0;
}
