// Every bad argument of a run, and the sentence it gets.
#include <limits>

#include "bad_input.h"

namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

const BadInput kRuns[] = {
    {[](Inputs &i) { i.args.struct_size = 191; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.struct_size is 191", "192", "sizeof(bsparse_args)"}},
    {[](Inputs &i) { i.args.tokens = -1; }, BSPARSE_INVALID_ARGUMENT, {"args.tokens is -1", "at least 0"}},
    {[](Inputs &i) { i.args.tokens = kHuge; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.tokens is 9223372036854775807", "split the run"}},
    {[](Inputs &i) { i.args.b = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.b is NULL", "[12, 5] of f32", "pass its address"}},
    {[](Inputs &i) { i.args.ldb = 11; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.ldb is 11", "[12, 5] column-major", "at least 12"}},
    {[](Inputs &i) {
         i.plan.b_order = BSPARSE_ROW_MAJOR;
         i.args.ldb = 4;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"args.ldb is 4", "[12, 5] row-major", "at least 5"}},
    {[](Inputs &i) { i.args.ldb = kHuge / 2; }, BSPARSE_INVALID_ARGUMENT, {"args.ldb is", "address space"}},
    {[](Inputs &i) { i.args.ldb = kHuge / 16; }, BSPARSE_INVALID_ARGUMENT, {"args.ldb is", "5 lines", "address space"}},
    {[](Inputs &i) { i.args.b = reinterpret_cast<const char *>(i.tall.data()) + 1; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.b is 0x", "multiple of 4", "start of an element"}},
    {[](Inputs &i) { i.args.s_values = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.s_values is NULL", "32 elements of f32", "pass their address"}},
    {[](Inputs &i) { i.args.d = nullptr; }, BSPARSE_INVALID_ARGUMENT, {"args.d is NULL", "[6, 5] of f32"}},
    {[](Inputs &i) { i.args.ldd = 0; }, BSPARSE_INVALID_ARGUMENT, {"args.ldd is 0", "at least 6"}},
    {[](Inputs &i) { i.args.d = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.d is NULL", "[12, 5] of f32"},
     BSPARSE_SPMM_T},
    {[](Inputs &i) { i.args.beta = 1.0; }, BSPARSE_INVALID_ARGUMENT, {"args.c (beta is not 0) is NULL", "[6, 5]"}},
    {[](Inputs &i) {
         i.args.beta = 1.0;
         i.args.c = i.flat.data();
         i.args.ldc = 5;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"args.ldc is 5", "at least 6"}},
    {[](Inputs &i) {
         i.args.aux = i.tall.data();
         i.args.ldaux = 3;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"args.ldaux is 3", "at least 6"}},
    {[](Inputs &i) { i.args.bias = reinterpret_cast<const char *>(i.bias.data()) + 2; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.bias is 0x", "multiple of 4"}},
    {[](Inputs &i) { i.args.a = i.tall.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.a is set", "only sddmm", "pass NULL"}},
    {[](Inputs &i) { i.args.s_metadata = i.tall.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.s_metadata is set", "2:4", "pass NULL"}},
    {[](Inputs &i) { i.args.row_scales = i.bias.data(); },
     BSPARSE_UNSUPPORTED,
     {"args.row_scales is set", "later version", "leave it zero"}},
    {[](Inputs &i) { i.args.token_scales = i.bias.data(); },
     BSPARSE_UNSUPPORTED,
     {"args.token_scales is set", "leave it zero"}},
    {[](Inputs &i) { i.args.batch = 2; }, BSPARSE_UNSUPPORTED, {"args.batch is set", "leave it zero"}},
    {[](Inputs &i) { i.args.b_stride = 1; }, BSPARSE_UNSUPPORTED, {"args.b_stride is set", "leave it zero"}},
    {[](Inputs &i) { i.args.c_stride = 1; }, BSPARSE_UNSUPPORTED, {"args.c_stride is set", "leave it zero"}},
    {[](Inputs &i) { i.args.d_stride = 1; }, BSPARSE_UNSUPPORTED, {"args.d_stride is set", "leave it zero"}},
    {[](Inputs &i) { i.args.d = i.tall.data() + 20; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.b overlaps args.d", "separate memory"}},
    {[](Inputs &i) { i.args.d = i.values.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.s_values overlaps args.d", "separate memory"}},
    {[](Inputs &i) { i.args.bias = i.flat.data() + 1; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.bias overlaps args.d", "separate memory"}},
    {[](Inputs &i) {
         i.args.aux = i.flat.data();
         i.args.ldaux = 6;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"args.aux overlaps args.d", "separate memory"}},
    {[](Inputs &i) {
         i.args.beta = 1.0;
         i.args.c = i.flat.data() + 1;
         i.args.ldc = 6;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"args.c overlaps args.d", "memory of its own"}},
    {[](Inputs &i) {
         i.args.beta = 1.0;
         i.args.c = i.flat.data();
         i.args.ldc = 7;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"args.c overlaps args.d", "memory of its own"}},
    {[](Inputs &i) { i.args.a = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.a is NULL", "[6, 5] of f32"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.lda = 5; }, BSPARSE_INVALID_ARGUMENT, {"args.lda is 5", "at least 6"}, BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.b = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.b is NULL", "[5, 12] of f32"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.ldb = 11; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.ldb is 11", "[5, 12] row-major", "at least 12"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.s_values = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"args.s_values is NULL", "32 elements"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.s_values = i.tall.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.b overlaps args.s_values", "separate memory"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.c = i.flat.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.c is set", "beta * s_values", "pass NULL"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.d = i.flat.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.d is set", "sddmm writes s_values", "pass NULL"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.aux = i.flat.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.aux is set", "pass NULL"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.args.bias = i.flat.data(); },
     BSPARSE_INVALID_ARGUMENT,
     {"args.bias is set", "pass NULL"},
     BSPARSE_SDDMM},
};

// The inputs that all tables spoil are good.
void test_good_inputs() {
    for (const bsparse_op op : {BSPARSE_SPMM, BSPARSE_SPMM_T, BSPARSE_SDDMM}) {
        CHECK(Inputs(op).run().status == BSPARSE_OK);
    }
}

// What a run does not read may be missing.
void test_zero_tokens_need_no_operands() {
    Inputs spmm;
    spmm.args.tokens = 0;
    spmm.args.b = spmm.args.d = nullptr;
    CHECK(spmm.run().status == BSPARSE_OK);
    Inputs sddmm(BSPARSE_SDDMM);
    sddmm.args.tokens = 0;
    sddmm.args.a = sddmm.args.b = nullptr;
    CHECK(sddmm.run().status == BSPARSE_OK);
}

// [d | b] side by side in rows of 18 floats: the memory interleaves, and nothing is shared.
void test_slices_of_one_buffer_are_apart() {
    Inputs inputs;
    std::vector<float> both(18 * 5, 1.0f);
    inputs.args.d = both.data();
    inputs.args.b = both.data() + 6;
    inputs.args.ldd = inputs.args.ldb = 18;
    CHECK(inputs.run().status == BSPARSE_OK);
    inputs.args.b = both.data() + 5;
    CHECK(inputs.run().status == BSPARSE_INVALID_ARGUMENT);
}

void test_c_may_be_d() {
    Inputs inputs;
    inputs.args.beta = 1.0;
    inputs.args.c = inputs.args.d;
    inputs.args.ldc = inputs.args.ldd;
    CHECK(inputs.run().status == BSPARSE_OK);
    inputs.args.tokens = 1; // one line: its leading dimensions do not matter
    inputs.args.ldc = inputs.args.ldd + 1;
    CHECK(inputs.run().status == BSPARSE_OK);
}

} // namespace

int main() {
    check_table(kRuns, "runs");
    test_good_inputs();
    test_zero_tokens_need_no_operands();
    test_slices_of_one_buffer_are_apart();
    test_c_may_be_d();
    return 0;
}
