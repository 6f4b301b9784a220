// spmm of 1 to 64 tokens: bf16 and f16, blocks of any multiples of 16, a multiple of 8 columns.
#include "decode.cuh"

#include <atomic>
#include <string>

#include "../../src/select.h"
#include "../common/family.h"
#include "../common/launch.h"
#include "decode_plan.h"

namespace bsparse::gpu {
namespace {

constexpr int64_t kAheadRowBytes = 512; // of each row of a tile, brought into L2 ahead of their use
constexpr int32_t kWidestBlock = 1024; // wider blocks gain nothing here and make prefetches large

// One thread for each element of D that is a sum of parts, added in the order of the columns.
__global__ void decode_join(const __grid_constant__ DecodeTask task) {
    start_early();
    const int64_t element = int64_t{blockIdx.x} * kDecodeThreads + threadIdx.x;
    wait_for_inputs(); // all threads: when a kernel is done, so are those before it
    if (element >= task.joined) {
        return;
    }
    const int row = static_cast<int>(element % task.block_rows);
    const int64_t token = element / task.block_rows % task.tokens;
    const int4 join = __ldcg(task.joins + element / task.block_rows / task.tokens);
    const int64_t feature = int64_t{join.x} * task.block_rows + row;
    if (feature >= task.rows) {
        return;
    }
    float x = 0;
    for (int part = join.y; part < join.y + join.z; ++part) {
        x += __ldcg(task.parts + (part * int64_t{task.tokens} + token) * task.block_rows + row);
    }
    finish(task.epilogue, x, token, feature);
}

using Kernel = void (*)(DecodeTask);

template <typename T, int kTokenTiles> Kernel kernel_of_rows(int tile_rows) {
    return tile_rows == 32 ? decode<DecodeShape<T, kTokenTiles, 32>> : decode<DecodeShape<T, kTokenTiles, 16>>;
}

template <typename T> Kernel kernel_of(int64_t tokens, int tile_rows) {
    if (tokens <= 8) {
        return kernel_of_rows<T, 1>(tile_rows);
    }
    if (tokens <= 16) {
        return kernel_of_rows<T, 2>(tile_rows);
    }
    if (tokens <= 32) {
        return kernel_of_rows<T, 4>(tile_rows);
    }
    return tile_rows == 64 ? decode<DecodeShape<T, 8, 64>> : kernel_of_rows<T, 8>(tile_rows);
}

class Decode : public Family {
public:
    Decode(const Plan &plan, const DeviceFacts &device)
        : plan_(plan), multiprocessors_(device.multiprocessors),
          name_(std::string("cuda.bsr_spmm.") + dtype_name(plan.desc.dtype) + ".decode"),
          lists_(make_decode_lists(plan.pattern, device.multiprocessors, dtype_bytes(plan.desc.dtype))) {
        schedule_.swap(lists_.numbers);
    }

    const std::string &name(int64_t) const override { return name_; }

    bool serves(const bsparse_args &args) const override {
        const auto addresses = reinterpret_cast<uintptr_t>(args.b) | reinterpret_cast<uintptr_t>(args.s_values);
        return args.tokens <= kDecodeTokens && addresses % 16 == 0 && (args.tokens == 1 || args.ldb % 8 == 0);
    }

    size_t workspace_bytes(int64_t tokens) const override {
        return sizeof(float) * lists_.parts * tokens * plan_.pattern.block_rows;
    }

    void run(const Run &run) const override {
        const bsparse_args &args = run.args;
        const Pattern &pattern = plan_.pattern;
        const bool early = waits();
        const int tile_rows = decode_tile_rows(pattern.block_rows, args.tokens, lists_.items, enough(early));
        DecodeTask task;
        task.x = static_cast<const char *>(args.b);
        task.values = static_cast<const char *>(args.s_values);
        task.ldx = args.ldb;
        task.rows = pattern.rows;
        task.cols = pattern.cols;
        task.tokens = static_cast<int32_t>(args.tokens);
        task.block_rows = pattern.block_rows;
        task.block_cols = pattern.block_cols;
        task.tiles = pattern.block_rows / tile_rows;
        const int64_t row_bytes = pattern.block_cols * dtype_bytes(plan_.desc.dtype);
        task.ahead = static_cast<int32_t>((kAheadRowBytes + row_bytes - 1) / row_bytes);
        task.items = reinterpret_cast<const int4 *>(run.schedule);
        task.joins = reinterpret_cast<const int4 *>(run.schedule + lists_.first_join());
        task.columns = run.schedule + lists_.first_column();
        task.joined = lists_.joins * args.tokens * pattern.block_rows;
        task.parts = reinterpret_cast<float *>(run.workspace);
        task.epilogue = make_epilogue(plan_, args);
        task.plain = args.beta == 0 && args.bias == nullptr && args.aux == nullptr &&
                     plan_.desc.epilogue == BSPARSE_EPILOGUE_NONE && plan_.desc.out_dtype == plan_.desc.dtype;

        const bool bf16 = plan_.desc.dtype == BSPARSE_BF16;
        launch(bf16 ? kernel_of<__nv_bfloat16>(args.tokens, tile_rows) : kernel_of<__half>(args.tokens, tile_rows),
               int64_t{lists_.items} * task.tiles, early, run.stream, task);
        if (task.joined > 0) {
            launch(decode_join, (task.joined - 1) / kDecodeThreads + 1, early, run.stream, task);
        }
    }

private:
    void launch(Kernel kernel, int64_t blocks, bool early, cudaStream_t stream, const DecodeTask &task) const {
        launcher_("bsr_spmm (decode)", kernel, {static_cast<unsigned>(blocks), kDecodeThreads, 0, 1, early}, stream,
                  task);
    }

    // Tiles that keep the device busy. Where kernels of a chain overlap, the next kernel's run beside them.
    int enough(bool early) const { return early ? multiprocessors_ * 3 / 4 : multiprocessors_ * 3 / 2; }

    // Whether the code that this device runs waits for the kernels before it, as it must in an early start: that for
    // sm_90 does, that for sm_80 cannot, and a build for sm_80 alone is what a newer device then translates.
    bool waits() const {
        int known = waits_.load(std::memory_order_relaxed);
        if (known < 0) {
            cudaFuncAttributes facts;
            check(cudaFuncGetAttributes(&facts, decode_join), "a question about bsr_spmm (decode)");
            known = facts.ptxVersion >= 90;
            waits_.store(known, std::memory_order_relaxed);
        }
        return known == 1;
    }

    const Plan &plan_;
    const int multiprocessors_;
    const std::string name_;
    DecodeLists lists_;
    mutable std::atomic<int> waits_{-1}; // not known, no, yes
    const Launcher launcher_;
};

} // namespace

std::unique_ptr<Family> make_spmm_decode(const Plan &plan, const DeviceFacts &device) {
    const bsparse_plan_desc &desc = plan.desc;
    const Pattern &pattern = plan.pattern;
    const bool half = desc.dtype == BSPARSE_BF16 || desc.dtype == BSPARSE_F16;
    const bool orders = desc.b_order == BSPARSE_COL_MAJOR && desc.d_order == BSPARSE_COL_MAJOR;
    const bool blocks =
        pattern.block_rows % 16 == 0 && pattern.block_cols % 16 == 0 && pattern.block_cols <= kWidestBlock;
    const bool sizes = pattern.cols % 8 == 0 && pattern.rows < int64_t{1} << 31; // loads of X; the grid
    if (desc.op != BSPARSE_SPMM || !half || !orders || !blocks || !sizes) {
        return nullptr;
    }
    return std::make_unique<Decode>(plan, device);
}

} // namespace bsparse::gpu
