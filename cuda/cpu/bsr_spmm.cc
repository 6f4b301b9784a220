// Runs of spmm and spmm_t: x is converted where the kernel cannot read it in place, then units meet chunks of tokens.
#include <algorithm>
#include <cmath>

#include "bsr_plan.h"

namespace bsparse::cpu {
namespace {

// Tokens whose image is made, used and overwritten: bounds the workspace of long runs.
constexpr int64_t kImageTokens = 1024;
constexpr int64_t kPrepareTokens = 16; // of one item that converts
constexpr int64_t kLeastTokens = 64;   // of one item that multiplies: packing its panels is then a few percent

// How one run is cut; the same for bsr_workspace_bytes and the run itself.
struct Cut {
    bool few;           // the decode kernel
    bool pairs;         // x is wanted as bf16
    bool needs_image;   // x is converted or transposed
    int64_t image_ld;
    int threads;
    int64_t rounds, round_tokens; // round_tokens: of every round but perhaps the last
    int64_t parts, part_groups;   // of a block's outer features
    int64_t chunks, chunk_tokens; // of a round

    Cut(const Plan &plan, int64_t tokens) {
        const BsrPlan &state = bsr_plan(plan);
        const Pattern &p = plan.pattern;
        const bool transposed = plan.desc.op == BSPARSE_SPMM_T;
        const int64_t inner = transposed ? p.rows : p.cols;
        few = tokens <= state.few_tokens;
        pairs = state.pairs && !few;
        // Few rows of x are cheap to copy, and 8 of them 4 KiB apart would leave the first-level cache no room.
        needs_image = plan.desc.dtype != (pairs ? BSPARSE_BF16 : BSPARSE_F32) ||
                      plan.desc.b_order != BSPARSE_COL_MAJOR || (few && tokens > 1);
        // An odd number of cache lines: rows then do not meet in one set of the cache.
        image_ld = (round_up(inner, 32) / 32 | 1) * 32;
        const int64_t stored = p.blocks * p.block_rows * p.block_cols;
        const double work = static_cast<double>(stored) * static_cast<double>(std::max<int64_t>(tokens, 16));
        threads = threads_for(plan, work); // few tokens wait for memory: as long as 16 would take
        rounds = needs_image ? ceil_div(tokens, kImageTokens) : 1;
        round_tokens = ceil_div(tokens, rounds);

        // Items of a unit: enough that the longest unit, a dense row perhaps, keeps no thread from sharing its work.
        const double items = std::ceil(state.longest_share * static_cast<double>(threads * kItemsPerThread));
        const int64_t wanted = threads == 1 ? 1 : static_cast<int64_t>(items);
        const int64_t groups = ceil_div(transposed ? p.block_cols : p.block_rows, state.kernels->group);
        part_groups = ceil_div(groups, std::min(wanted, groups));
        parts = ceil_div(groups, part_groups);
        chunks = std::min(ceil_div(wanted, parts), ceil_div(round_tokens, kLeastTokens));
        chunks = few ? 1 : std::max(chunks, ceil_div(round_tokens, kItemTokens));
        chunk_tokens = ceil_div(round_tokens, chunks);
    }

