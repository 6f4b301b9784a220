// The sm_90 family of spmm and spmm_t: bf16 and f16, blocks of a multiple of 64 outputs and 16 inputs, and
// spmm of 32x32 blocks. f32 as TF32, where the caller allows it, with no 32x32 blocks; wgmma takes it K-major alone, so
// that spmm_t first transposes the blocks into the workspace.
#include <algorithm>
#include <limits>
#include <string>

#include "../../src/dtype.h"
#include "../common/family.h"
#include "../common/launch.h"
#include "../common/tensor_map.h"
#include "sm90_arguments.h"
#include "sm90_merge_schedule.h"
#include "sm90_schedule.h"

namespace bsparse::gpu {
namespace {

using namespace spmm_sm90;

int32_t line_of(const Plan &plan) { return plan.desc.dtype == BSPARSE_F32 ? kLineOf32Bits : kLineOf16Bits; }

class SpmmSm90 final : public Family {
public:
    SpmmSm90(const Plan &plan, const DeviceFacts &device)
        : plan_(plan), transposed_(plan.desc.op == BSPARSE_SPMM_T), line_(line_of(plan)),
          across_(transposed_ && line_ == kLineOf16Bits),
          order_(has_merge_schedule(plan.pattern, transposed_)
                     ? make_merge_schedule(plan.pattern, device.multiprocessors)
                     : make_schedule(plan.pattern, transposed_, device.multiprocessors, line_)) {
        schedule_ = std::move(order_.words);
        for (const UnitLists &lists : order_.lists) {
            const Coverage &coverage = lists.coverage;
            names_.push_back(std::string("cuda.bsr_spmm") + (transposed_ ? "_t." : ".") + arithmetic_name(plan) +
                             ".sm90.128x" + std::to_string(coverage.tokens) +
                             (coverage.cluster > 1 ? "x" + std::to_string(coverage.cluster) : ""));
        }
    }

    const std::string &name(int64_t tokens) const override { return names_[order_.choose(tokens)]; }

    bool serves(const bsparse_args &args) const override {
        const bsparse_dtype dtype = plan_.desc.dtype;
        return can_map(dtype, args.b, args.ldb) &&
               can_map(dtype, args.s_values, value_width(plan_.pattern, transposed_, line_)) &&
               args.tokens < std::numeric_limits<int32_t>::max() / 2;
    }

    size_t workspace_bytes(int64_t) const override {
        return transposes() ? static_cast<size_t>(elements() * dtype_bytes(plan_.desc.dtype)) : 0;
    }

    void run(const Run &run) const override {
        const int way = order_.choose(run.args.tokens);
        const bool staged = !goes_direct(run.args);
        const KernelChoice kernel = choose(way, staged);
        Arguments arguments = describe(run, way, staged);
        if (transposes()) {
            const Pattern &pattern = plan_.pattern;
            transpose_blocks(launcher_,
                             {static_cast<const float *>(run.args.s_values), reinterpret_cast<float *>(run.workspace),
                              pattern.blocks, pattern.block_rows, pattern.block_cols},
                             run.stream);
        }
        const LaunchShape shape{static_cast<unsigned>(used_workers(arguments) * arguments.cluster), kThreads,
                                kernel.shared_bytes, static_cast<unsigned>(arguments.cluster), true};
        void *parameters[] = {&arguments};
        launcher_.start(names_[way].c_str(), kernel.function, shape, run.stream, parameters);
    }

private:
    // Whether the kernels that store D by the copy engine can serve it.
    bool goes_direct(const bsparse_args &args) const {
        return plan_.desc.out_dtype == plan_.desc.dtype && args.beta == 0 && args.aux == nullptr &&
               can_map(plan_.desc.dtype, args.d, args.ldd);
    }

    KernelChoice choose(int way, bool staged) const {
        const bsparse_dtype dtype = plan_.desc.dtype;
        const auto choose_as = dtype == BSPARSE_BF16 ? choose_bf16 : dtype == BSPARSE_F16 ? choose_f16 : choose_tf32;
        return choose_as(
            {order_.merged, order_.depth, across_, order_.paired, order_.lists[way].coverage.tokens, staged});
    }

