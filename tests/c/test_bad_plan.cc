// Every bad plan description, and the sentence it gets.
#include "bad_input.h"

namespace {

const BadInput kPlans[] = {
    {[](Inputs &i) { i.plan.struct_size = 8; },
     BSPARSE_INVALID_ARGUMENT,
     {"plan_desc.struct_size is 8", "sizeof(bsparse_plan_desc)"}},
    {[](Inputs &i) { i.plan.op = 0; }, BSPARSE_INVALID_ARGUMENT, {"plan_desc.op is 0", "BSPARSE_SPMM"}},
    {[](Inputs &i) { i.plan.op = 4; }, BSPARSE_INVALID_ARGUMENT, {"plan_desc.op is 4", "BSPARSE_SDDMM"}},
    {[](Inputs &i) { i.plan.dtype = 0; }, BSPARSE_INVALID_ARGUMENT, {"plan_desc.dtype is 0", "BSPARSE_F32"}},
    {[](Inputs &i) { i.plan.dtype = BSPARSE_F8E4M3; },
     BSPARSE_UNSUPPORTED,
     {"plan_desc.dtype is 4 (f8e4m3)", "later version", "use f32"}},
    {[](Inputs &i) { i.plan.dtype = BSPARSE_I8; },
     BSPARSE_UNSUPPORTED,
     {"plan_desc.dtype is 5 (i8)", "later version", "use f32"}},
    {[](Inputs &i) { i.plan.out_dtype = 42; }, BSPARSE_INVALID_ARGUMENT, {"plan_desc.out_dtype is 42", "no dtype"}},
    {[](Inputs &i) { i.plan.out_dtype = BSPARSE_BF16; },
     BSPARSE_UNSUPPORTED,
     {"plan_desc.out_dtype is 3 (bf16)", "with dtype = f32 it must be f32: leave it 0"}},
    {[](Inputs &i) {
         i.plan.dtype = BSPARSE_BF16;
         i.plan.out_dtype = BSPARSE_F16;
     },
     BSPARSE_UNSUPPORTED,
     {"plan_desc.out_dtype is 2 (f16)", "bf16 or f32", "leave it 0"}},
    {[](Inputs &i) { i.plan.c_dtype = BSPARSE_F16; },
     BSPARSE_UNSUPPORTED,
     {"plan_desc.c_dtype is 2 (f16)", "out_dtype = f32"}},
    {[](Inputs &i) { i.plan.bias_dtype = BSPARSE_F64; },
     BSPARSE_UNSUPPORTED,
     {"plan_desc.bias_dtype is 6 (f64)", "out_dtype = f32"}},
    {[](Inputs &i) { i.plan.a_order = 3; }, BSPARSE_INVALID_ARGUMENT, {"plan_desc.a_order is 3", "BSPARSE_ROW_MAJOR"}},
    {[](Inputs &i) { i.plan.b_order = -1; },
     BSPARSE_INVALID_ARGUMENT,
     {"plan_desc.b_order is -1", "BSPARSE_COL_MAJOR"}},
    {[](Inputs &i) { i.plan.d_order = 9; }, BSPARSE_INVALID_ARGUMENT, {"plan_desc.d_order is 9", "0 for the default"}},
    {[](Inputs &i) { i.plan.epilogue = 5; }, BSPARSE_INVALID_ARGUMENT, {"plan_desc.epilogue is 5", "4 (silu)"}},
    {[](Inputs &i) { i.plan.epilogue = BSPARSE_EPILOGUE_RELU; },
     BSPARSE_INVALID_ARGUMENT,
     {"plan_desc.epilogue is 1 in sddmm", "BSPARSE_EPILOGUE_NONE"},
     BSPARSE_SDDMM},
    {[](Inputs &i) { i.plan.flags = 9; },
     BSPARSE_INVALID_ARGUMENT,
     {"plan_desc.flags is 0x9", "0x8 is unknown", "pass 0"}},
};

} // namespace

int main() {
    check_table(kPlans, "plans");
    return 0;
}
