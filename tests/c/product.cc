#include "product.h"

#include <cstdio>
#include <cstdlib>

namespace {

constexpr double kAlpha = 0.5;

// Multiples of 1/8 in [-1, 1], always the same.
class Numbers {
public:
    double next() {
        state_ = state_ * 1664525u + 1013904223u;
        return static_cast<double>(static_cast<int>(state_ >> 16) % 17 - 8) / 8;
    }
    void fill(Matrix &matrix) {
        for (int64_t row = 0; row < matrix.rows(); ++row) {
            for (int64_t col = 0; col < matrix.cols(); ++col) {
                matrix.set(row, col, next());
            }
        }
    }

private:
    uint32_t state_ = 1;
};

void fail(const bsparse_context *context, const Case &c, const Options &o, const char *what, double got, double want) {
    std::fprintf(stderr,
                 "%s: case %s, op %d, %s to %s, orders %d %d %d, epilogue %d, beta %g, in place %d, bias %d, aux %d: "
                 "%s is %.9g instead of %.9g; last error: %s\n",
                 bsparse_context_name(context), c.name.c_str(), o.op, name_of(o.dtype), name_of(o.out_dtype), o.a_order,
                 o.b_order, o.d_order, o.epilogue, o.beta, o.in_place, o.bias, o.aux, what, got, want,
                 bsparse_last_error());
    std::exit(1);
}

// x [rows, inner] times y [inner, cols].
std::vector<double> multiply(const std::vector<double> &x, const std::vector<double> &y, int64_t rows, int64_t inner,
                             int64_t cols) {
    std::vector<double> product(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t k = 0; k < inner; ++k) {
            for (int64_t col = 0; col < cols; ++col) {
                product[static_cast<size_t>(row * cols + col)] +=
                    x[static_cast<size_t>(row * inner + k)] * y[static_cast<size_t>(k * cols + col)];
            }
        }
    }
    return product;
}

double activate(bsparse_epilogue epilogue, double x) {
    switch (epilogue) {
    case BSPARSE_EPILOGUE_RELU:
        return x > 0 ? x : 0;
    case BSPARSE_EPILOGUE_GELU: // x * Phi(x)
        return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case BSPARSE_EPILOGUE_GELU_TANH: // Hendrycks and Gimpel, arXiv 1606.08415
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case BSPARSE_EPILOGUE_SILU:
        return x / (1 + std::exp(-x));
    default:
        return x;
    }
}

// Whether got is x after the activation: rounded once where nothing else rounds, else within a few ulp of the working
// precision relative to x, and half an ulp of the stored dtype.
bool matches(const Options &o, double got, double x) {
    const double exact = activate(o.epilogue, x);
    if (o.epilogue == BSPARSE_EPILOGUE_NONE || o.epilogue == BSPARSE_EPILOGUE_RELU) {
        return got == round_to(exact, o.out_dtype);
    }
    const double work = std::ldexp(16, o.dtype == BSPARSE_F64 ? -53 : -24);
    const double unit = std::ldexp(1, o.out_dtype == BSPARSE_F64   ? -53
                                      : o.out_dtype == BSPARSE_F32 ? -24
                                      : o.out_dtype == BSPARSE_F16 ? -11
                                                                   : -8);
    const double smallest = o.out_dtype == BSPARSE_F16 ? std::ldexp(1, -25) : 0; // half a subnormal step
    return std::fabs(got - exact) <= work * std::fabs(x) + unit * std::fabs(exact) + smallest;
}

bsparse_plan_desc plan_desc(const Options &o) {
    bsparse_plan_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.op = o.op;
    desc.dtype = o.dtype;
    desc.out_dtype = o.out_dtype;
    desc.c_dtype = desc.bias_dtype = o.other_dtype;
    desc.a_order = o.a_order;
    desc.b_order = o.b_order;
    desc.d_order = o.d_order;
    desc.epilogue = o.epilogue;
    return desc;
}

void run(const PlanHandle &plan, const bsparse_args &args) {
    const size_t bytes = bsparse_plan_workspace_bytes(plan.get(), args.tokens);
    std::vector<char> memory(bytes + 64);
    char *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    CHECK(bsparse_plan_run(plan.get(), &args, nullptr, workspace, nullptr) == BSPARSE_OK);
}

bsparse_args make_args(const Case &c, const Options &o, Matrix &b, Matrix &values) {
    bsparse_args args{};
    args.struct_size = sizeof(args);
    args.tokens = c.tokens;
    args.alpha = kAlpha;
    args.beta = o.beta;
    args.b = b.data();
    args.ldb = b.ld();
    args.s_values = values.data();
    return args;
}

