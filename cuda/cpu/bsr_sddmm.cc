// Runs of sddmm, a chunk of tokens at a time: strips of A and B are made, then every stored block adds its products.
#include <algorithm>

#include "../src/dtype.h"
#include "bsr_plan.h"

namespace bsparse::cpu {
namespace {

constexpr int64_t kChunkTokens = 512;  // strips of a 64x64 block are then 256 KiB, which fits the second-level cache
constexpr int64_t kRunElements = 1024; // of neighbouring blocks that make an item
constexpr int64_t kLeastRows = 12;     // of a block that an item takes, where there are few blocks

// How one run is cut; the same for bsr_workspace_bytes and the run itself.
struct Cut {
    bool pairs;
    int threads;
    int64_t rounds, round_tokens; // round_tokens: of every round but perhaps the last
    int64_t run_blocks, runs;     // blocks of an item, unless they are cut
    int64_t parts, part_rows;     // of a block
    int64_t a_bytes, b_bytes;     // of all strips
    int64_t sums_bytes;           // of f32 sums between rounds, where the values cannot hold them

    Cut(const Plan &plan, int64_t tokens) {
        const BsrPlan &state = bsr_plan(plan);
        const Pattern &p = plan.pattern;
        const int64_t block = int64_t{p.block_rows} * p.block_cols;
        pairs = state.pairs;
        threads = threads_for(plan, static_cast<double>(p.blocks * block) * static_cast<double>(tokens));
        rounds = std::max<int64_t>(ceil_div(tokens, kChunkTokens), 1);
        round_tokens = round_up(ceil_div(tokens, rounds), 2);
        rounds = std::max<int64_t>(ceil_div(tokens, std::max<int64_t>(round_tokens, 1)), 1);
        run_blocks = std::max<int64_t>(kRunElements / block, 1);
        runs = ceil_div(p.blocks, run_blocks);
        const int64_t wanted = threads == 1 ? 1 : ceil_div(threads * kItemsPerThread, std::max<int64_t>(runs, 1));
        part_rows = std::max(ceil_div(p.block_rows, wanted), std::min<int64_t>(kLeastRows, p.block_rows));
        parts = ceil_div(p.block_rows, part_rows);
        const int64_t element = pairs ? 2 : 4;
        const int64_t lanes = state.kernels->lanes;
        a_bytes = round_up(int64_t{p.row_blocks} * p.block_rows * round_tokens * element, 64);
        b_bytes = round_up(p.col_blocks * round_up(p.block_cols, lanes) * round_tokens * element, 64);
        sums_bytes = rounds > 1 && plan.desc.out_dtype != BSPARSE_F32 ? p.blocks * block * 4 : 0;
    }
};

class SddmmJob : public Job {
public:
    SddmmJob(const Plan &plan, const bsparse_args &args, const Cut &cut, char *workspace)
        : Job(cut.rounds, 2 * ceil_div(cut.round_tokens, kStripTokens), cut.runs * cut.parts), plan_(plan), args_(args),
          cut_(cut), a_strips_(workspace), b_strips_(workspace + cut.a_bytes),
          sums_(cut.sums_bytes != 0 ? workspace + cut.a_bytes + cut.b_bytes : nullptr) {}

    // Even items make strips of A, odd ones strips of B.
    void prepare(int64_t round, int64_t item, int) override {
        const Pattern &p = plan_.pattern;
        const bsparse_plan_desc &desc = plan_.desc;
        const int64_t first = item / 2 * kStripTokens;
        const int64_t last = std::min(first + kStripTokens, chunk(round));
        if (first >= last) {
            return;
        }
        StripTask task;
        task.first_token = round * cut_.round_tokens;
        task.chunk_tokens = chunk(round);
        task.tokens = tokens(round);
        task.pairs = cut_.pairs;
        if (item % 2 == 0) {
            task.source = dense_of(args_.a, args_.lda, desc.a_order, desc.dtype);
            task.features = p.rows;
            task.offsets = p.by_row.offsets.data();
            task.block = p.block_rows;
            task.group = 0;
            task.strips = a_strips_;
        } else {
            // B is [tokens, cols]: its rows are dense_of's columns.
            const bsparse_order order = desc.b_order == BSPARSE_ROW_MAJOR ? BSPARSE_COL_MAJOR : BSPARSE_ROW_MAJOR;
            task.source = dense_of(args_.b, args_.ldb, order, desc.dtype);
            task.features = p.cols;
            task.offsets = p.by_col.offsets.data();
            task.block = p.block_cols;
            task.group = kernels().group;
            task.strips = b_strips_;
        }
        kernels().strips(task, first, last);
    }

    void multiply(int64_t round, int64_t item, int) override {
        const Pattern &p = plan_.pattern;
        const bool first_round = round == 0, last_round = round == cut_.rounds - 1;
        SddmmTask task;
        task.minors = p.by_row.minors.data();
        task.majors = bsr_plan(plan_).majors.data();
        task.a_strips = a_strips_;
        task.b_strips = b_strips_;
        task.tokens = chunk(round);
        task.pairs = cut_.pairs;
        task.block_rows = p.block_rows;
        task.block_cols = p.block_cols;
        task.rows = p.rows;
        task.cols = p.cols;
        task.alpha = static_cast<float>(args_.alpha);
        task.beta = first_round ? static_cast<float>(args_.beta) : 1;
        // Between rounds the sums stay f32.
        char *values = static_cast<char *>(args_.s_values);
        const bool values_hold = sums_ == nullptr;
        task.in = first_round || values_hold ? values : sums_;
        task.in_dtype = first_round || values_hold ? plan_.desc.out_dtype : BSPARSE_F32;
        task.out = last_round || values_hold ? values : sums_;
        task.out_dtype = last_round || values_hold ? plan_.desc.out_dtype : BSPARSE_F32;
        const int64_t first = item / cut_.parts * cut_.run_blocks;
        const int64_t row = item % cut_.parts * cut_.part_rows;
        kernels().sddmm(task, first, std::min(first + cut_.run_blocks, p.blocks), static_cast<int32_t>(row),
                        static_cast<int32_t>(std::min<int64_t>(row + cut_.part_rows, p.block_rows)));
    }

private:
    const Kernels &kernels() const { return *bsr_plan(plan_).kernels; }
    int64_t tokens(int64_t round) const {
        return std::min(cut_.round_tokens, args_.tokens - round * cut_.round_tokens);
    }
    // Rows of strips count tokens: with pairs there is room for the last one's other half.
    int64_t chunk(int64_t round) const { return round_up(tokens(round), cut_.pairs ? 2 : 1); }

    const Plan &plan_;
    const bsparse_args &args_;
    const Cut &cut_;
    char *const a_strips_, *const b_strips_, *const sums_;
};

} // namespace

size_t sddmm_workspace_bytes(const Plan &plan, int64_t tokens) {
    const Cut cut(plan, tokens);
    return plan.pattern.blocks == 0 ? 0 : cut.a_bytes + cut.b_bytes + cut.sums_bytes;
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
