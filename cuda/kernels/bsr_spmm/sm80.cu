// The sm_80 family of spmm and spmm_t: serves every plan and every run, on sm_80 and newer.
#include <cstring>

#include "../common/family.h"
#include "sm80_launch.h"

namespace bsparse::gpu {
namespace sm80 {
namespace {

constexpr int32_t kAlign = 64; // int32 elements: 256 bytes

// Appends a list to others, aligned; returns where it begins.
template <typename T> size_t append(std::vector<int32_t> &all, const std::vector<T> &list) {
    const size_t at = (all.size() + kAlign - 1) / kAlign * kAlign;
    all.resize(at + list.size() * sizeof(T) / sizeof(int32_t));
    if (!list.empty()) {
        std::memcpy(all.data() + at, list.data(), list.size() * sizeof(T));
    }
    return at;
}

// Where the lists of one SpmmSchedule lie among all.
struct Lists {
    size_t tiles, stages, pieces, parts;
    int32_t tile_count;

    Lists(std::vector<int32_t> &all, const SpmmSchedule &schedule)
        : tiles(append(all, schedule.tiles)), stages(append(all, schedule.stages)),
          pieces(append(all, schedule.pieces)), parts(append(all, schedule.parts)),
          tile_count(static_cast<int32_t>(schedule.tiles.size())) {}
};

bool is_multiple_of_16(const void *data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

class SpmmSm80 final : public Family {
public:
    SpmmSm80(const Plan &plan, const DeviceFacts &device)
        : plan_(plan), transposed_(plan.desc.op == BSPARSE_SPMM_T), multiprocessors_(device.multiprocessors),
          has_pieces_(plan.desc.b_order == BSPARSE_COL_MAJOR && spmm_has_pieces(plan)),
          pieces_(schedule_, has_pieces_ ? spmm_pieces_schedule(plan) : SpmmSchedule{}),
          parts_(schedule_, spmm_parts_schedule(plan)),
          name_(std::string(transposed_ ? "cuda.bsr_spmm_t." : "cuda.bsr_spmm.") + arithmetic_name(plan) + ".sm80" +
                (has_pieces_ ? "" : ".any")) {}

    const std::string &name(int64_t) const override { return name_; }
    bool serves(const bsparse_args &) const override { return true; }
    size_t workspace_bytes(int64_t) const override { return 0; }

    void run(const Run &run) const override {
        const Pattern &p = plan_.pattern;
        const bsparse_args &args = run.args;
        const SpmmKernel kernel = kernel_for(args);
        const Lists &lists = kernel == SpmmKernel::kAny ? parts_ : pieces_;
        SpmmTask task;
        task.tiles = reinterpret_cast<const SpmmTile *>(run.schedule + lists.tiles);
        task.stages = reinterpret_cast<const SpmmStage *>(run.schedule + lists.stages);
        task.pieces = reinterpret_cast<const SpmmPieces *>(run.schedule + lists.pieces);
        task.parts = reinterpret_cast<const SpmmPart *>(run.schedule + lists.parts);
        task.tile_count = lists.tile_count;
        task.tokens = args.tokens;
        task.outer = transposed_ ? p.cols : p.rows;
        task.inner = transposed_ ? p.rows : p.cols;
        task.x = dense_view(args.b, args.ldb, plan_.desc.b_order, plan_.desc.dtype);
        task.values = args.s_values;
        task.block_outer = transposed_ ? p.block_cols : p.block_rows;
        task.block_inner = transposed_ ? p.block_rows : p.block_cols;
        task.outer_stride = transposed_ ? 1 : p.block_cols;
        task.inner_stride = transposed_ ? p.block_cols : 1;
        task.epilogue = make_epilogue(plan_, args);
        launch(kernel, task, run.stream);
    }

private:
    SpmmKernel kernel_for(const bsparse_args &args) const {
        const bool aligned = is_multiple_of_16(args.b) && is_multiple_of_16(args.s_values) &&
                             args.ldb * dtype_bytes(plan_.desc.dtype) % 16 == 0;
        if (!has_pieces_ || !aligned) {
            return SpmmKernel::kAny;
        }
        // Few thread blocks leave the device idle: four times as many then finish sooner, though each loads more.
        const bool few = args.tokens <= 64 || (args.tokens + 127) / 128 * pieces_.tile_count < multiprocessors_;
        return few ? SpmmKernel::kNarrow : SpmmKernel::kWide;
    }

    void launch(SpmmKernel kernel, const SpmmTask &task, CUstream_st *stream) const {
        switch (plan_.desc.dtype) {
        case BSPARSE_BF16:
            return launch_spmm_bf16(kernel, transposed_, task, launcher_, stream);
        case BSPARSE_F16:
            return launch_spmm_f16(kernel, transposed_, task, launcher_, stream);
        default:
            return multiplies_as_tf32(plan_.desc) ? launch_spmm_tf32(kernel, transposed_, task, launcher_, stream)
                                                  : launch_spmm_f32(kernel, transposed_, task, launcher_, stream);
        }
    }

    const Plan &plan_;
    const bool transposed_;
    const int multiprocessors_;
    const bool has_pieces_; // else the loader of anything serves every run
    const Lists pieces_, parts_;
    const std::string name_;
    const Launcher launcher_;
};

} // namespace
} // namespace sm80

std::unique_ptr<Family> make_spmm_sm80(const Plan &plan, const DeviceFacts &device) {
    const bsparse_dtype dtype = plan.desc.dtype;
    const bool served = dtype == BSPARSE_BF16 || dtype == BSPARSE_F16 || dtype == BSPARSE_F32;
    if (device.arch < 80 || plan.desc.op == BSPARSE_SDDMM || !served) {
        return nullptr;
    }
    return std::make_unique<sm80::SpmmSm80>(plan, device);
}

} // namespace bsparse::gpu
