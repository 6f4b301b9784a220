/* What a program compiled against ABI 1 relies on: sizes, offsets, numbers and names. */
#include <stddef.h>
#include <string.h>

#include "check.h"

static void test_versions(void) {
    CHECK(bsparse_version() == BSPARSE_VERSION);
    CHECK(bsparse_abi() == BSPARSE_ABI);
}

static void test_status_names(void) {
    CHECK(strcmp(bsparse_status_name(BSPARSE_OK), "BSPARSE_OK") == 0);
    CHECK(strcmp(bsparse_status_name(BSPARSE_INVALID_ARGUMENT), "BSPARSE_INVALID_ARGUMENT") == 0);
    CHECK(strcmp(bsparse_status_name(BSPARSE_UNSUPPORTED), "BSPARSE_UNSUPPORTED") == 0);
    CHECK(strcmp(bsparse_status_name(BSPARSE_OUT_OF_MEMORY), "BSPARSE_OUT_OF_MEMORY") == 0);
    CHECK(strcmp(bsparse_status_name(BSPARSE_BACKEND_ERROR), "BSPARSE_BACKEND_ERROR") == 0);
    CHECK(strcmp(bsparse_status_name(BSPARSE_INTERNAL), "BSPARSE_INTERNAL") == 0);
    CHECK(strcmp(bsparse_status_name(99), "unknown status") == 0);
}

static void test_pinned_numbers(void) {
    CHECK(BSPARSE_OK == 0 && BSPARSE_INVALID_ARGUMENT == 1 && BSPARSE_UNSUPPORTED == 2);
    CHECK(BSPARSE_OUT_OF_MEMORY == 3 && BSPARSE_BACKEND_ERROR == 4 && BSPARSE_INTERNAL == 5);
    CHECK(BSPARSE_BACKEND_CPU == 1 && BSPARSE_BACKEND_CUDA == 2);
    CHECK(BSPARSE_CPU_BEST == 0 && BSPARSE_CPU_PORTABLE == 1 && BSPARSE_CPU_AVX2 == 2);
    CHECK(BSPARSE_CPU_AVX512 == 3 && BSPARSE_CPU_AVX512_BF16 == 4);
    CHECK(BSPARSE_F32 == 1 && BSPARSE_F16 == 2 && BSPARSE_BF16 == 3);
    CHECK(BSPARSE_F8E4M3 == 4 && BSPARSE_I8 == 5 && BSPARSE_F64 == 6);
    CHECK(BSPARSE_BSR == 1 && BSPARSE_SEMI24 == 2 && BSPARSE_BSR24 == 3);
    CHECK(BSPARSE_SPMM == 1 && BSPARSE_SPMM_T == 2 && BSPARSE_SDDMM == 3);
    CHECK(BSPARSE_ORDER_DEFAULT == 0 && BSPARSE_ROW_MAJOR == 1 && BSPARSE_COL_MAJOR == 2);
    CHECK(BSPARSE_EPILOGUE_NONE == 0 && BSPARSE_EPILOGUE_RELU == 1 && BSPARSE_EPILOGUE_GELU == 2);
    CHECK(BSPARSE_EPILOGUE_GELU_TANH == 3 && BSPARSE_EPILOGUE_SILU == 4);
    CHECK(BSPARSE_ALLOW_ATOMICS == 1 && BSPARSE_ALLOW_TF32 == 2 && BSPARSE_FORCE_SM80 == 4);
}

/* Sizes where pointers have 8 bytes. A later version may only append, so offsets stand for ever. */
static void test_layout(void) {
    if (sizeof(void *) != 8) {
        return;
    }
    CHECK(sizeof(bsparse_context_desc) == 24);
    CHECK(sizeof(bsparse_pattern_desc) == 64);
    CHECK(sizeof(bsparse_plan_desc) == 48);
    CHECK(sizeof(bsparse_args) == 192);
    CHECK(offsetof(bsparse_context_desc, cpu_isa) == 20);
    CHECK(offsetof(bsparse_pattern_desc, rows) == 24 && offsetof(bsparse_pattern_desc, col_indices) == 56);
    CHECK(offsetof(bsparse_plan_desc, a_order) == 28 && offsetof(bsparse_plan_desc, flags) == 44);
    CHECK(offsetof(bsparse_args, alpha) == 128 && offsetof(bsparse_args, d_stride) == 184);
}

static void test_devices(void) {
    CHECK(bsparse_backend_devices(BSPARSE_BACKEND_CPU) == 1);
    CHECK(bsparse_backend_devices(BSPARSE_BACKEND_CUDA) >= 0);
    CHECK(bsparse_backend_devices(7) == 0);
    CHECK(strstr(bsparse_last_error(), "backend is 7") != NULL);
}

static void test_destroy_accepts_null(void) {
    bsparse_context_destroy(NULL);
    bsparse_pattern_destroy(NULL);
    bsparse_plan_destroy(NULL);
}

int main(void) {
    CHECK(strcmp(bsparse_last_error(), "") == 0);
    test_versions();
    test_status_names();
    test_pinned_numbers();
    test_layout();
    test_devices();
    test_destroy_accepts_null();
    return 0;
}
