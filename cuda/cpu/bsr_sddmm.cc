// Runs of sddmm, a chunk of tokens at a time: every stored block adds the chunk's products.
#include <algorithm>

#include "bsr_plan.h"

namespace bsparse::cpu {
namespace {

constexpr int32_t kLeastRows = 12; // of a block that an item takes, where there are few blocks

// How one run is cut; the same for bsr_workspace_bytes and the run itself.
struct Cut {
    int threads;
    int32_t parts, part_rows;     // of a block
    int64_t rounds, round_tokens; // round_tokens: of every round but perhaps the last
    int64_t strip_rows;
    int64_t thread_bytes; // scratch and strips
    int64_t sums_bytes;   // of f32 sums between rounds, where the values cannot hold them

    Cut(const Plan &plan, int64_t tokens) {
        const BsrPlan &state = bsr_plan(plan);
        const Pattern &p = plan.pattern;
        const int64_t stored = p.elements();
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
        const int64_t cols = std::min(state.range_cols, p.col_blocks);
        const int64_t strips = cols * round_up(p.block_cols, state.kernels->lanes) * strip_rows * 4;
        thread_bytes = static_cast<int64_t>(state.kernels->scratch_bytes + sizeof(SddmmStrips)) + round_up(strips, 64);
        sums_bytes = rounds > 1 && plan.desc.out_dtype != BSPARSE_F32 ? p.values() * 4 : 0;
    }
};

class SddmmJob : public Rounds {
public:
    SddmmJob(const Plan &plan, const bsparse_args &args, const Cut &cut, char *workspace)
        : Rounds(cut.rounds, static_cast<int64_t>(bsr_plan(plan).runs.size()) * cut.parts), plan_(bsr_plan(plan)),
          cut_(cut), tokens_(args.tokens), beta_(static_cast<float>(args.beta)), memory_(workspace) {
        const Pattern &p = plan.pattern;
        const bsparse_plan_desc &desc = plan.desc;
        for (int slot = 0; slot < cut.threads; ++slot) {
            strips_of(slot).first_token = -1;
        }
        sums_ = cut.sums_bytes != 0 ? workspace + cut.threads * cut.thread_bytes : nullptr;
        // B is [tokens, cols]: its rows are dense_of's columns.
        const bsparse_order b_order = desc.b_order == BSPARSE_ROW_MAJOR ? BSPARSE_COL_MAJOR : BSPARSE_ROW_MAJOR;
        task_.minors = p.by_row.minors.data();
        task_.majors = plan_.majors.data();
        task_.a = dense_of(args.a, args.lda, desc.a_order, desc.dtype);
        task_.b = dense_of(args.b, args.ldb, b_order, desc.dtype);
        task_.block_rows = p.block_rows;
        task_.block_cols = p.block_cols;
        task_.rows = p.rows;
        task_.cols = p.cols;
        task_.pairs = plan_.pairs;
        task_.strip_rows = cut.strip_rows;
        task_.range_cols = plan_.range_cols;
        task_.alpha = static_cast<float>(args.alpha);
        task_.values = static_cast<char *>(args.s_values);
        task_.metadata = static_cast<const uint8_t *>(args.s_metadata);
        task_.values_dtype = desc.out_dtype;
    }

    void run_item(int64_t round, int64_t number, int slot) override {
        const Run &run = plan_.runs[static_cast<size_t>(number / cut_.parts)];
        const int64_t row = number % cut_.parts * cut_.part_rows;
        const int64_t last_row = std::min<int64_t>(row + cut_.part_rows, task_.block_rows);
        const SddmmItem item = {run.first, run.last, static_cast<int32_t>(row), static_cast<int32_t>(last_row)};
        plan_.kernels->sddmm(of_round(round), item, strips_of(slot), memory_ + slot * cut_.thread_bytes);
    }

private:
    SddmmStrips &strips_of(int slot) const {
        char *scratch = memory_ + slot * cut_.thread_bytes;
        return *reinterpret_cast<SddmmStrips *>(scratch + plan_.kernels->scratch_bytes);
    }

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
    char *const memory_; // [threads][thread_bytes]
    char *sums_;         // as the values, of f32, or NULL
    SddmmTask task_;     // what all rounds share
};

} // namespace

size_t sddmm_workspace_bytes(const Plan &plan, int64_t tokens) {
    if (plan.pattern.blocks == 0) {
        return 0;
    }
    const Cut cut(plan, tokens);
    return cut.threads * cut.thread_bytes + cut.sums_bytes;
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