    Arguments describe(const Run &run, int way, bool staged) const {
        const bsparse_args &args = run.args;
        const UnitLists &lists = order_.lists[way];
        const Coverage &coverage = lists.coverage;
        const int64_t outputs = transposed_ ? plan_.pattern.cols : plan_.pattern.rows;
        const int group_tokens = coverage.tokens * coverage.cluster;
        Arguments a;
        map_operands(run, coverage.tokens, a);
        if (!staged) { // boxes as Outgoing fills them: as many tokens as a line has outputs
            a.output_map = make_tensor_map({plan_.desc.dtype, args.d, outputs, args.tokens, args.ldd},
                                           order_.merged ? kStrip / 2 : line_, line_);
        }
        a.tiles = reinterpret_cast<const int4 *>(run.schedule);
        a.steps = reinterpret_cast<const int4 *>(run.schedule + order_.steps_offset);
        a.units = run.schedule + lists.offset;
        a.workers = lists.workers;
        a.units_end = lists.rounds * lists.workers;
        a.period = coverage.period;
        a.supergroup = coverage.supergroup;
        a.groups = static_cast<int>((args.tokens + group_tokens - 1) / group_tokens);
        a.cluster = coverage.cluster;
        a.tokens = static_cast<int>(args.tokens);
        a.outputs = static_cast<int>(outputs);
        a.epilogue = make_epilogue(plan_, args);
        return a;
    }

    void map_operands(const Run &run, int tokens, Arguments &a) const {
        const Pattern &pattern = plan_.pattern;
        const bsparse_args &args = run.args;
        const bsparse_dtype dtype = plan_.desc.dtype;
        const bool to_tf32 = dtype == BSPARSE_F32; // wgmma would cut off what TF32 lacks
        const MapMatrix inputs{dtype,       args.b,   transposed_ ? pattern.rows : pattern.cols,
                               args.tokens, args.ldb, to_tf32};
        a.input_map = make_tensor_map(inputs, order_.depth, tokens);
        if (order_.merged) {
            a.narrow_map = make_tensor_map(inputs, order_.depth / 2, tokens);
        }
        const int64_t width = value_width(pattern, transposed_, line_);
        const void *blocks = transposes() ? run.workspace : args.s_values;
        const MapMatrix values{dtype, blocks, width, elements() / width, width, to_tf32};
        a.value_map = make_tensor_map(values, line_, value_lines());
    }

    // Of the box of a piece of S, whose lines are of 128 bytes.
    int value_lines() const {
        if (order_.merged) {
            return kMergeLines;
        }
        return across_ ? order_.depth : kStrip * order_.depth / line_;
    }

    bool transposes() const { return transposed_ && !across_; }

    int64_t elements() const { return plan_.pattern.blocks * plan_.pattern.block_rows * plan_.pattern.block_cols; }

    // The first units go to a worker each: with few of them, the last workers have none.
    int used_workers(const Arguments &a) const {
        const int64_t groups = (a.groups + a.supergroup - 1) / a.supergroup * a.supergroup;
        return static_cast<int>(std::min<int64_t>(a.workers, groups * order_.tiles));
    }

    const Plan &plan_;
    const bool transposed_;
    const int32_t line_;
    const bool across_; // the kernels read the blocks across; else spmm_t's are transposed before
    Schedule order_; // its words are in schedule_
    std::vector<std::string> names_; // for each of order_.lists
    const Launcher launcher_;
};

bool takes(const Plan &plan) {
    const bool transposed = plan.desc.op == BSPARSE_SPMM_T;
    if (plan.desc.dtype == BSPARSE_F32) {
        return multiplies_as_tf32(plan.desc) && has_schedule(plan.pattern, transposed, line_of(plan));
    }
    return has_schedule(plan.pattern, transposed) || has_merge_schedule(plan.pattern, transposed);
}

} // namespace

std::unique_ptr<Family> make_spmm_sm90(const Plan &plan, const DeviceFacts &device) {
    const bsparse_plan_desc &desc = plan.desc;
    if (device.arch != 90 || desc.dtype == BSPARSE_F64 || desc.b_order != BSPARSE_COL_MAJOR ||
        desc.d_order != BSPARSE_COL_MAJOR || plan.pattern.blocks == 0 || !takes(plan)) {
        return nullptr;
    }
    return std::make_unique<SpmmSm90>(plan, device);
}

} // namespace bsparse::gpu
