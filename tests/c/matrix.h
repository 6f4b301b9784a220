// Dense operands of the product tests: any order, any gap between lines, any start; gaps hold NaN that must stay.
#pragma once

#include <vector>

#include "numbers.h"

class Matrix {
public:
    Matrix(bsparse_dtype dtype, bsparse_order order, int64_t rows, int64_t cols, int64_t gap = 0, int64_t offset = 0)
        : dtype_(dtype), row_major_(order == BSPARSE_ROW_MAJOR), rows_(rows), cols_(cols),
          ld_((row_major_ ? cols : rows) + gap), offset_(offset),
          bytes_(static_cast<size_t>(offset + (row_major_ ? rows : cols) * ld_ + 1) * bytes_of(dtype)) {
        for (int64_t i = 0; i < capacity(); ++i) {
            store(bytes_.data(), dtype_, i, NAN);
        }
    }

    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    int64_t ld() const { return ld_; }
    void *data() { return bytes_.data() + static_cast<size_t>(offset_) * bytes_of(dtype_); }

    double at(int64_t row, int64_t col) const { return load(bytes_.data(), dtype_, place(row, col)); }
    void set(int64_t row, int64_t col, double x) { store(bytes_.data(), dtype_, place(row, col), x); }

    // All elements, [rows, cols], row-major.
    std::vector<double> elements() const {
        std::vector<double> all;
        all.reserve(static_cast<size_t>(rows_ * cols_));
        for (int64_t row = 0; row < rows_; ++row) {
            for (int64_t col = 0; col < cols_; ++col) {
                all.push_back(at(row, col));
            }
        }
        return all;
    }

    // Whether everything but the elements themselves is still NaN.
    bool gaps_are_untouched() const {
        std::vector<bool> inside(static_cast<size_t>(capacity()));
        for (int64_t row = 0; row < rows_; ++row) {
            for (int64_t col = 0; col < cols_; ++col) {
                inside[static_cast<size_t>(place(row, col))] = true;
            }
        }
        for (int64_t i = 0; i < capacity(); ++i) {
            if (!inside[static_cast<size_t>(i)] && !std::isnan(load(bytes_.data(), dtype_, i))) {
                return false;
            }
        }
        return true;
    }

private:
    int64_t capacity() const { return static_cast<int64_t>(bytes_.size() / bytes_of(dtype_)); }
    int64_t place(int64_t row, int64_t col) const { return offset_ + (row_major_ ? row * ld_ + col : col * ld_ + row); }

    bsparse_dtype dtype_;
    bool row_major_;
    int64_t rows_, cols_, ld_, offset_;
    std::vector<unsigned char> bytes_;
};
