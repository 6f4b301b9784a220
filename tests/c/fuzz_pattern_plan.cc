// Any bytes, read as a pattern, a plan and a run: the library refuses them or computes, and never breaks.
//
// A valid problem is drawn first, then up to three fields are overwritten with anything, so that both what is refused
// and what is accepted stays near the border. libFuzzer brings its own main; for other compilers there is fuzz_main.cc.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "handles.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace {

constexpr int64_t kMostEntries = 4096; // of an index array that is made here
constexpr int64_t kMostColumns = 1 << 16; // of blocks: more are valid and cost memory, not insight
constexpr int64_t kMostElements = 1 << 16; // of an operand: what is larger is planned, not run
constexpr int64_t kRefused = (int64_t{1} << 26); // no more block rows or columns are listed by the library

// Takes numbers off the front of the input; zeros once it is used up.
class Reader {
public:
    Reader(const uint8_t *data, size_t size) : data_(data), size_(size) {}

    template <class Number> Number take() {
        Number number{};
        const size_t bytes = std::min(size_, sizeof(number));
        if (bytes > 0) {
            std::memcpy(&number, data_, bytes);
            data_ += bytes;
            size_ -= bytes;
        }
        return number;
    }

    int32_t below(int32_t end) { return take<uint8_t>() % end; }

    // Mostly small, now and then any.
    int64_t any() { return below(4) == 0 ? take<int64_t>() : take<int8_t>(); }

private:
    const uint8_t *data_;
    size_t size_;
};

void spoil(Reader &reader, const std::vector<int32_t *> &narrow, const std::vector<int64_t *> &wide) {
    const auto fields = static_cast<int32_t>(narrow.size() + wide.size());
    for (int32_t left = reader.below(4); left > 0; --left) {
        const auto field = static_cast<size_t>(reader.below(fields));
        if (field < narrow.size()) {
            *narrow[field] = static_cast<int32_t>(reader.any());
        } else {
            *wide[field - narrow.size()] = reader.any();
        }
    }
}

int64_t count_blocks(int64_t elements, int32_t block) {
    return elements < 1 || block < 1 ? 0 : (elements - 1) / block + 1;
}

// NULL where the library refuses, or where a valid pattern would need more entries than are made here.
PatternHandle read_pattern(Reader &reader, bsparse_pattern_desc &desc) {
    const int32_t block_rows = 1 + reader.below(6), block_cols = 1 + reader.below(9);
    const int32_t row_blocks = 1 + reader.below(6), col_blocks = 1 + reader.below(6);
    std::vector<int32_t> offsets{0}, columns;
    for (int32_t row = 0; row < row_blocks; ++row) {
        const auto stored = reader.take<uint8_t>(); // a bit for each block
        for (int32_t col = 0; col < col_blocks; ++col) {
            if (stored >> col & 1) {
                columns.push_back(col);
            }
        }
        offsets.push_back(static_cast<int32_t>(columns.size()));
    }
    desc.struct_size = sizeof(desc);
    desc.format = BSPARSE_BSR;
    desc.block_rows = block_rows;
    desc.block_cols = block_cols;
    desc.rows = row_blocks * block_rows - reader.below(block_rows);
    desc.cols = col_blocks * block_cols - reader.below(block_cols);
    desc.blocks = static_cast<int64_t>(columns.size());

    std::vector<int32_t *> narrow{&desc.format, &desc.block_rows, &desc.block_cols, &desc.reserved};
    for (std::vector<int32_t> *list : {&offsets, &columns}) {
        for (int32_t &entry : *list) {
            narrow.push_back(&entry);
        }
    }
    spoil(reader, narrow, {&desc.rows, &desc.cols, &desc.blocks});

    // As many entries as the description promises: the library may read them all.
    const int64_t rows = count_blocks(desc.rows, desc.block_rows), cols = count_blocks(desc.cols, desc.block_cols);
    const bool too_long = (rows >= kMostEntries && rows <= kRefused) || (cols > kMostColumns && cols <= kRefused);
    offsets.resize(static_cast<size_t>(std::min(rows, kMostEntries) + 1), offsets.back());
    if (too_long || (desc.blocks > kMostEntries && offsets.back() == desc.blocks)) {
        return nullptr;
    }
    columns.resize(static_cast<size_t>(std::clamp<int64_t>(desc.blocks, 0, kMostEntries)));
    desc.row_offsets = offsets.data();
    desc.col_indices = columns.data();
    bsparse_pattern *pattern = nullptr;
    const bsparse_status status = bsparse_pattern_create(&pattern, &desc);
    CHECK((status == BSPARSE_OK) == (pattern != nullptr) && status != BSPARSE_INTERNAL);
    return PatternHandle(pattern);
}

