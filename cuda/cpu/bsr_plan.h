// A plan of format bsr: what its runs need beside the pattern, and how a run is cut into items.
#pragma once

#include <string>
#include <vector>

#include "bsr.h"

namespace bsparse::cpu {

// Neighbouring majors (block rows of spmm, block columns of spmm_t) that one item takes.
struct Unit {
    int32_t first, last;
    int64_t blocks;
};

// Neighbouring blocks of one block row and one range of block columns that one item of sddmm takes.
struct Run {
    int32_t first, last;
};

struct BsrPlan {
    const Kernels *kernels;
    bool pairs;                  // bf16 is multiplied as it is, in pairs
    int64_t few_tokens;          // at most so many are served by the decode kernel
    std::vector<Unit> units;     // spmm, spmm_t: longest first
    double longest_share;        // of the longest unit in the blocks of all
    std::vector<int32_t> majors; // sddmm: block row of each block
    int32_t range_cols;          // sddmm: block columns of a range
    std::vector<Run> runs;       // sddmm: range by range
    std::string name, few_name;  // of the kernel, and of that for few tokens
};

inline const BsrPlan &bsr_plan(const Plan &plan) { return *static_cast<const BsrPlan *>(plan.state.get()); }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Threads worth waking for so many multiplications.
int threads_for(const Plan &plan, double multiplications);
constexpr int64_t kItemsPerThread = 6; // enough that the threads end together

// A dense operand of the given order, of [features, tokens].
Dense dense_of(const void *data, int64_t ld, bsparse_order order, bsparse_dtype dtype);

size_t spmm_workspace_bytes(const Plan &plan, int64_t tokens);
void spmm_run(const Plan &plan, const bsparse_args &args, void *workspace);
size_t sddmm_workspace_bytes(const Plan &plan, int64_t tokens);
void sddmm_run(const Plan &plan, const bsparse_args &args, void *workspace);
void plain_run(const Plan &plan, const bsparse_args &args); // f64

} // namespace bsparse::cpu
