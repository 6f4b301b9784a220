// Dense to blocks and back, every dtype: exact, zeros where nothing is stored, zeros in the padding of edge blocks.
#if defined(__unix__)
#include <sys/mman.h>
#endif

#include "cases.h"

namespace {

constexpr bsparse_dtype kDtypes[] = {BSPARSE_F32, BSPARSE_F16, BSPARSE_BF16, BSPARSE_F64};

double number(int64_t row, int64_t col) { return static_cast<double>((row * 31 + col * 7) % 63 + 1) / 32; }

void check_round_trip(const ContextHandle &context, const Case &c, bsparse_dtype dtype) {
    const CasePattern pattern(c);
    Matrix dense(dtype, BSPARSE_ROW_MAJOR, c.rows, c.cols, c.gap + 1, c.offset);
    Matrix values(dtype, BSPARSE_ROW_MAJOR, 1, pattern.values(c), 0, c.offset);
    Matrix back(dtype, BSPARSE_ROW_MAJOR, c.rows, c.cols, c.gap, c.offset);
    for (int64_t row = 0; row < c.rows; ++row) {
        for (int64_t col = 0; col < c.cols; ++col) {
            dense.set(row, col, number(row, col));
        }
    }
    CHECK(bsparse_pack(context.get(), pattern.handle.get(), dtype, dense.data(), dense.ld(), values.data(), nullptr,
                       nullptr) == BSPARSE_OK);
    CHECK(bsparse_unpack(context.get(), pattern.handle.get(), dtype, values.data(), nullptr, back.data(), back.ld(),
                         nullptr) == BSPARSE_OK);
    double stored = 0;
    pattern.for_each_value(c, [&](int64_t row, int64_t col, int64_t position, bool inside) {
        CHECK(values.at(0, position) == (inside ? number(row, col) : 0));
        CHECK(!inside || back.at(row, col) == number(row, col));
        stored += inside ? number(row, col) : 0;
    });
    double all = 0; // nothing but the stored elements is left
    for (const double x : back.elements()) {
        all += x;
    }
    CHECK(all == stored && values.gaps_are_untouched() && back.gaps_are_untouched());
}

void check_sentence(bsparse_status status, const char *words) {
    CHECK(status == BSPARSE_INVALID_ARGUMENT);
    CHECK(std::strstr(bsparse_last_error(), words) != nullptr);
}

void test_bad_arguments(const ContextHandle &context) {
    const CasePattern pattern({"", 6, 8, 2, 4, "x./.x/xx"});
    const bsparse_context *on = context.get();
    const bsparse_pattern *p = pattern.handle.get();
    std::vector<float> dense(48), values(32);
    float *d = dense.data(), *v = values.data();
    check_sentence(bsparse_pack(nullptr, p, BSPARSE_F32, d, 8, v, nullptr, nullptr), "context is NULL");
    check_sentence(bsparse_pack(on, nullptr, BSPARSE_F32, d, 8, v, nullptr, nullptr), "pattern is NULL");
    check_sentence(bsparse_pack(on, p, 0, d, 8, v, nullptr, nullptr), "dtype is 0");
    check_sentence(bsparse_pack(on, p, BSPARSE_F32, nullptr, 8, v, nullptr, nullptr), "dense is NULL");
    check_sentence(bsparse_pack(on, p, BSPARSE_F32, d, 7, v, nullptr, nullptr), "ld is 7; with dense [6, 8]");
    check_sentence(bsparse_pack(on, p, BSPARSE_F32, d, 8, nullptr, nullptr, nullptr), "values is NULL; 32 elements");
    check_sentence(bsparse_pack(on, p, BSPARSE_F32, d, 8, d + 4, nullptr, nullptr), "overlap");
    check_sentence(bsparse_unpack(on, p, BSPARSE_F32, v, v, d, 8, nullptr), "metadata is set");
    check_sentence(bsparse_unpack(on, p, BSPARSE_F32, v, nullptr, v + 1, 8, nullptr), "overlap");
}

#if defined(__unix__)
// More than 2^31 rows of blocks before the last one: 6 GiB of zeros of which three pages are touched.
void test_more_rows_than_an_int(const ContextHandle &context) {
    const int32_t rows = 1 << 30, offsets[] = {0, 3}, columns[] = {0, 1, 2};
    const PatternHandle pattern =
        make_pattern({sizeof(bsparse_pattern_desc), BSPARSE_BSR, rows, 1, 0, 1, 3, 3, offsets, columns});
    const size_t bytes = size_t{3} * rows * 2;
    void *values = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(values != MAP_FAILED);
    uint16_t dense[] = {0, 0, 0};
    for (int64_t block = 0; block < 3; ++block) {
        static_cast<uint16_t *>(values)[block * rows] = static_cast<uint16_t>(block + 1);
    }
    CHECK(bsparse_unpack(context.get(), pattern.get(), BSPARSE_F16, values, nullptr, dense, 3, nullptr) == BSPARSE_OK);
    CHECK(dense[0] == 1 && dense[1] == 2 && dense[2] == 3);
    munmap(values, bytes);
}
#endif

} // namespace

int main() {
    for (const int32_t threads : {1, 3}) {
        const ContextHandle context = make_context(cpu_desc(threads));
        for (const Case &c : named_cases()) {
            for (const bsparse_dtype dtype : kDtypes) {
                check_round_trip(context, c, dtype);
            }
        }
        test_bad_arguments(context);
#if defined(__unix__)
        test_more_rows_than_an_int(context);
#endif
    }
    return 0;
}
