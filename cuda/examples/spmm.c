/* A sparse matrix times a dense one: describe the pattern, plan the product, run it, compare with a plain loop.
 *
 *     cmake -S cuda -B build && cmake --build build && build/spmm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bsparse/bsparse.h"

enum { BLOCK = 16, ROWS = 64, COLS = 48, TOKENS = 20, BLOCKS = 5 };

/* One entry for each block row, and one for the end; one entry for each block. Block row 2 is empty. */
static const int32_t row_offsets[ROWS / BLOCK + 1] = {0, 2, 3, 3, 5};
static const int32_t col_indices[BLOCKS] = {0, 2, 1, 0, 1};

static void check(bsparse_status status) {
    if (status != BSPARSE_OK) {
        fprintf(stderr, "%s: %s\n", bsparse_status_name(status), bsparse_last_error());
        exit(1);
    }
}

static void fill(float *numbers, size_t count) {
    size_t i;
    for (i = 0; i < count; ++i) {
        numbers[i] = (float)((i * 37 + 11) % 101) / 50.0f - 1.0f;
    }
}

/* The largest difference between y and relu(S x + bias), computed element by element. */
static double largest_error(const float *values, const float *x, const float *bias, const float *y) {
    double largest = 0.0;
    int token, row, i, col;
    for (token = 0; token < TOKENS; ++token) {
        for (row = 0; row < ROWS; ++row) {
            double sum = bias[row];
            for (i = row_offsets[row / BLOCK]; i < row_offsets[row / BLOCK + 1]; ++i) {
                for (col = 0; col < BLOCK; ++col) {
                    sum += (double)values[(i * BLOCK + row % BLOCK) * BLOCK + col] *
                           x[token * COLS + col_indices[i] * BLOCK + col];
                }
            }
            largest = fmax(largest, fabs(fmax(sum, 0.0) - y[token * ROWS + row]));
        }
    }
    return largest;
}

int main(void) {
    static float values[BLOCKS * BLOCK * BLOCK]; /* [blocks, block_rows, block_cols] */
    static float x[TOKENS * COLS];               /* [tokens, cols], row-major */
    static float y[TOKENS * ROWS];               /* [tokens, rows], row-major */
    static float bias[ROWS];
    bsparse_context_desc context_desc = {sizeof(context_desc), BSPARSE_BACKEND_CPU, 0, 0, 0};
    bsparse_pattern_desc pattern_desc = {0};
    bsparse_plan_desc plan_desc = {0};
    bsparse_args args = {0};
    bsparse_context *context;
    bsparse_pattern *pattern;
    bsparse_plan *plan;
    size_t workspace_bytes;
    char *memory;    /* of the workspace, and a few bytes more to align it in */
    char *workspace;
    double error;

    fill(values, sizeof(values) / sizeof(values[0]));
    fill(x, sizeof(x) / sizeof(x[0]));
    fill(bias, ROWS);

    /* Describe. */
    check(bsparse_context_create(&context, &context_desc));
    pattern_desc.struct_size = sizeof(pattern_desc);
    pattern_desc.format = BSPARSE_BSR;
    pattern_desc.block_rows = pattern_desc.block_cols = BLOCK;
    pattern_desc.rows = ROWS;
    pattern_desc.cols = COLS;
    pattern_desc.blocks = BLOCKS;
    pattern_desc.row_offsets = row_offsets;
    pattern_desc.col_indices = col_indices;
    check(bsparse_pattern_create(&pattern, &pattern_desc));

    /* Plan: y = relu(x S^T + bias), the forward pass of a linear layer. */
    plan_desc.struct_size = sizeof(plan_desc);
    plan_desc.op = BSPARSE_SPMM;
    plan_desc.dtype = BSPARSE_F32;
    plan_desc.epilogue = BSPARSE_EPILOGUE_RELU;
    check(bsparse_plan_create(&plan, context, pattern, &plan_desc));
    workspace_bytes = bsparse_plan_workspace_bytes(plan, TOKENS);
    memory = malloc(workspace_bytes + 64);
    if (memory == NULL) {
        return 1;
    }
    workspace = memory + (64 - (uintptr_t)memory % 64);

    /* Run. */
    args.struct_size = sizeof(args);
    args.tokens = TOKENS;
    args.s_values = values;
    args.b = x;
    args.ldb = COLS;
    args.d = y;
    args.ldd = ROWS;
    args.bias = bias;
    args.alpha = 1.0;
    check(bsparse_plan_run(plan, &args, NULL, workspace, NULL));

    error = largest_error(values, x, bias, y);
    printf("%s on %s: largest error %.1e\n", bsparse_plan_kernel(plan, TOKENS), bsparse_context_name(context), error);
    free(memory);
    bsparse_plan_destroy(plan);
    bsparse_pattern_destroy(pattern);
    bsparse_context_destroy(context);
    return error < 1e-5 ? 0 : 1; /* 32 products of numbers up to 1 each, summed in f32 */
}
