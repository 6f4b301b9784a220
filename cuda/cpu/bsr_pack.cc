// Dense to stored blocks and back: rows of blocks are copied as bytes, whatever the dtype.
#include <algorithm>
#include <cstring>

#include "../src/dtype.h"
#include "bsr.h"

namespace bsparse::cpu {
namespace {

// One item: one block row.
class PackJob : public Rounds {
public:
    PackJob(const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld, void *values)
        : Rounds(1, pattern.row_blocks), pattern_(pattern), element_(dtype_bytes(dtype)),
          dense_(static_cast<const char *>(dense)), ld_(ld), values_(static_cast<char *>(values)) {}

    void run_item(int64_t, int64_t block_row, int) override {
        const int64_t width = pattern_.block_cols * element_; // bytes of a row of a block
        for (int64_t b = pattern_.by_row.offsets[block_row]; b < pattern_.by_row.offsets[block_row + 1]; ++b) {
            const int64_t column = int64_t{pattern_.by_row.minors[b]} * pattern_.block_cols;
            const int64_t inside = std::min<int64_t>(pattern_.block_cols, pattern_.cols - column) * element_;
            char *to = values_ + b * pattern_.block_rows * width; // [block_rows, block_cols]
            for (int64_t i = 0; i < pattern_.block_rows; ++i, to += width) {
                const int64_t row = block_row * pattern_.block_rows + i;
                const int64_t copied = row < pattern_.rows ? inside : 0;
                if (copied > 0) {
                    std::memcpy(to, dense_ + (row * ld_ + column) * element_, copied);
                }
                std::memset(to + copied, 0, width - copied);
            }
        }
    }

private:
    const Pattern &pattern_;
    const int64_t element_;
    const char *const dense_;
    const int64_t ld_;
    char *const values_;
};

// One item: one block row, zeros first and its blocks over them.
class UnpackJob : public Rounds {
public:
    UnpackJob(const Pattern &pattern, bsparse_dtype dtype, const void *values, void *dense, int64_t ld)
        : Rounds(1, pattern.row_blocks), pattern_(pattern), element_(dtype_bytes(dtype)),
          values_(static_cast<const char *>(values)), dense_(static_cast<char *>(dense)), ld_(ld) {}

    void run_item(int64_t, int64_t block_row, int) override {
        const int64_t width = pattern_.block_cols * element_;
        const int64_t first = block_row * pattern_.block_rows;
        const int64_t last = std::min(first + pattern_.block_rows, pattern_.rows);
        for (int64_t row = first; row < last; ++row) {
            std::memset(dense_ + row * ld_ * element_, 0, pattern_.cols * element_);
            for (int64_t b = pattern_.by_row.offsets[block_row]; b < pattern_.by_row.offsets[block_row + 1]; ++b) {
                const int64_t column = int64_t{pattern_.by_row.minors[b]} * pattern_.block_cols;
                const int64_t inside = std::min<int64_t>(pattern_.block_cols, pattern_.cols - column) * element_;
                std::memcpy(dense_ + (row * ld_ + column) * element_,
                            values_ + (b * pattern_.block_rows + row - first) * width, inside);
            }
        }
    }

private:
    const Pattern &pattern_;
    const int64_t element_;
    const char *const values_;
    char *const dense_;
    const int64_t ld_;
};

// Below so many bytes waking another thread costs more than it saves.
constexpr int64_t kBytesPerThread = int64_t{1} << 18;

int threads_for(int64_t bytes) { return static_cast<int>(std::min<int64_t>(1 + bytes / kBytesPerThread, 1024)); }

} // namespace

void bsr_pack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
              void *values) {
    PackJob job(pattern, dtype, dense, ld, values);
    const int64_t bytes = pattern.elements() * dtype_bytes(dtype);
    state_of(context).pool.run(job, threads_for(bytes));
}

void bsr_unpack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values, void *dense,
                int64_t ld) {
    UnpackJob job(pattern, dtype, values, dense, ld);
    state_of(context).pool.run(job, threads_for(pattern.rows * pattern.cols * dtype_bytes(dtype)));
}

} // namespace bsparse::cpu