    int64_t image_bytes() const { return needs_image ? round_tokens * image_ld * (pairs ? 2 : 4) : 0; }
};

class SpmmJob : public Job {
public:
    SpmmJob(const Plan &plan, const bsparse_args &args, const Cut &cut, char *workspace)
        : Job(cut.rounds, cut.needs_image ? ceil_div(cut.round_tokens, kPrepareTokens) : 0,
              static_cast<int64_t>(bsr_plan(plan).units.size()) * cut.parts * cut.chunks),
          plan_(bsr_plan(plan)), cut_(cut), tokens_(args.tokens),
          x_(dense_of(args.b, args.ldb, plan.desc.b_order, plan.desc.dtype)),
          image_(workspace + cut.threads * plan_.kernels->scratch_bytes), scratch_(workspace) {
        const Pattern &p = plan.pattern;
        const bsparse_plan_desc &desc = plan.desc;
        const bool transposed = desc.op == BSPARSE_SPMM_T;
        const BlockLists &lists = transposed ? p.by_col : p.by_row;
        task_.offsets = lists.offsets.data();
        task_.minors = lists.minors.data();
        task_.index = lists.index.data();
        task_.values = static_cast<const char *>(args.s_values);
        task_.dtype = desc.dtype;
        task_.transposed = transposed;
        task_.block_rows = p.block_rows;
        task_.block_cols = p.block_cols;
        task_.outer = transposed ? p.cols : p.rows;
        task_.inner = transposed ? p.rows : p.cols;
        task_.x = cut.needs_image ? image_ : x_.data;
        task_.pairs = cut.pairs;
        task_.ldx = cut.needs_image ? cut.image_ld : args.ldb;
        task_.first_token = 0;
        Epilogue &e = task_.epilogue;
        e.alpha = static_cast<float>(args.alpha);
        e.beta = static_cast<float>(args.beta);
        e.c = dense_of(args.c, args.ldc, desc.d_order, desc.c_dtype);
        e.bias = static_cast<const char *>(args.bias);
        e.bias_dtype = desc.bias_dtype;
        e.aux = dense_of(args.aux, args.ldaux, desc.d_order, desc.out_dtype);
        e.d = dense_of(args.d, args.ldd, desc.d_order, desc.out_dtype);
        e.activation = desc.epilogue;
    }

    void prepare(int64_t round, int64_t item, int) override {
        const int64_t start = round * cut_.round_tokens;
        const int64_t first = start + item * kPrepareTokens;
        const int64_t last = std::min({first + kPrepareTokens, start + cut_.round_tokens, tokens_});
        if (first < last) {
            plan_.kernels->image(x_, task_.inner, first, last, cut_.pairs,
                                 image_ + (first - start) * cut_.image_ld * (cut_.pairs ? 2 : 4), cut_.image_ld);
        }
    }

    void multiply(int64_t round, int64_t number, int slot) override {
        const int64_t start = round * cut_.round_tokens;
        const int64_t units = static_cast<int64_t>(plan_.units.size());
        const Unit &unit = plan_.units[number / cut_.parts % units];
        SpmmItem item;
        item.first_major = unit.first;
        item.last_major = unit.last;
        item.first_group = static_cast<int32_t>(number % cut_.parts * cut_.part_groups);
        item.last_group = static_cast<int32_t>(item.first_group + cut_.part_groups);
        item.first_token = start + number / (cut_.parts * units) * cut_.chunk_tokens;
        item.last_token = std::min({item.first_token + cut_.chunk_tokens, start + cut_.round_tokens, tokens_});
        if (item.first_token >= item.last_token) {
            return;
        }
        SpmmTask task = task_;
        task.first_token = cut_.needs_image ? start : 0;
        char *scratch = scratch_ + slot * plan_.kernels->scratch_bytes;
        if (cut_.few) {
            plan_.kernels->decode(task, item, scratch);
        } else {
            plan_.kernels->spmm(task, item, scratch);
        }
    }

private:
    const BsrPlan &plan_;
    const Cut cut_;
    const int64_t tokens_;
    const Dense x_;      // as the caller has it
    char *const image_;  // [round_tokens][image_ld]
    char *const scratch_; // [threads][scratch_bytes]
    SpmmTask task_;
};

} // namespace

size_t spmm_workspace_bytes(const Plan &plan, int64_t tokens) {
    if (tokens == 0) {
        return 0;
    }
    const Cut cut(plan, tokens);
    return cut.threads * bsr_plan(plan).kernels->scratch_bytes + cut.image_bytes();
}

void spmm_run(const Plan &plan, const bsparse_args &args, void *workspace) {
    if (args.tokens == 0) {
        return;
    }
    const Cut cut(plan, args.tokens);
    SpmmJob job(plan, args, cut, static_cast<char *>(workspace));
    state_of(*plan.context).pool.run(job, cut.threads);
}

} // namespace bsparse::cpu
