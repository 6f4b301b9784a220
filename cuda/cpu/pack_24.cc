// Numbers are compared and moved as bits: without its sign bit a larger magnitude is a larger integer, in every dtype;
// NaN is largest and -0.0 is 0.
#include "pack_24.h"

#include <algorithm>
#include <cstring>

#include "../src/dtype.h"
#include "../src/positions.h"
#include "bsr.h"
#include "bsr_plan.h"

namespace bsparse::cpu {
namespace {

constexpr int64_t kItemRows = 16; // of a block row, that one item takes
constexpr int64_t kElementsPerThread = int64_t{1} << 16; // below which waking another thread costs more than it saves

template <class Bits> constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;

// The nibble of the two largest of four magnitudes; of equal ones the first.
template <class Bits> uint8_t choose_two(const Bits (&group)[4]) {
    Bits size[4];
    for (int i = 0; i < 4; ++i) {
        size[i] = group[i] & kMagnitude<Bits>;
    }
    int first = 0; // the largest
    for (int i = 1; i < 4; ++i) {
        first = size[i] > size[first] ? i : first;
    }
    int second = first == 0 ? 1 : 0;
    for (int i = second + 1; i < 4; ++i) {
        second = i != first && size[i] > size[second] ? i : second;
    }
    return static_cast<uint8_t>(std::min(first, second) | std::max(first, second) << 2);
}

// The nibble of the larger of each pair.
template <class Bits> uint8_t choose_one_of_two(const Bits (&group)[4]) {
    const auto larger = [&](int i) {
        return (group[i + 1] & kMagnitude<Bits>) > (group[i] & kMagnitude<Bits>) ? i + 1 : i;
    };
    return static_cast<uint8_t>(larger(0) | larger(2) << 2);
}

// Calls visit(row of the matrix, first column of the group, group) for groups of four columns of the stored blocks. One
// item: some rows of one block row. A group and a row may lie outside the matrix, in the padding.
template <class Visit> class GroupsJob : public Rounds {
public:
    GroupsJob(const Pattern &pattern, Visit visit)
        : Rounds(1, pattern.row_blocks * ceil_div(pattern.block_rows, kItemRows)), pattern_(pattern), visit_(visit) {}

    void run_item(int64_t, int64_t number, int) override {
        const Pattern &p = pattern_;
        const int64_t parts = ceil_div(p.block_rows, kItemRows);
        const int64_t block_row = number / parts;
        const int64_t first = number % parts * kItemRows;
        const int64_t last = std::min<int64_t>(first + kItemRows, p.block_rows);
        for (int64_t b = p.by_row.offsets[block_row]; b < p.by_row.offsets[block_row + 1]; ++b) {
            const int64_t column = int64_t{p.by_row.minors[b]} * p.block_cols;
            for (int64_t i = first; i < last; ++i) {
                const int64_t group = (b * p.block_rows + i) * p.block_cols / 4;
                for (int64_t k = 0; k < p.block_cols / 4; ++k) {
                    visit_(block_row * p.block_rows + i, column + 4 * k, group + k);
                }
            }
        }
    }

private:
    const Pattern &pattern_;
    Visit visit_;
};

template <class Visit> void for_each_group(const Context &context, const Pattern &pattern, Visit visit) {
    GroupsJob<Visit> job(pattern, visit);
    Pool &pool = state_of(context).pool;
    pool.run(job, static_cast<int>(std::min<int64_t>(1 + pattern.elements() / kElementsPerThread, pool.threads())));
}

// A dense matrix of one element size.
template <class Bits> struct DenseBits {
    const Pattern &pattern;
    const Bits *data;
    int64_t ld;

    // Four neighbours in a row; zero outside the matrix.
    void load(int64_t row, int64_t column, Bits (&group)[4]) const {
        for (int64_t i = 0; i < 4; ++i) {
            group[i] = row < pattern.rows && column + i < pattern.cols ? data[row * ld + column + i] : Bits{0};
        }
    }
};

template <class Bits> void keep(const Bits (&group)[4], uint8_t nibble, Bits *values) {
    values[0] = group[nibble & 3];
    values[1] = group[nibble >> 2];
}

template <class Bits>
void pack_bits(const Context &context, const DenseBits<Bits> &dense, bool one_of_two, Bits *values, uint8_t *metadata) {
    for_each_group(context, dense.pattern, [=](int64_t row, int64_t column, int64_t group) {
        Bits four[4];
        dense.load(row, column, four);
        const uint8_t nibble = one_of_two ? choose_one_of_two(four) : choose_two(four);
        keep(four, nibble, values + group * 2);
        uint8_t &byte = metadata[group / 2]; // its low half comes first, from the same thread
        byte = group % 2 == 0 ? nibble : static_cast<uint8_t>(byte | nibble << 4);
    });
}

template <class Bits>
void pack_bits_at(const Context &context, const DenseBits<Bits> &dense, const uint8_t *metadata, Bits *values) {
    for_each_group(context, dense.pattern, [=](int64_t row, int64_t column, int64_t group) {
        Bits four[4];
        dense.load(row, column, four);
        keep(four, group_at(metadata, group), values + group * 2);
    });
}

template <class Bits>
void unpack_bits(const Context &context, const Pattern &pattern, const Bits *values, const uint8_t *metadata,
                 Bits *dense, int64_t ld) {
    for (int64_t row = 0; row < pattern.rows; ++row) {
        std::memset(dense + row * ld, 0, pattern.cols * sizeof(Bits));
    }
    for_each_group(context, pattern, [=, &pattern](int64_t row, int64_t column, int64_t group) {
        const uint8_t nibble = group_at(metadata, group);
        for (int i = 0; i < 2; ++i) {
            const int64_t at = column + (nibble >> 2 * i & 3);
            if (row < pattern.rows && at < pattern.cols) {
                dense[row * ld + at] = values[group * 2 + i];
            }
        }
    });
}

// Calls work with a number of the dtype's size.
template <class Work> void with_bits(bsparse_dtype dtype, Work work) {
    switch (dtype_bytes(dtype)) {
    case 8:
        return work(uint64_t{});
    case 4:
        return work(uint32_t{});
    default:
        return work(uint16_t{});
    }
}

} // namespace

void pack_24(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
             void *values, uint8_t *metadata) {
    with_bits(dtype, [&](auto zero) {
        using Bits = decltype(zero);
        pack_bits<Bits>(context, {pattern, static_cast<const Bits *>(dense), ld}, dtype == BSPARSE_F32,
                        static_cast<Bits *>(values), metadata);
    });
}

void pack_24_at(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
                const uint8_t *metadata, void *values) {
    with_bits(dtype, [&](auto zero) {
        using Bits = decltype(zero);
        pack_bits_at<Bits>(context, {pattern, static_cast<const Bits *>(dense), ld}, metadata,
                           static_cast<Bits *>(values));
    });
}

void unpack_24(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values,
               const uint8_t *metadata, void *dense, int64_t ld) {
    with_bits(dtype, [&](auto zero) {
        using Bits = decltype(zero);
        unpack_bits<Bits>(context, pattern, static_cast<const Bits *>(values), metadata, static_cast<Bits *>(dense),
                          ld);
    });
}

} // namespace bsparse::cpu
