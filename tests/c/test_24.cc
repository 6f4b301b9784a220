// The 2:4 formats: packing, malformed positions, and products, which must be those of the same numbers stored whole,
// bit for bit: the kernels multiply the zeros between the kept ones too.
#include "cases.h"

namespace {

constexpr bsparse_dtype kDtypes[] = {BSPARSE_F32, BSPARSE_F16, BSPARSE_BF16, BSPARSE_F64};
constexpr bsparse_format kFormats[] = {BSPARSE_SEMI24, BSPARSE_BSR24};
constexpr bsparse_op kOps[] = {BSPARSE_SPMM, BSPARSE_SPMM_T, BSPARSE_SDDMM};

// Multiples of 1/8 up to 4, of both signs, with ties and zeros.
double number(int64_t row, int64_t col) {
    const auto mixed = static_cast<uint32_t>(row * 7919 + col * 104729) * 2654435761u;
    return static_cast<double>(static_cast<int>(mixed >> 20) % 65 - 32) / 8;
}

// A case in a 2:4 format, and the same blocks stored whole.
struct Both {
    const Case &c;
    bsparse_format format;
    CasePattern whole;
    std::vector<int32_t> one_offsets{0, 1}, one_column{0};
    PatternHandle handle, same; // 2:4; bsr with the same blocks

    Both(const Case &of, bsparse_format as) : c(of), format(as), whole(of) {
        bsparse_pattern_desc desc{sizeof(desc),
                                  as,
                                  c.block_rows,
                                  c.block_cols,
                                  0,
                                  c.rows,
                                  c.cols,
                                  static_cast<int64_t>(whole.columns.size()),
                                  whole.offsets.data(),
                                  whole.columns.data()};
        if (as == BSPARSE_SEMI24) {
            desc = {sizeof(desc),
                    as,
                    static_cast<int32_t>(c.rows),
                    static_cast<int32_t>(c.cols),
                    0,
                    c.rows,
                    c.cols,
                    1,
                    one_offsets.data(),
                    one_column.data()};
        }
        handle = make_pattern(desc);
        desc.format = BSPARSE_BSR;
        same = make_pattern(desc);
    }

    static bool fits(const Case &c, bsparse_format format) {
        return (format == BSPARSE_SEMI24 ? c.cols : c.block_cols) % 8 == 0;
    }

    int64_t metadata_bytes() const {
        size_t bytes = 0;
        CHECK(bsparse_pattern_sizes(handle.get(), BSPARSE_F32, nullptr, &bytes) == BSPARSE_OK);
        return static_cast<int64_t>(bytes);
    }
};

// A dense matrix, packed as 2:4, what is left of it, and that packed whole.
struct Packed {
    Matrix dense, values, kept, whole;
    std::vector<uint8_t> metadata;

    Packed(const ContextHandle &context, const Both &both, bsparse_dtype dtype)
        : dense(dtype, BSPARSE_ROW_MAJOR, both.c.rows, both.c.cols, both.c.gap, both.c.offset),
          values(dtype, BSPARSE_ROW_MAJOR, 1, both.metadata_bytes() * 4, 0, both.c.offset),
          kept(dtype, BSPARSE_ROW_MAJOR, both.c.rows, both.c.cols, both.c.gap, both.c.offset),
          whole(dtype, BSPARSE_ROW_MAJOR, 1, both.metadata_bytes() * 8, 0, both.c.offset),
          metadata(static_cast<size_t>(both.metadata_bytes()), 0xff) {
        for (int64_t row = 0; row < both.c.rows; ++row) {
            for (int64_t col = 0; col < both.c.cols; ++col) {
                dense.set(row, col, number(row, col));
            }
        }
        const bsparse_context *on = context.get();
        CHECK(bsparse_pack(on, both.handle.get(), dtype, dense.data(), dense.ld(), values.data(), metadata.data(),
                           nullptr) == BSPARSE_OK);
        CHECK(bsparse_unpack(on, both.handle.get(), dtype, values.data(), metadata.data(), kept.data(), kept.ld(),
                             nullptr) == BSPARSE_OK);
        CHECK(bsparse_pack(on, both.same.get(), dtype, kept.data(), kept.ld(), whole.data(), nullptr, nullptr) ==
              BSPARSE_OK);
    }

