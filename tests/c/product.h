// One product by the library and by plain loops in double, compared.
//
// Operands are multiples of 1/8 no larger than 1, alpha and beta powers of two: every sum is exact in f32, in any
// order, so results before an activation must equal the loops' exactly (rounded once to the stored dtype).
#pragma once

#include <string>
#include <vector>

#include "handles.h"
#include "matrix.h"

struct Case {
    std::string name;
    int64_t rows, cols;
    int32_t block_rows, block_cols;
    std::string mask; // "x.x/..." : one letter for each block, block rows separated by slashes
    int64_t tokens = 8;
    int64_t gap = 0;    // elements between lines of every dense operand
    int64_t offset = 0; // elements before every operand's first
};

struct Options {
    bsparse_op op;
    bsparse_dtype dtype;
    bsparse_dtype out_dtype;
    bsparse_order a_order = BSPARSE_COL_MAJOR, b_order = BSPARSE_COL_MAJOR, d_order = BSPARSE_COL_MAJOR;
    bsparse_dtype other_dtype = 0; // of C and bias; 0: out_dtype
    bsparse_epilogue epilogue = BSPARSE_EPILOGUE_NONE;
    double beta = 0;
    bool in_place = false; // C is D
    bool bias = false, aux = false;
};

// Plans, runs and compares; says which case failed and ends the program.
void check_product(const ContextHandle &context, const Case &c, const Options &o);

// The pattern of a case, with the arrays that describe it.
struct CasePattern {
    std::vector<int32_t> offsets{0};
    std::vector<int32_t> columns;
    PatternHandle handle;

    explicit CasePattern(const Case &c);
    // Calls visit(row, col, position in values, whether it lies inside the matrix) for every stored value.
    template <class Visit> void for_each_value(const Case &c, Visit visit) const {
        int64_t position = 0;
        for (size_t block_row = 0; block_row + 1 < offsets.size(); ++block_row) {
            for (int32_t i = offsets[block_row]; i < offsets[block_row + 1]; ++i) {
                for (int32_t r = 0; r < c.block_rows; ++r) {
                    for (int32_t k = 0; k < c.block_cols; ++k, ++position) {
                        const int64_t row = static_cast<int64_t>(block_row) * c.block_rows + r;
                        const int64_t col = int64_t{columns[static_cast<size_t>(i)]} * c.block_cols + k;
                        visit(row, col, position, row < c.rows && col < c.cols);
                    }
                }
            }
        }
    }
    int64_t values(const Case &c) const { return static_cast<int64_t>(columns.size()) * c.block_rows * c.block_cols; }
};
