// Runs of spmm and spmm_t: units meet chunks of tokens. Where the kernel cannot read x in place, each thread converts
// it for itself, a chunk at a time.
#include <algorithm>
#include <cmath>

#include "bsr_plan.h"

namespace bsparse::cpu {
namespace {

constexpr int64_t kLeastTokens = 64;  // of one item: packing its panels is then a few percent
constexpr int64_t kSquareTokens = 16; // of the squares in which a row-major x is transposed
constexpr int64_t kImageCost = 4;     // multiplications that take as long as converting one number
// Most of an image of more than kLeastTokens, about the second-level cache. Smaller ones cost more packing than they
// save (measured with 4096 tokens and inner features at density 0.5: 1 MiB takes 10% longer).
constexpr int64_t kImageBytes = 1 << 21;

// How one run is cut; the same for bsr_workspace_bytes and the run itself.
struct Cut {
    bool few;         // the decode kernel
    bool pairs;       // x is wanted as bf16
    bool needs_image; // x is converted or transposed
    int64_t image_ld;
    int threads;
    int64_t parts, part_groups;   // of a block's outer features
    int64_t chunk_tokens, chunk_items; // chunk_tokens: of every chunk but perhaps the last
    int64_t shares, share_chunks; // share_chunks: of every share but perhaps the last
    int64_t worth_helping;        // items left of a share, for which another thread makes an image
    int64_t thread_bytes;         // scratch and image

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
        const int64_t stored = p.elements();
        const double work = static_cast<double>(stored) * static_cast<double>(std::max<int64_t>(tokens, 16));
        threads = threads_for(plan, work); // few tokens wait for memory: as long as 16 would take

        // Items of a unit: enough that the longest unit, a dense row perhaps, keeps no thread from sharing its work.
        const double items = std::ceil(state.longest_share * static_cast<double>(threads * kItemsPerThread));
        const int64_t wanted = threads == 1 ? 1 : static_cast<int64_t>(items);
        const int64_t groups = ceil_div(transposed ? p.block_cols : p.block_rows, state.kernels->group);
        part_groups = ceil_div(groups, std::min(wanted, groups));
        parts = ceil_div(groups, part_groups);
        int64_t chunks = ceil_div(wanted, parts);
        if (needs_image) {
            // Threads with chunks of their own pack all values each, threads in one chunk convert all of it each.
            const int64_t own = tokens * inner > stored ? threads : 1;
            chunks = std::max({chunks, own, ceil_div(tokens * image_ld * image_element(), kImageBytes)});
            chunks = chunks > 1 ? round_up(chunks, threads) : 1; // as many for each thread
        }
        chunks = std::max(std::min(chunks, ceil_div(tokens, kLeastTokens)), ceil_div(tokens, kItemTokens));
        chunk_tokens = few ? tokens : ceil_div(tokens, chunks);
        if (needs_image && !few) {
            chunk_tokens = round_up(chunk_tokens, kSquareTokens);
        }
        chunks = ceil_div(tokens, chunk_tokens);
        share_chunks = ceil_div(chunks, std::min<int64_t>({needs_image ? threads : 1, chunks, Shares::kMost}));
        shares = ceil_div(chunks, share_chunks);
        chunk_items = static_cast<int64_t>(state.units.size()) * parts;
        worth_helping = needs_image ? chunk_items * inner * kImageCost / std::max<int64_t>(stored, 1) + 2 : 1;
        const int64_t image = needs_image ? sizeof(SpmmImage) + chunk_tokens * image_ld * image_element() : 0;
        thread_bytes = static_cast<int64_t>(state.kernels->scratch_bytes) + round_up(image, 64);
    }

    int64_t image_element() const { return pairs ? 2 : 4; } // bytes
};

class SpmmJob : public Shares {
public:
    SpmmJob(const Plan &plan, const bsparse_args &args, const Cut &cut, char *workspace)
        : Shares(cut.shares, cut.share_chunks * cut.chunk_items, cut.threads, cut.worth_helping), plan_(bsr_plan(plan)),
          cut_(cut), tokens_(args.tokens), x_(dense_of(args.b, args.ldb, plan.desc.b_order, plan.desc.dtype)),
          memory_(workspace) {
        const Pattern &p = plan.pattern;
        const bsparse_plan_desc &desc = plan.desc;
        const bool transposed = desc.op == BSPARSE_SPMM_T;
        const BlockLists &lists = transposed ? p.by_col : p.by_row;
        task_.offsets = lists.offsets.data();
        task_.minors = lists.minors.data();
        task_.index = lists.index.data();
        task_.values = static_cast<const char *>(args.s_values);
        task_.metadata = static_cast<const uint8_t *>(args.s_metadata);
        task_.dtype = desc.dtype;
        task_.transposed = transposed;
        task_.block_rows = p.block_rows;
        task_.block_cols = p.block_cols;
        task_.outer = transposed ? p.cols : p.rows;
        task_.inner = transposed ? p.rows : p.cols;
        task_.x = x_.data;
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
        for (int slot = 0; cut.needs_image && slot < cut.threads; ++slot) {
            image_of(slot).first_token = -1;
        }
    }

    void run_item(int64_t share, int64_t number, int slot) override {
        const int64_t chunk = share * cut_.share_chunks + number / cut_.chunk_items;
        const int64_t in_chunk = number % cut_.chunk_items;
        const Unit &unit = plan_.units[in_chunk / cut_.parts];
        SpmmItem item;
        item.first_major = unit.first;
        item.last_major = unit.last;
        item.first_group = static_cast<int32_t>(in_chunk % cut_.parts * cut_.part_groups);
        item.last_group = static_cast<int32_t>(item.first_group + cut_.part_groups);
        item.first_token = chunk * cut_.chunk_tokens;
        item.last_token = std::min(item.first_token + cut_.chunk_tokens, tokens_);
        if (item.first_token >= item.last_token) {
            return;
        }
        SpmmTask task = task_;
        if (cut_.needs_image) {
            task.first_token = item.first_token;
            task.x = image_with(item, slot);
        }
        char *scratch = memory_ + slot * cut_.thread_bytes;
        if (cut_.few) {
            plan_.kernels->decode(task, item, scratch);
        } else {
            plan_.kernels->spmm(task, item, scratch);
        }
    }

private:
    SpmmImage &image_of(int slot) const {
        return *reinterpret_cast<SpmmImage *>(memory_ + slot * cut_.thread_bytes + plan_.kernels->scratch_bytes);
    }

    // The rows of the slot's image, of the item's tokens.
    char *image_with(const SpmmItem &item, int slot) const {
        SpmmImage &image = image_of(slot);
        char *rows = reinterpret_cast<char *>(&image + 1);
        if (image.first_token != item.first_token) {
            plan_.kernels->image(x_, task_.inner, item.first_token, item.last_token, cut_.pairs, rows, cut_.image_ld);
            image.first_token = item.first_token;
        }
        return rows;
    }

    const BsrPlan &plan_;
    const Cut cut_;
    const int64_t tokens_;
    const Dense x_; // as the caller has it
    char *const memory_; // [threads][thread_bytes]
    SpmmTask task_; // what all items share
};

} // namespace

size_t spmm_workspace_bytes(const Plan &plan, int64_t tokens) {
    if (tokens == 0) {
        return 0;
    }
    const Cut cut(plan, tokens);
    return cut.threads * cut.thread_bytes;
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