    // The positions of a group: of its elements, group * 4 on, among the blocks stored whole.
    int first(int64_t group) const { return metadata[static_cast<size_t>(group / 2)] >> group % 2 * 4 & 3; }
    int second(int64_t group) const { return metadata[static_cast<size_t>(group / 2)] >> (group % 2 * 4 + 2) & 3; }
};

// Nothing that is dropped is larger than what is kept beside it, in f32 in each pair; of equal ones the first is kept.
void check_choice(const Both &both, const Packed &packed, bsparse_dtype dtype, const ContextHandle &context) {
    Matrix all(dtype, BSPARSE_ROW_MAJOR, 1, both.metadata_bytes() * 8, 0, both.c.offset); // the dense blocks
    Matrix dense = packed.dense;
    CHECK(bsparse_pack(context.get(), both.same.get(), dtype, dense.data(), dense.ld(), all.data(), nullptr, nullptr) ==
          BSPARSE_OK);
    const int64_t span = dtype == BSPARSE_F32 ? 2 : 4; // columns that are chosen among
    for (int64_t group = 0; group < both.metadata_bytes() * 2; ++group) {
        const int first = packed.first(group), second = packed.second(group);
        CHECK(first < second && (dtype != BSPARSE_F32 || (first < 2 && second >= 2)));
        CHECK(packed.values.at(0, group * 2) == all.at(0, group * 4 + first));
        CHECK(packed.values.at(0, group * 2 + 1) == all.at(0, group * 4 + second));
        for (int column = 0; column < 4; ++column) {
            for (const int chosen : {first, second}) {
                const double dropped = std::fabs(all.at(0, group * 4 + column));
                const double kept = std::fabs(all.at(0, group * 4 + chosen));
                const bool rivals = column != first && column != second && column / span == chosen / span;
                CHECK(!rivals || dropped < kept || (dropped == kept && column > chosen));
            }
        }
    }
    CHECK(packed.values.gaps_are_untouched() && packed.kept.gaps_are_untouched());
}

void check_pack_at(const ContextHandle &context, const Both &both, Packed &packed, bsparse_dtype dtype) {
    Matrix again(dtype, BSPARSE_ROW_MAJOR, 1, both.metadata_bytes() * 4, 0, both.c.offset);
    CHECK(bsparse_pack_at(context.get(), both.handle.get(), dtype, packed.dense.data(), packed.dense.ld(),
                          packed.metadata.data(), again.data(), nullptr) == BSPARSE_OK);
    CHECK(again.elements() == packed.values.elements() && again.gaps_are_untouched());
}

void run(const PlanHandle &plan, const bsparse_args &args) {
    const size_t bytes = bsparse_plan_workspace_bytes(plan.get(), args.tokens);
    std::vector<char> memory(bytes + 64);
    char *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    CHECK(bsparse_plan_run(plan.get(), &args, nullptr, workspace, nullptr) == BSPARSE_OK);
}

void fill(Matrix &matrix, int64_t seed) {
    for (int64_t row = 0; row < matrix.rows(); ++row) {
        for (int64_t col = 0; col < matrix.cols(); ++col) {
            matrix.set(row, col, number(row + seed, col) / 4);
        }
    }
}

void check_product(const ContextHandle &context, const Both &both, Packed &packed, bsparse_dtype dtype, bsparse_op op) {
    const Case &c = both.c;
    bsparse_plan_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.op = op;
    desc.dtype = dtype;
    const PlanHandle plan = make_plan(context, both.handle, desc), same = make_plan(context, both.same, desc);
    const bool sddmm = op == BSPARSE_SDDMM, transposed = op == BSPARSE_SPMM_T;
    Matrix a(dtype, BSPARSE_COL_MAJOR, c.rows, c.tokens, c.gap, c.offset);
    Matrix x(dtype, BSPARSE_COL_MAJOR, c.cols, c.tokens, c.gap, c.offset); // B; of sddmm [tokens, cols], row-major
    Matrix d(dtype, BSPARSE_COL_MAJOR, transposed ? c.cols : c.rows, c.tokens, c.gap, c.offset), d_same = d;
    Matrix values = packed.values, whole = packed.whole;
    fill(a, 1);
    fill(x, 2);
    bsparse_args args{};
    args.struct_size = sizeof(args);
    args.tokens = c.tokens;
    args.alpha = 0.5;
    args.beta = sddmm ? 2 : 0;
    args.b = transposed ? a.data() : x.data();
    args.ldb = transposed ? a.ld() : x.ld();
    args.s_values = values.data();
    args.s_metadata = packed.metadata.data();
    if (sddmm) {
        args.a = a.data();
        args.lda = a.ld();
    } else {
        args.d = d.data();
        args.ldd = d.ld();
    }
    run(plan, args);
    args.s_values = whole.data();
    args.s_metadata = nullptr;
    args.d = sddmm ? nullptr : d_same.data();
    run(same, args);
    CHECK(d.elements() == d_same.elements() || sddmm);
    for (int64_t group = 0; sddmm && group < both.metadata_bytes() * 2; ++group) {
        CHECK(values.at(0, group * 2) == whole.at(0, group * 4 + packed.first(group)));
        CHECK(values.at(0, group * 2 + 1) == whole.at(0, group * 4 + packed.second(group)));
    }
    CHECK(values.gaps_are_untouched() && d.gaps_are_untouched());
    CHECK(std::strstr(bsparse_plan_kernel(plan.get(), c.tokens), both.format == BSPARSE_SEMI24 ? "semi24" : "bsr24"));
}

void check_refused(bsparse_status status, const char *words) {
    CHECK(status == BSPARSE_INVALID_ARGUMENT);
    CHECK(std::strstr(bsparse_last_error(), words) != nullptr);
}

// Every nibble, in either half of the first, of a middle and of the last byte.
void test_malformed(const ContextHandle &context) {
    const Case c{"", 6, 48, 2, 16, "x.x/.xx/xx."};
    const Both both(c, BSPARSE_BSR24);
    Packed packed(context, both, BSPARSE_F32);
    const std::vector<uint8_t> good = packed.metadata;
    const bsparse_pattern *pattern = both.handle.get();
    CHECK(bsparse_check_metadata(pattern, good.data()) == BSPARSE_OK);
    for (const size_t at : {size_t{0}, size_t{11}, good.size() - 1}) {
        for (const int shift : {0, 4}) {
            for (int nibble = 0; nibble < 16; ++nibble) {
                packed.metadata = good;
                packed.metadata[at] = static_cast<uint8_t>((good[at] & 0xf0 >> shift) | nibble << shift);
                const bsparse_status status = bsparse_check_metadata(pattern, packed.metadata.data());
                CHECK((status == BSPARSE_OK) == ((nibble & 3) < nibble >> 2));
                const std::string field = "metadata[" + std::to_string(at) + "]";
                CHECK(status == BSPARSE_OK || std::strstr(bsparse_last_error(), field.c_str()) != nullptr);
                CHECK(status == BSPARSE_OK || std::strstr(bsparse_last_error(), shift == 0 ? "low half" : "high half"));
            }
        }
    }
    packed.metadata = good;
    packed.metadata.back() = 0x45; // positions 1, 1
    const std::vector<double> before = packed.kept.elements(), values = packed.values.elements();
    check_refused(bsparse_unpack(context.get(), pattern, BSPARSE_F32, packed.values.data(), packed.metadata.data(),
                                 packed.kept.data(), packed.kept.ld(), nullptr),
                  "columns 1 and 1");
    check_refused(bsparse_pack_at(context.get(), pattern, BSPARSE_F32, packed.dense.data(), packed.dense.ld(),
                                  packed.metadata.data(), packed.values.data(), nullptr),
                  "must be less");
    CHECK(packed.kept.elements() == before && packed.values.elements() == values);
    bsparse_plan_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.op = BSPARSE_SPMM;
    desc.dtype = BSPARSE_F32;
    const PlanHandle plan = make_plan(context, both.handle, desc);
    Matrix x(BSPARSE_F32, BSPARSE_COL_MAJOR, c.cols, 1), d(BSPARSE_F32, BSPARSE_COL_MAJOR, c.rows, 1);
    bsparse_args args{};
    args.struct_size = sizeof(args);
    args.tokens = 1;
    args.alpha = 1;
    args.b = x.data();
    args.ldb = c.cols;
    args.d = d.data();
    args.ldd = c.rows;
    args.s_values = packed.values.data();
    std::vector<char> memory(bsparse_plan_workspace_bytes(plan.get(), 1) + 64);
    void *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    check_refused(bsparse_plan_run(plan.get(), &args, nullptr, workspace, nullptr), "args.s_metadata is NULL");
    args.s_metadata = packed.metadata.data();
    check_refused(bsparse_plan_run(plan.get(), &args, nullptr, workspace, nullptr), "args.s_metadata[");
    for (const double untouched : d.elements()) {
        CHECK(std::isnan(untouched));
    }
}

void test_missing(const ContextHandle &context) {
    const Case c{"", 6, 48, 2, 16, "x.x/.xx/xx."};
    const Both both(c, BSPARSE_BSR24);
    Packed packed(context, both, BSPARSE_F32);
    const bsparse_context *on = context.get();
    check_refused(bsparse_pack(on, both.handle.get(), BSPARSE_F32, packed.dense.data(), 48, packed.values.data(),
                               nullptr, nullptr),
                  "metadata is NULL; bsr24 has 24 bytes");
    check_refused(bsparse_pack(on, both.handle.get(), BSPARSE_F32, packed.dense.data(), 48, packed.values.data(),
                               packed.values.data(), nullptr),
                  "overlap");
    check_refused(bsparse_pack_at(on, both.same.get(), BSPARSE_F32, packed.dense.data(), 48, nullptr,
                                  packed.whole.data(), nullptr),
                  "use bsparse_pack");
    check_refused(bsparse_check_metadata(both.handle.get(), nullptr), "metadata is NULL");
    check_refused(bsparse_check_metadata(both.same.get(), packed.metadata.data()), "only 2:4 formats");
    check_refused(bsparse_check_metadata(nullptr, packed.metadata.data()), "pattern is NULL");
}

} // namespace