bsparse_plan_desc read_plan(Reader &reader) {
    constexpr bsparse_dtype kDtypes[] = {BSPARSE_F32, BSPARSE_F16, BSPARSE_BF16, BSPARSE_F64};
    bsparse_plan_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.op = 1 + reader.below(3);
    desc.dtype = kDtypes[reader.below(4)];
    desc.out_dtype = reader.below(2) != 0 ? BSPARSE_F32 : 0;
    desc.a_order = reader.below(3);
    desc.b_order = reader.below(3);
    desc.d_order = reader.below(3);
    desc.epilogue = desc.op == BSPARSE_SDDMM ? 0 : reader.below(5);
    desc.flags = reader.below(8);
    spoil(reader,
          {&desc.op, &desc.dtype, &desc.out_dtype, &desc.c_dtype, &desc.bias_dtype, &desc.a_order, &desc.b_order,
           &desc.d_order, &desc.epilogue, &desc.flags},
          {});
    return desc;
}

int64_t bytes_of(bsparse_dtype dtype) { return dtype == BSPARSE_F64 ? 8 : dtype == BSPARSE_F32 ? 4 : 2; }

// An operand [rows, cols] in just as much memory as it may touch; ld is now and then too small.
class Operand {
public:
    Operand(Reader &reader, int64_t rows, int64_t cols, bool row_major, bsparse_dtype dtype) {
        const int64_t line = row_major ? cols : rows, lines = row_major ? rows : cols;
        ld_ = line + std::max(-1, reader.below(8) - 1);
        bytes_.resize(
            static_cast<size_t>(lines == 0 ? 0 : ((lines - 1) * std::max(ld_, line) + line) * bytes_of(dtype)));
    }
    int64_t ld() const { return ld_; }
    void *data() { return bytes_.data(); }

private:
    int64_t ld_;
    std::vector<unsigned char> bytes_;
};

void run(Reader &reader, const bsparse_pattern_desc &pattern, const bsparse_plan_desc &desc, const bsparse_plan *plan) {
    const int64_t tokens = reader.below(40);
    const int64_t values = pattern.blocks * pattern.block_rows * pattern.block_cols;
    if (std::max(pattern.rows, pattern.cols) * std::max<int64_t>(tokens, 1) > kMostElements || values > kMostElements) {
        return;
    }
    const bool sddmm = desc.op == BSPARSE_SDDMM, spmm = desc.op == BSPARSE_SPMM;
    const int64_t outer = spmm ? pattern.rows : pattern.cols, inner = spmm ? pattern.cols : pattern.rows;
    const bsparse_dtype out = desc.out_dtype != 0 ? desc.out_dtype : desc.dtype;
    const bsparse_dtype c_dtype = desc.c_dtype != 0 ? desc.c_dtype : out;
    const bool d_rows = desc.d_order == BSPARSE_ROW_MAJOR;
    const bool b_rows = desc.b_order == BSPARSE_ROW_MAJOR || (sddmm && desc.b_order == 0);
    Operand s(reader, 1, values, true, sddmm ? out : desc.dtype);
    Operand a(reader, pattern.rows, tokens, desc.a_order == BSPARSE_ROW_MAJOR, desc.dtype);
    Operand b(reader, sddmm ? tokens : inner, sddmm ? pattern.cols : tokens, b_rows, desc.dtype);
    Operand c(reader, outer, tokens, d_rows, c_dtype), d(reader, outer, tokens, d_rows, out);
    Operand aux(reader, outer, tokens, d_rows, out);
    Operand bias(reader, 1, outer, true, desc.bias_dtype != 0 ? desc.bias_dtype : out);

    bsparse_args args{};
    args.struct_size = sizeof(args);
    args.tokens = tokens;
    args.alpha = reader.take<int8_t>();
    args.beta = reader.below(3);
    args.s_values = s.data();
    args.a = sddmm ? a.data() : nullptr;
    args.lda = a.ld();
    args.b = b.data();
    args.ldb = b.ld();
    if (!sddmm) {
        args.c = reader.below(8) != 0 ? c.data() : nullptr;
        args.ldc = c.ld();
        args.d = d.data();
        args.ldd = d.ld();
        args.aux = reader.below(2) != 0 ? aux.data() : nullptr;
        args.ldaux = aux.ld();
        args.bias = reader.below(2) != 0 ? bias.data() : nullptr;
    }
    std::vector<unsigned char> memory(bsparse_plan_workspace_bytes(plan, tokens) + 64);
    void *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    const bsparse_status status = bsparse_plan_run(plan, &args, nullptr, workspace, nullptr);
    CHECK(status == BSPARSE_OK || status == BSPARSE_INVALID_ARGUMENT || status == BSPARSE_UNSUPPORTED);
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Reader reader(data, size);
    bsparse_pattern_desc pattern_desc{};
    const PatternHandle pattern = read_pattern(reader, pattern_desc);
    if (pattern == nullptr) {
        return 0;
    }
    const ContextHandle context = make_context(cpu_desc(1 + reader.below(2), BSPARSE_CPU_BEST));
    const bsparse_plan_desc plan_desc = read_plan(reader);
    bsparse_plan *plan = nullptr;
    const bsparse_status status = bsparse_plan_create(&plan, context.get(), pattern.get(), &plan_desc);
    CHECK((status == BSPARSE_OK) == (plan != nullptr) && status != BSPARSE_INTERNAL);
    const PlanHandle handle(plan);
    if (plan != nullptr) {
        run(reader, pattern_desc, plan_desc, plan);
    }
    return 0;
}