void check_spmm(const ContextHandle &context, const Case &c, const Options &o) {
    const CasePattern pattern(c);
    const PlanHandle plan = make_plan(context, pattern.handle, plan_desc(o));
    const bool transposed = o.op == BSPARSE_SPMM_T;
    const int64_t inner = transposed ? c.rows : c.cols;
    const int64_t outer = transposed ? c.cols : c.rows;
    const bsparse_dtype other = o.other_dtype != 0 ? o.other_dtype : o.out_dtype;

    Numbers numbers;
    Matrix values(o.dtype, BSPARSE_ROW_MAJOR, 1, pattern.values(c), 0, c.offset);
    std::vector<double> s(static_cast<size_t>(outer * inner));  // [outer, inner]
    pattern.for_each_value(c, [&](int64_t row, int64_t col, int64_t position, bool inside) {
        const double x = inside ? numbers.next() : 0;
        values.set(0, position, x);
        if (inside) {
            s[static_cast<size_t>(transposed ? col * inner + row : row * inner + col)] = x;
        }
    });
    Matrix b(o.dtype, o.b_order, inner, c.tokens, c.gap, c.offset);
    Matrix d(o.out_dtype, o.d_order, outer, c.tokens, c.gap, c.offset);
    Matrix separate(other, o.d_order, outer, c.tokens, c.gap + 1, c.offset);
    Matrix aux(o.out_dtype, o.d_order, outer, c.tokens, c.gap + 2, c.offset);
    Matrix bias(other, BSPARSE_ROW_MAJOR, 1, outer, 0, c.offset);
    numbers.fill(b);
    numbers.fill(bias);
    Matrix &addend = o.in_place ? d : separate;
    if (o.beta != 0) {
        numbers.fill(addend); // without beta, C and D stay NaN and must not be read
    }
    const Matrix before = addend;

    bsparse_args args = make_args(c, o, b, values);
    args.d = d.data();
    args.ldd = d.ld();
    args.c = o.beta != 0 ? addend.data() : nullptr;
    args.ldc = addend.ld();
    args.aux = o.aux ? aux.data() : nullptr;
    args.ldaux = aux.ld();
    args.bias = o.bias ? bias.data() : nullptr;
    run(plan, args);

    const std::vector<double> sums = multiply(s, b.elements(), outer, inner, c.tokens);
    for (int64_t row = 0; row < outer; ++row) {
        for (int64_t token = 0; token < c.tokens; ++token) {
            const double sum = sums[static_cast<size_t>(row * c.tokens + token)];
            const double x =
                kAlpha * sum + (o.beta != 0 ? o.beta * before.at(row, token) : 0) + (o.bias ? bias.at(0, row) : 0);
            if (!matches(o, d.at(row, token), x)) {
                fail(context.get(), c, o, "an element of D", d.at(row, token), activate(o.epilogue, x));
            }
            if (o.aux && aux.at(row, token) != round_to(x, o.out_dtype)) {
                fail(context.get(), c, o, "an element of aux", aux.at(row, token), x);
            }
        }
    }
    CHECK(d.gaps_are_untouched() && aux.gaps_are_untouched());
}

void check_sddmm(const ContextHandle &context, const Case &c, const Options &o) {
    const CasePattern pattern(c);
    const PlanHandle plan = make_plan(context, pattern.handle, plan_desc(o));
    Numbers numbers;
    Matrix a(o.dtype, o.a_order, c.rows, c.tokens, c.gap, c.offset);
    Matrix b(o.dtype, o.b_order, c.tokens, c.cols, c.gap, c.offset);
    Matrix values(o.out_dtype, BSPARSE_ROW_MAJOR, 1, pattern.values(c), 0, c.offset);
    numbers.fill(a);
    numbers.fill(b);
    if (o.beta != 0) {
        pattern.for_each_value(c, [&](int64_t, int64_t, int64_t position, bool inside) {
            values.set(0, position, inside ? numbers.next() : 0);
        });
    }
    const Matrix before = values;

    bsparse_args args = make_args(c, o, b, values);
    args.a = a.data();
    args.lda = a.ld();
    run(plan, args);

    const std::vector<double> sums = multiply(a.elements(), b.elements(), c.rows, c.tokens, c.cols);
    pattern.for_each_value(c, [&](int64_t row, int64_t col, int64_t position, bool inside) {
        const double sum = inside ? sums[static_cast<size_t>(row * c.cols + col)] : 0; // padding stays zero
        const double exact = kAlpha * sum + (o.beta != 0 ? o.beta * before.at(0, position) : 0);
        if (values.at(0, position) != round_to(exact, o.out_dtype)) {
            fail(context.get(), c, o, "a value", values.at(0, position), exact);
        }
    });
    CHECK(values.gaps_are_untouched());
}

} // namespace

CasePattern::CasePattern(const Case &c) {
    int32_t column = 0;
    for (const char letter : c.mask + "/") {
        if (letter == '/') {
            offsets.push_back(static_cast<int32_t>(columns.size()));
            column = 0;
            continue;
        }
        if (letter == 'x') {
            columns.push_back(column);
        }
        ++column;
    }
    bsparse_pattern_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.format = BSPARSE_BSR;
    desc.block_rows = c.block_rows;
    desc.block_cols = c.block_cols;
    desc.rows = c.rows;
    desc.cols = c.cols;
    desc.blocks = static_cast<int64_t>(columns.size());
    desc.row_offsets = offsets.data();
    desc.col_indices = columns.data();
    CHECK(static_cast<int64_t>(offsets.size()) - 1 == (c.rows - 1) / c.block_rows + 1);
    handle = make_pattern(desc);
}

void check_product(const ContextHandle &context, const Case &c, const Options &o) {
    o.op == BSPARSE_SDDMM ? check_sddmm(context, c, o) : check_spmm(context, c, o);
}
