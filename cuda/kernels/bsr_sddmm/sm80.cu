// The sm_80 family of sddmm: serves every plan and every run, on sm_80 and newer.
#include <cstring>

#include "../common/family.h"
#include "../common/launch.h"
#include "sm80_launch.h"

namespace bsparse::gpu {
namespace sm80 {
namespace {

constexpr size_t kAlign = 64; // int32 elements: 256 bytes

// One thread an element; the parts are added in their order, so that the bits are the same every time.
__global__ void add_splits(const float *parts, int32_t splits, int64_t elements, float beta, void *values,
                           bsparse_dtype dtype) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= elements) {
        return;
    }
    float x = 0;
    for (int32_t split = 0; split < splits; ++split) {
        x += parts[split * elements + i];
    }
    if (beta != 0) {
        x += beta * load_as_f32(values, dtype, i);
    }
    store_from_f32(values, dtype, i, x);
}

bool is_multiple_of_16(const void *data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

class SddmmSm80 final : public Family {
public:
    SddmmSm80(const Plan &plan, const DeviceFacts &device)
        : plan_(plan), multiprocessors_(device.multiprocessors), stage_tokens_(128 / dtype_bytes(plan.desc.dtype)),
          aligned_kernel_(aligned_kernel(plan)), name_(std::string("cuda.bsr_sddmm.") + arithmetic_name(plan) +
                                                       ".sm80" + (aligned_kernel_ == SddmmKernel::kAny ? ".any" : "")) {
        const std::vector<SddmmTile> aligned = sddmm_tiles(plan.pattern, tile_rows(aligned_kernel_));
        const std::vector<SddmmTile> any = sddmm_tiles(plan.pattern, tile_rows(SddmmKernel::kAny));
        aligned_tiles_ = static_cast<int32_t>(aligned.size());
        any_tiles_ = static_cast<int32_t>(any.size());
        append(plan.pattern.by_row.minors);
        aligned_at_ = append(aligned);
        any_at_ = append(any);
    }

    const std::string &name(int64_t) const override { return name_; }
    bool serves(const bsparse_args &) const override { return true; }

    size_t workspace_bytes(int64_t tokens) const override {
        const int splits = splits_for(tokens);
        return splits == 1 ? 0 : static_cast<size_t>(splits * elements()) * sizeof(float);
    }

    void run(const Run &run) const override {
        const Pattern &p = plan_.pattern;
        const bsparse_plan_desc &desc = plan_.desc;
        const bsparse_args &args = run.args;
        if (p.blocks == 0) {
            return;
        }
        const SddmmKernel kernel = is_aligned(args) ? aligned_kernel_ : SddmmKernel::kAny;
        const bool any = kernel == SddmmKernel::kAny;
        SddmmTask task;
        task.tiles = reinterpret_cast<const SddmmTile *>(run.schedule + (any ? any_at_ : aligned_at_));
        task.tile_count = any ? any_tiles_ : aligned_tiles_;
        task.minors = run.schedule;
        task.tokens = args.tokens;
        task.rows = p.rows;
        task.cols = p.cols;
        task.a = dense_view(args.a, args.lda, desc.a_order, desc.dtype);
        // B is [tokens, cols]: its rows are dense_view's columns.
        const bsparse_order b_order = desc.b_order == BSPARSE_ROW_MAJOR ? BSPARSE_COL_MAJOR : BSPARSE_ROW_MAJOR;
        task.b = dense_view(args.b, args.ldb, b_order, desc.dtype);
        task.block_rows = p.block_rows;
        task.block_cols = p.block_cols;
        task.alpha = static_cast<float>(args.alpha);
        task.beta = static_cast<float>(args.beta);
        task.values = static_cast<char *>(args.s_values);
        task.values_dtype = desc.out_dtype;
        task.splits = splits_for(args.tokens);
        const int64_t stages = (args.tokens + stage_tokens_ - 1) / stage_tokens_;
        task.split_tokens = (stages + task.splits - 1) / task.splits * stage_tokens_;
        task.split_elements = elements();
        if (task.splits > 1) {
            task.values = run.workspace;
            task.values_dtype = BSPARSE_F32;
            task.beta = 0;
        }
        launch_kernel(kernel, task, run.stream);
        if (task.splits > 1) {
            const auto grid = static_cast<unsigned>((elements() + 255) / 256);
            launcher_("bsr_sddmm (sm80, sum of parts)", add_splits, {grid, 256}, run.stream,
                      reinterpret_cast<const float *>(run.workspace), task.splits, elements(),
                      static_cast<float>(args.beta), args.s_values, desc.out_dtype);
        }
    }

private:
    // The kernel for plans and runs that can be read 16 bytes at a time.
    static SddmmKernel aligned_kernel(const Plan &plan) {
        const Pattern &p = plan.pattern;
        const bool by_tokens = plan.desc.a_order == BSPARSE_COL_MAJOR && plan.desc.b_order == BSPARSE_ROW_MAJOR;
        if (!by_tokens || p.block_rows % 16 != 0 || p.block_cols % 16 != 0) {
            return SddmmKernel::kAny;
        }
        return p.block_rows > 64   ? SddmmKernel::kRows128
               : p.block_rows > 32 ? SddmmKernel::kRows64
                                   : SddmmKernel::kRows32;
    }

    bool is_aligned(const bsparse_args &args) const {
        const int64_t bytes = dtype_bytes(plan_.desc.dtype);
        return is_multiple_of_16(args.a) && is_multiple_of_16(args.b) && is_multiple_of_16(args.s_values) &&
               args.lda * bytes % 16 == 0 && args.ldb * bytes % 16 == 0;
    }

    template <typename T> size_t append(const std::vector<T> &list) {
        const size_t at = (schedule_.size() + kAlign - 1) / kAlign * kAlign;
        schedule_.resize(at + list.size() * sizeof(T) / sizeof(int32_t));
        if (!list.empty()) {
            std::memcpy(schedule_.data() + at, list.data(), list.size() * sizeof(T));
        }
        return at;
    }

    int64_t elements() const { return plan_.pattern.blocks * plan_.pattern.block_rows * plan_.pattern.block_cols; }

    // The same for every alignment: the workspace is asked for before the addresses are known.
    int splits_for(int64_t tokens) const {
        return sddmm_splits(aligned_tiles_, tokens, stage_tokens_, multiprocessors_);
    }

    void launch_kernel(SddmmKernel kernel, const SddmmTask &task, CUstream_st *stream) const {
        switch (plan_.desc.dtype) {
        case BSPARSE_BF16:
            return launch_sddmm_bf16(kernel, task, launcher_, stream);
        case BSPARSE_F16:
            return launch_sddmm_f16(kernel, task, launcher_, stream);
        default:
            return multiplies_as_tf32(plan_.desc) ? launch_sddmm_tf32(kernel, task, launcher_, stream)
                                                  : launch_sddmm_f32(kernel, task, launcher_, stream);
        }
    }

    const Plan &plan_;
    const int multiprocessors_;
    const int64_t stage_tokens_;
    const SddmmKernel aligned_kernel_; // or the loader of anything, which then serves every run
    const std::string name_;
    int32_t aligned_tiles_, any_tiles_;
    size_t aligned_at_, any_at_; // in the schedule, behind minors
    const Launcher launcher_;
};

} // namespace
} // namespace sm80

std::unique_ptr<Family> make_sddmm_sm80(const Plan &plan, const DeviceFacts &device) {
    const bsparse_dtype dtype = plan.desc.dtype;
    const bool served = dtype == BSPARSE_BF16 || dtype == BSPARSE_F16 || dtype == BSPARSE_F32;
    if (device.arch < 80 || plan.desc.op != BSPARSE_SDDMM || !served) {
        return nullptr;
    }
    return std::make_unique<sm80::SddmmSm80>(plan, device);
}

} // namespace bsparse::gpu
