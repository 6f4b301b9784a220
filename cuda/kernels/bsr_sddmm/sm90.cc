// The sm_90 family of sddmm: bf16 and f16, block sizes that are multiples of 64, operands in their default orders.
#include <cstring>
#include <limits>

#include "../../src/dtype.h"
#include "../common/family.h"
#include "../common/tensor_map.h"
#include "sm90_launch.h"

namespace bsparse::gpu {
namespace {

using namespace sddmm_sm90;

constexpr size_t kAlign = 64; // bytes

size_t round_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Appends a list to the numbers of all, aligned; returns where it begins.
template <typename T> size_t append(std::vector<int32_t> &all, const std::vector<T> &list) {
    const size_t at = round_up(all.size() * sizeof(int32_t)) / sizeof(int32_t);
    all.resize(at + list.size() * sizeof(T) / sizeof(int32_t));
    std::memcpy(all.data() + at, list.data(), list.size() * sizeof(T));
    return at;
}

// Numbers of tokens that there are schedules for, and from how many on each is used.
constexpr int kVariants = 3;
constexpr int64_t kPlannedTokens[kVariants] = {512, 4096, 8192};
constexpr int64_t kFromTokens[kVariants] = {0, kSplitTokens, 6144};

const char *tile_name(Layout layout) { return layout == Layout::kPair ? "128x256" : "2x64x256"; }

// One schedule, and where its lists lie among all.
struct Variant {
    size_t first_segment, segments, chunks, quorum, end;
    std::string name;
    Layout layout;
    int clusters, halves, meetings, paced_tiles;
    size_t sums_bytes; // of the workspace, behind the counters

    Variant(std::vector<int32_t> &all, const Schedule &schedule, const std::string &family)
        : first_segment(append(all, schedule.first_segment)), segments(append(all, schedule.segments)),
          chunks(append(all, schedule.chunks)), quorum(append(all, schedule.quorum)), end(all.size()),
          name(family + tile_name(schedule.layout)), layout(schedule.layout), clusters(schedule.clusters()),
          halves(schedule.halves), meetings(schedule.meetings), paced_tiles(static_cast<int>(schedule.quorum.size())),
          sums_bytes(static_cast<size_t>(schedule.sums_bytes())) {}

    int meeting_counters() const { return meetings * kCounters; }
    int64_t counters(int64_t tokens) const {
        return meeting_counters() + paced_tiles * milestones_of(steps_of(tokens));
    }
    size_t counters_bytes(int64_t tokens) const { return round_up(counters(tokens) * sizeof(uint32_t)); }
};

class SddmmSm90 final : public Family {
public:
    SddmmSm90(const Plan &plan, const DeviceFacts &device) : plan_(plan) {
        const std::string family = std::string("cuda.bsr_sddmm.") + dtype_name(plan.desc.dtype) + ".sm90.";
        for (const int64_t tokens : kPlannedTokens) {
            variants_.emplace_back(schedule_, make_schedule(plan.pattern, device.multiprocessors, tokens), family);
        }
    }

    const std::string &name(int64_t tokens) const override { return variant_for(tokens).name; }

    bool serves(const bsparse_args &args) const override {
        const bsparse_dtype dtype = plan_.desc.dtype;
        return can_map(dtype, args.a, args.lda) && can_map(dtype, args.b, args.ldb) &&
               can_map(dtype, args.s_values, 0) && args.tokens < std::numeric_limits<int32_t>::max() / 2;
    }

    size_t workspace_bytes(int64_t tokens) const override {
        const Variant &variant = variant_for(tokens);
        return variant.counters_bytes(tokens) + variant.sums_bytes;
    }

    void run(const Run &run) const override {
        const bsparse_args &args = run.args;
        const Variant &variant = variant_for(args.tokens);
        Task task{};
        task.dy = {args.a, args.lda};
        task.x = {args.b, args.ldb};
        task.tokens = args.tokens;
        task.clusters = variant.clusters;
        task.halves = variant.halves;
        task.counters = static_cast<int>(variant.counters(args.tokens));
        task.layout = variant.layout;
        Params &params = task.params;
        params.first_segment = run.schedule + variant.first_segment;
        params.segments = reinterpret_cast<const Segment *>(run.schedule + variant.segments);
        params.chunks = reinterpret_cast<const Chunk *>(run.schedule + variant.chunks);
        params.quorum = run.schedule + variant.quorum;
        params.paced_tiles = variant.paced_tiles;
        params.lists_bytes = static_cast<uint32_t>((variant.end - variant.first_segment) * sizeof(int32_t));
        params.values = args.s_values;
        params.f32_values = plan_.desc.out_dtype == BSPARSE_F32;
        params.block_cols = plan_.pattern.block_cols;
        params.rows = static_cast<int32_t>(plan_.pattern.rows);
        params.cols = static_cast<int32_t>(plan_.pattern.cols);
        params.alpha = static_cast<float>(args.alpha);
        params.beta = static_cast<float>(args.beta);
        params.counters = reinterpret_cast<uint32_t *>(run.workspace);
        params.passed = params.counters + variant.meeting_counters();
        params.sums = reinterpret_cast<float *>(run.workspace + variant.counters_bytes(args.tokens));
        if (plan_.desc.dtype == BSPARSE_BF16) {
            launch_bf16(task, launcher_, run.stream);
        } else {
            launch_f16(task, launcher_, run.stream);
        }
    }

private:
    const Variant &variant_for(int64_t tokens) const {
        int variant = kVariants - 1;
        while (tokens < kFromTokens[variant]) {
            --variant;
        }
        return variants_[variant];
    }

    const Plan &plan_;
    std::vector<Variant> variants_; // [kVariants]
    const Launcher launcher_;
};

} // namespace

std::unique_ptr<Family> make_sddmm_sm90(const Plan &plan, const DeviceFacts &device) {
    const bsparse_plan_desc &desc = plan.desc;
    const bool half = desc.dtype == BSPARSE_BF16 || desc.dtype == BSPARSE_F16;
    const bool orders = desc.a_order == BSPARSE_COL_MAJOR && desc.b_order == BSPARSE_ROW_MAJOR;
    if (device.arch != 90 || desc.op != BSPARSE_SDDMM || !half || !orders || plan.pattern.blocks == 0 ||
        !takes(plan.pattern)) {
        return nullptr;
    }
    return std::make_unique<SddmmSm90>(plan, device);
}

} // namespace bsparse::gpu
