// The products by plain loops in double, for f64 operands: what references and gradient checks run.
#include <algorithm>
#include <cmath>

#include "../src/positions.h"
#include "bsr_plan.h"

namespace bsparse::cpu {
namespace {

// Operands are f64; D, C, bias and the values of sddmm may be f32.
double load(const void *data, int64_t at, bsparse_dtype dtype) {
    return dtype == BSPARSE_F64 ? static_cast<const double *>(data)[at] : static_cast<const float *>(data)[at];
}

void store(void *data, int64_t at, double value, bsparse_dtype dtype) {
    if (dtype == BSPARSE_F64) {
        static_cast<double *>(data)[at] = value;
    } else {
        static_cast<float *>(data)[at] = static_cast<float>(value);
    }
}

double activate(double x, bsparse_epilogue epilogue) {
    switch (epilogue) {
    case BSPARSE_EPILOGUE_RELU:
        return x < 0 ? 0 : x; // NaN stays NaN
    case BSPARSE_EPILOGUE_GELU:
        return x < -40 ? 0 : 0.5 * x * std::erfc(-x * std::sqrt(0.5)); // there 0 in f64, and not -inf * 0
    case BSPARSE_EPILOGUE_GELU_TANH:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case BSPARSE_EPILOGUE_SILU:
        return x / (1 + std::exp(-x));
    default:
        return x;
    }
}

// A dense operand seen as [tokens, features], whatever its order in memory.
struct DenseView {
    int64_t token_stride, feature_stride;
    int64_t at(int64_t token, int64_t feature) const { return token * token_stride + feature * feature_stride; }
};

// order is that of [features, tokens].
DenseView view_of(bsparse_order order, int64_t ld) {
    return order == BSPARSE_COL_MAJOR ? DenseView{ld, 1} : DenseView{1, ld};
}

// Where element e of the stored blocks lies among the values; -1 where it is not stored.
int64_t value_at(const Plan &plan, const bsparse_args &args, int64_t e) {
    return plan.pattern.is_24() ? kept_at(static_cast<const uint8_t *>(args.s_metadata), e) : e;
}

// One item: one block row (column in spmm_t) of D.
class SpmmJob : public Rounds {
public:
    SpmmJob(const Plan &plan, const bsparse_args &args)
        : Rounds(1, plan.desc.op == BSPARSE_SPMM ? plan.pattern.row_blocks : plan.pattern.col_blocks), plan_(plan),
          args_(args) {}

    void run_item(int64_t, int64_t major, int) override {
        const Pattern &p = plan_.pattern;
        const bool plain = plan_.desc.op == BSPARSE_SPMM;
        const int64_t outer_block = plain ? p.block_rows : p.block_cols;
        const int64_t last = std::min((major + 1) * outer_block, plain ? p.rows : p.cols);
        for (int64_t token = 0; token < args_.tokens; ++token) {
            for (int64_t feature = major * outer_block; feature < last; ++feature) {
                finish(token, feature, sum(token, major, feature - major * outer_block));
            }
        }
    }

private:
    // Row `inside` of the major's blocks times one token.
    double sum(int64_t token, int64_t major, int64_t inside) const {
        const Pattern &p = plan_.pattern;
        const bool plain = plan_.desc.op == BSPARSE_SPMM;
        const BlockLists &lists = plain ? p.by_row : p.by_col;
        const int64_t inner_block = plain ? p.block_cols : p.block_rows, inner = plain ? p.cols : p.rows;
        const DenseView b = view_of(plan_.desc.b_order, args_.ldb);
        double total = 0;
        for (int32_t l = lists.offsets[major]; l < lists.offsets[major + 1]; ++l) {
            const int64_t first = lists.minors[l] * inner_block;
            const int64_t block = int64_t{lists.index[l]} * p.block_rows * p.block_cols;
            for (int64_t k = 0; k < std::min(inner_block, inner - first); ++k) {
                const int64_t at = plain ? inside * p.block_cols + k : k * p.block_cols + inside;
                const int64_t value = value_at(plan_, args_, block + at);
                if (value >= 0) {
                    total += load(args_.s_values, value, plan_.desc.dtype) *
                             load(args_.b, b.at(token, first + k), plan_.desc.dtype);
                }
            }
        }
        return total;
    }

    void finish(int64_t token, int64_t feature, double total) const {
        const bsparse_plan_desc &desc = plan_.desc;
        double x = args_.alpha * total;
        if (args_.beta != 0) {
            x += args_.beta * load(args_.c, view_of(desc.d_order, args_.ldc).at(token, feature), desc.c_dtype);
        }
        if (args_.bias != nullptr) {
            x += load(args_.bias, feature, desc.bias_dtype);
        }
        if (args_.aux != nullptr) {
            store(args_.aux, view_of(desc.d_order, args_.ldaux).at(token, feature), x, desc.out_dtype);
        }
        store(args_.d, view_of(desc.d_order, args_.ldd).at(token, feature), activate(x, desc.epilogue), desc.out_dtype);
    }

    const Plan &plan_;
    const bsparse_args &args_;
};

// One item: one block row of S.
class SddmmJob : public Rounds {
public:
    SddmmJob(const Plan &plan, const bsparse_args &args)
        : Rounds(1, plan.pattern.row_blocks), plan_(plan), args_(args) {}

    void run_item(int64_t, int64_t block_row, int) override {
        const Pattern &p = plan_.pattern;
        const bsparse_plan_desc &desc = plan_.desc;
        const DenseView a = view_of(desc.a_order, args_.lda);
        const DenseView b = view_of(desc.b_order == BSPARSE_ROW_MAJOR ? BSPARSE_COL_MAJOR : BSPARSE_ROW_MAJOR,
                                    args_.ldb); // B is [tokens, cols]
        int64_t at = int64_t{p.by_row.offsets[block_row]} * p.block_rows * p.block_cols;
        for (int32_t l = p.by_row.offsets[block_row]; l < p.by_row.offsets[block_row + 1]; ++l) {
            for (int64_t i = 0; i < p.block_rows; ++i) {
                for (int64_t j = 0; j < p.block_cols; ++j, ++at) {
                    const int64_t value = value_at(plan_, args_, at);
                    if (value < 0) {
                        continue;
                    }
                    const int64_t row = block_row * p.block_rows + i;
                    const int64_t col = int64_t{p.by_row.minors[l]} * p.block_cols + j;
                    double x = 0; // and stays 0 in the padding
                    if (row < p.rows && col < p.cols) {
                        for (int64_t t = 0; t < args_.tokens; ++t) {
                            x += load(args_.a, a.at(t, row), desc.dtype) * load(args_.b, b.at(t, col), desc.dtype);
                        }
                        x *= args_.alpha;
                        if (args_.beta != 0) {
                            x += args_.beta * load(args_.s_values, value, desc.out_dtype);
                        }
                    }
                    store(args_.s_values, value, x, desc.out_dtype);
                }
            }
        }
    }

private:
    const Plan &plan_;
    const bsparse_args &args_;
};

} // namespace

void plain_run(const Plan &plan, const bsparse_args &args) {
    Pool &pool = state_of(*plan.context).pool;
    if (plan.desc.op == BSPARSE_SDDMM) {
        SddmmJob job(plan, args);
        pool.run(job, pool.threads());
    } else {
        SpmmJob job(plan, args);
        pool.run(job, pool.threads());
    }
}

} // namespace bsparse::cpu