int main() {
    static const std::vector<Case> more = {
        {"one group of bytes", 5, 8, 5, 8, "x", 3},
        {"24 columns", 33, 72, 33, 24, "x.x", 17},
        {"rounds of wide rows", 8, 1032, 4, 8, scattered(2, 129, 5), 1029},
        {"ragged 2:4", 45, 83, 16, 32, scattered(3, 3, 7), 19, 1, 3},
    };
    for (const bsparse_cpu_isa isa :
         {BSPARSE_CPU_PORTABLE, BSPARSE_CPU_AVX2, BSPARSE_CPU_AVX512, BSPARSE_CPU_AVX512_BF16}) {
        const bsparse_context_desc desc = cpu_desc(3, isa);
        bsparse_context *made = nullptr;
        if (bsparse_context_create(&made, &desc) == BSPARSE_UNSUPPORTED) { // not of this processor
            continue;
        }
        const ContextHandle context(made);
        for (const std::vector<Case> *cases : {&named_cases(), &more}) {
            for (const Case &c : *cases) {
                for (const bsparse_format format : kFormats) {
                    if (!Both::fits(c, format)) {
                        continue;
                    }
                    const Both both(c, format);
                    for (const bsparse_dtype dtype : kDtypes) {
                        Packed packed(context, both, dtype);
                        check_choice(both, packed, dtype, context);
                        check_pack_at(context, both, packed, dtype);
                        for (const bsparse_op op : kOps) {
                            check_product(context, both, packed, dtype, op);
                        }
                    }
                }
            }
        }
        test_malformed(context);
        test_missing(context);
    }
    return 0;
}
