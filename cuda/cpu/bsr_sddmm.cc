// Runs of sddmm, a chunk of tokens at a time: strips of B are made, then every stored block adds its products.
#include <algorithm>

#include "bsr_plan.h"

namespace bsparse::cpu {
namespace {

constexpr int64_t kPrepareTokens = 16; // of one item that makes strips
constexpr int32_t kLeastRows = 12;     // of a block that an item takes, where there are few blocks

// How one run is cut; the same for bsr_workspace_bytes and the run itself.
struct Cut {
    int threads;
    int32_t parts, part_rows;     // of a block
    int64_t rounds, round_tokens; // round_tokens: of every round but perhaps the last
    int64_t strip_rows;
    int64_t strip_bytes; // of all strips
    int64_t sums_bytes;  // of f32 sums between rounds, where the values cannot hold them

    Cut(const Plan &plan, int64_t tokens) {
        const BsrPlan &state = bsr_plan(plan);
        const Pattern &p = plan.pattern;
        const int64_t stored = p.blocks * p.block_rows * p.block_cols;
        threads = threads_for(plan, static_cast<double>(stored) * static_cast<double>(tokens));
        const int64_t runs = static_cast<int64_t>(state.runs.size());
        const int64_t wanted = threads == 1 ? 1 : ceil_div(threads * kItemsPerThread, runs); // items of a run
        part_rows = static_cast<int32_t>(ceil_div(p.block_rows, wanted));
        part_rows = std::min({std::max(part_rows, kLeastRows), kItemRows, p.block_rows});
        parts = static_cast<int32_t>(ceil_div(p.block_rows, part_rows));
        rounds = std::max<int64_t>(ceil_div(tokens, kStripTokens), 1);
        round_tokens = round_up(ceil_div(tokens, rounds), 2);
        rounds = std::max<int64_t>(ceil_div(tokens, std::max<int64_t>(round_tokens, 1)), 1);
        // One row more than needed: strips a power of two apart would meet in the same sets of the cache.
        strip_rows = (state.pairs ? round_tokens / 2 : round_tokens) + 1;
        strip_bytes = round_up(p.col_blocks * round_up(p.block_cols, state.kernels->lanes) * strip_rows * 4, 64);
        sums_bytes = rounds > 1 && plan.desc.out_dtype != BSPARSE_F32 ? stored * 4 : 0;
    }
};

class SddmmJob : public Job {
public:
    SddmmJob(const Plan &plan, const bsparse_args &args, const Cut &cut, char *workspace)
        : Job(cut.rounds, ceil_div(cut.round_tokens, kPrepareTokens),
              static_cast<int64_t>(bsr_plan(plan).runs.size()) * cut.parts),
          plan_(bsr_plan(plan)), cut_(cut), tokens_(args.tokens), beta_(static_cast<float>(args.beta)),
          scratch_(workspace) {
        const Pattern &p = plan.pattern;
        const bsparse_plan_desc &desc = plan.desc;
        char *strips = workspace + cut.threads * plan_.kernels->scratch_bytes;
        sums_ = cut.sums_bytes != 0 ? strips + cut.strip_bytes : nullptr;
        // B is [tokens, cols]: its rows are dense_of's columns.
        const bsparse_order b_order = desc.b_order == BSPARSE_ROW_MAJOR ? BSPARSE_COL_MAJOR : BSPARSE_ROW_MAJOR;
        task_.minors = p.by_row.minors.data();
        task_.majors = plan_.majors.data();
        task_.col_offsets = p.by_col.offsets.data();
        task_.a = dense_of(args.a, args.lda, desc.a_order, desc.dtype);
        task_.b = dense_of(args.b, args.ldb, b_order, desc.dtype);
        task_.block_rows = p.block_rows;
        task_.block_cols = p.block_cols;
        task_.rows = p.rows;
        task_.cols = p.cols;
        task_.pairs = plan_.pairs;
        task_.strips = strips;
        task_.strip_rows = cut.strip_rows;
        task_.alpha = static_cast<float>(args.alpha);
        task_.values = static_cast<char *>(args.s_values);
        task_.values_dtype = desc.out_dtype;
    }

    void prepare(int64_t round, int64_t item, int) override {
        const SddmmTask task = of_round(round);
        const int64_t first = item * kPrepareTokens;
        const int64_t last = std::min(first + kPrepareTokens, task.tokens);
        if (first < last) {
            plan_.kernels->strips(task, first, last);
        }
    }

    void multiply(int64_t round, int64_t number, int slot) override {
        const Run &run = plan_.runs[static_cast<size_t>(number / cut_.parts)];
        const int64_t row = number % cut_.parts * cut_.part_rows;
        const int64_t last_row = std::min<int64_t>(row + cut_.part_rows, task_.block_rows);
        const SddmmItem item = {run.first, run.last, static_cast<int32_t>(row), static_cast<int32_t>(last_row)};
        plan_.kernels->sddmm(of_round(round), item, scratch_ + slot * plan_.kernels->scratch_bytes);
    }

private:
    // Between rounds the sums stay f32: in the values, or beside them where those are of another dtype.
    SddmmTask of_round(int64_t round) const {
        SddmmTask task = task_;
        task.first_token = round * cut_.round_tokens;
        task.tokens = std::min(cut_.round_tokens, tokens_ - task.first_token);
        task.before = task_.values;
        task.before_dtype = task_.values_dtype;
        task.beta = round == 0 ? beta_ : 1;
        if (sums_ != nullptr && round > 0) {
            task.before = sums_;
            task.before_dtype = BSPARSE_F32;
        }
        if (sums_ != nullptr && round < cut_.rounds - 1) {
            task.values = sums_;
            task.values_dtype = BSPARSE_F32;
        }
        return task;
    }

    const BsrPlan &plan_;
    const Cut cut_;
    const int64_t tokens_;
    const float beta_;
    char *const scratch_; // [threads][scratch_bytes]
    char *sums_;          // [blocks, block_rows, block_cols] of f32, or NULL
    SddmmTask task_;      // what all rounds share
};

} // namespace

size_t sddmm_workspace_bytes(const Plan &plan, int64_t tokens) {
    if (plan.pattern.blocks == 0) {
        return 0;
    }
    const Cut cut(plan, tokens);
    return cut.threads * bsr_plan(plan).kernels->scratch_bytes + cut.strip_bytes + cut.sums_bytes;
}

void sddmm_run(const Plan &plan, const bsparse_args &args, void *workspace) {
    if (plan.pattern.blocks == 0) {
        return;
    }
    const Cut cut(plan, args.tokens);
    SddmmJob job(plan, args, cut, static_cast<char *>(workspace));
    state_of(*plan.context).pool.run(job, cut.threads);
}

} // namespace bsparse::cpu
