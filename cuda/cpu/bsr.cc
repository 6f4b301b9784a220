#include "bsr.h"

#include <algorithm>

#include "../src/dtype.h"
#include "bsr_plan.h"
#include "isa.h"

namespace bsparse::cpu {
namespace {

constexpr int64_t kUnitElements = 4096; // stored elements below which majors, or blocks, share an item
constexpr int64_t kFewPairs = 4; // the decode kernels multiply in f32: from 5 tokens on packing pairs is faster
constexpr double kThreadWork = 1 << 20; // multiplications worth waking a thread for: some 10 microseconds

std::vector<Unit> make_units(const BlockLists &lists, int64_t block_elements) {
    std::vector<Unit> units;
    for (int32_t major = 0; major < lists.majors(); ++major) {
        // A major without blocks still costs the writing of D: it counts as one block.
        const int64_t blocks = std::max(lists.offsets[major + 1] - lists.offsets[major], 1);
        if (units.empty() || (units.back().blocks + blocks) * block_elements > kUnitElements) {
            units.push_back({major, major, 0});
        }
        units.back().last = major + 1;
        units.back().blocks += blocks;
    }
    std::stable_sort(units.begin(), units.end(), [](const Unit &a, const Unit &b) { return a.blocks > b.blocks; });
    return units;
}

double longest_share(const std::vector<Unit> &units) {
    int64_t blocks = 0;
    for (const Unit &unit : units) {
        blocks += unit.blocks;
    }
    return static_cast<double>(units.front().blocks) / static_cast<double>(blocks);
}

std::vector<int32_t> make_majors(const BlockLists &by_row) {
    std::vector<int32_t> majors(by_row.minors.size());
    for (int32_t row = 0; row < by_row.majors(); ++row) {
        std::fill(majors.begin() + by_row.offsets[row], majors.begin() + by_row.offsets[row + 1], row);
    }
    return majors;
}

// Block columns whose strips one thread keeps.
int32_t range_cols_of(const Pattern &p, const Kernels &kernels) {
    const int64_t padded = round_up(p.block_cols, kernels.lanes);
    return static_cast<int32_t>(std::max<int64_t>(kStripColumns / padded, 1));
}

// Of each block row, blocks that share the strip of A that their item makes; range by range.
std::vector<Run> make_runs(const BlockLists &by_row, int32_t range_cols, int64_t block_elements) {
    const int32_t most = static_cast<int32_t>(std::max<int64_t>(kUnitElements / block_elements, 1));
    const auto range_of = [&](int32_t block) { return by_row.minors[block] / range_cols; };
    std::vector<Run> runs;
    for (int32_t row = 0; row < by_row.majors(); ++row) {
        for (int32_t first = by_row.offsets[row]; first < by_row.offsets[row + 1];) {
            int32_t last = first;
            while (last < by_row.offsets[row + 1] && last - first < most && range_of(last) == range_of(first)) {
                ++last;
            }
            runs.push_back({first, last});
            first = last;
        }
    }
    std::stable_sort(runs.begin(), runs.end(),
                     [&](const Run &a, const Run &b) { return range_of(a.first) < range_of(b.first); });
    return runs;
}

// Pairs of bf16 must not reach over the end of a block or of x: what follows there may be NaN.
bool takes_pairs(const Plan &plan, const Kernels &kernels) {
    if (!kernels.pairs || plan.desc.dtype != BSPARSE_BF16) {
        return false;
    }
    const Pattern &p = plan.pattern;
    switch (plan.desc.op) {
    case BSPARSE_SPMM:
        return p.block_cols % 2 == 0 && p.cols % 2 == 0;
    case BSPARSE_SPMM_T:
        return p.block_rows % 2 == 0 && p.rows % 2 == 0;
    default:
        return true; // pairs of tokens; an odd number of them is filled up with zeros
    }
}

std::string kernel_name(const Plan &plan, const BsrPlan &state) {
    static const char *const ops[] = {"spmm", "spmm_t", "sddmm"};
    std::string name = std::string("cpu.") + format_name(plan.pattern.format) + "_" + ops[plan.desc.op - 1] + "." +
                       dtype_name(plan.desc.dtype);
    if (plan.desc.dtype == BSPARSE_F64) {
        return name;
    }
    // Without pairs the bf16 kernels are the avx512 ones, compiled with more flags.
    const bool plain = state.kernels->isa == BSPARSE_CPU_AVX512_BF16 && !state.pairs;
    return name + "." + isa_name(plain ? BSPARSE_CPU_AVX512 : state.kernels->isa);
}

} // namespace

int threads_for(const Plan &plan, double multiplications) {
    const double most = state_of(*plan.context).pool.threads();
    return static_cast<int>(std::min(std::max(multiplications / kThreadWork, 1.0), most));
}

Dense dense_of(const void *data, int64_t ld, bsparse_order order, bsparse_dtype dtype) {
    char *bytes = static_cast<char *>(const_cast<void *>(data));
    return order == BSPARSE_COL_MAJOR ? Dense{bytes, ld, 1, dtype} : Dense{bytes, 1, ld, dtype};
}

void bsr_select(Plan &plan) {
    auto state = std::make_shared<BsrPlan>();
    const Pattern &p = plan.pattern;
    state->kernels = &state_of(*plan.context).kernels;
    state->pairs = takes_pairs(plan, *state->kernels);
    state->few_tokens = state->pairs ? kFewPairs : kFewTokens;
    state->name = kernel_name(plan, *state);
    state->few_name = state->name;
    if (plan.desc.op == BSPARSE_SDDMM) {
        state->majors = make_majors(p.by_row);
        state->range_cols = range_cols_of(p, *state->kernels);
        state->runs = make_runs(p.by_row, state->range_cols, int64_t{p.block_rows} * p.block_cols);
    } else if (plan.desc.dtype != BSPARSE_F64) {
        state->units =
            make_units(plan.desc.op == BSPARSE_SPMM ? p.by_row : p.by_col, int64_t{p.block_rows} * p.block_cols);
        state->longest_share = longest_share(state->units);
        state->few_name += ".decode";
    }
    plan.state = state;
}

const char *bsr_kernel(const Plan &plan, int64_t tokens) {
    const BsrPlan &state = bsr_plan(plan);
    return (tokens <= state.few_tokens ? state.few_name : state.name).c_str();
}

size_t bsr_workspace_bytes(const Plan &plan, int64_t tokens) {
    if (plan.desc.dtype == BSPARSE_F64) {
        return 0;
    }
    return plan.desc.op == BSPARSE_SDDMM ? sddmm_workspace_bytes(plan, tokens) : spmm_workspace_bytes(plan, tokens);
}

void bsr_run(const Plan &plan, const bsparse_args &args, void *workspace) {
    if (plan.desc.dtype == BSPARSE_F64) {
        plain_run(plan, args);
    } else if (plan.desc.op == BSPARSE_SDDMM) {
        sddmm_run(plan, args, workspace);
    } else {
        spmm_run(plan, args, workspace);
    }
}

} // namespace bsparse::cpu
