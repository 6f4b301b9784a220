// Every product, dtype, order, epilogue and instruction set on every named case, against plain loops.
// With the number of an instruction set (bsparse_cpu_isa) as argument: that one alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "cases.h"

namespace {

constexpr bsparse_dtype kDtypes[] = {BSPARSE_F32, BSPARSE_F16, BSPARSE_BF16, BSPARSE_F64};
constexpr bsparse_order kOrders[] = {BSPARSE_ROW_MAJOR, BSPARSE_COL_MAJOR};
constexpr bsparse_epilogue kEpilogues[] = {BSPARSE_EPILOGUE_NONE, BSPARSE_EPILOGUE_RELU, BSPARSE_EPILOGUE_GELU,
                                           BSPARSE_EPILOGUE_GELU_TANH, BSPARSE_EPILOGUE_SILU};

// Calls visit with the dtypes of the operands and of the result.
template <class Visit> void for_each_dtype(Visit visit) {
    for (const bsparse_dtype dtype : kDtypes) {
        visit(dtype, dtype);
        if (dtype != BSPARSE_F32) {
            visit(dtype, bsparse_dtype{BSPARSE_F32});
        }
    }
}

void check_spmm_variants(const ContextHandle &context, const Case &c, Options o) {
    check_product(context, c, o);
    o.bias = true;
    o.beta = 2;
    o.other_dtype = BSPARSE_F32;
    check_product(context, c, o);
    o.other_dtype = 0;
    o.beta = -1;
    o.in_place = true;
    o.aux = true;
    o.epilogue = BSPARSE_EPILOGUE_RELU;
    check_product(context, c, o);
}

void check_case(const ContextHandle &context, const Case &c) {
    for_each_dtype([&](bsparse_dtype dtype, bsparse_dtype out_dtype) {
        for (const bsparse_order first : kOrders) {
            for (const bsparse_order second : kOrders) {
                for (const bsparse_op op : {BSPARSE_SPMM, BSPARSE_SPMM_T}) {
                    check_spmm_variants(context, c, {op, dtype, out_dtype, BSPARSE_COL_MAJOR, first, second});
                }
                for (const double beta : {0.0, 2.0}) {
                    Options o{BSPARSE_SDDMM, dtype, out_dtype, first, second};
                    o.beta = beta;
                    check_product(context, c, o);
                }
            }
        }
    });
}

void check_epilogues(const ContextHandle &context, const Case &c) {
    for_each_dtype([&](bsparse_dtype dtype, bsparse_dtype out_dtype) {
        for (const bsparse_epilogue epilogue : kEpilogues) {
            for (const bsparse_op op : {BSPARSE_SPMM, BSPARSE_SPMM_T}) {
                for (const bool extras : {false, true}) {
                    Options o{op, dtype, out_dtype};
                    o.epilogue = epilogue;
                    o.bias = o.aux = extras;
                    o.beta = extras ? 1 : 0;
                    check_product(context, c, o);
                }
            }
        }
    });
}

bool is_one_of(const Case &c, std::initializer_list<const char *> names) {
    return std::find(names.begin(), names.end(), c.name) != names.end();
}

// False where this processor does not run the instruction set.
bool check_isa(bsparse_cpu_isa isa) {
    const bsparse_context_desc desc = cpu_desc(1, isa);
    bsparse_context *context = nullptr;
    const bsparse_status status = bsparse_context_create(&context, &desc);
    if (status == BSPARSE_UNSUPPORTED) {
        return false;
    }
    CHECK(status == BSPARSE_OK);
    const ContextHandle alone(context);
    const ContextHandle threaded = make_context(cpu_desc(3, isa));
    for (const Case &c : named_cases()) {
        check_case(alone, c);
        if (is_one_of(c, {"empty", "dense row", "zero tokens", "ragged", "rounds of tokens", "work for threads"})) {
            check_case(threaded, c);
        }
        if (is_one_of(c, {"one token", "ragged", "misaligned ragged"})) {
            check_epilogues(alone, c);
        }
    }
    return true;
}

} // namespace

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const bsparse_cpu_isa isa = std::atoi(argv[1]);
    if (!check_isa(isa)) {
        std::printf("instruction set %d does not run here\n", isa);
        return 77; // what ctest shows as skipped
    }
    return 0;
}
