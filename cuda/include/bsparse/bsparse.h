/* bsparse.h: block-sparse matrix products, one plain C API, on CPUs and NVIDIA GPUs.
 *
 * Three steps: describe a sparsity pattern (host), plan a product on it (host), run it (stream).
 * The library never allocates or frees device memory, and never synchronises a stream.
 * Context, pattern and plan are immutable once created: any thread may use them at once.
 * Every fallible function returns bsparse_status, or else 0 or "" on a bad argument; bsparse_last_error() names field,
 * value, rule and cure.
 *
 * Words: S is the sparse matrix [rows, cols], stored as blocks [block_rows, block_cols]; A, B, C, D are
 * dense. "tokens" is the dense size: columns of B and D in spmm and spmm_t, the inner size in sddmm.
 * A linear layer with weight W = S [out, in], input X [tokens, in] and output Y [tokens, out], all row-major:
 *   forward      SPMM    Y^T  = W   X^T    B = X,  D = Y        (row-major X is column-major X^T: no copy)
 *   grad_input   SPMM_T  dX^T = W^T dY^T   B = dY, D = dX
 *   grad_weight  SDDMM   dW   = dY^T X     A = dY, B = X, result in s_values
 */
#ifndef BSPARSE_BSPARSE_H
#define BSPARSE_BSPARSE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#if defined(BSPARSE_BUILD)
#define BSPARSE_API __declspec(dllexport)
#else
#define BSPARSE_API __declspec(dllimport)
#endif
#else
#define BSPARSE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
#define BSPARSE_ABI 1         /* the SONAME: libbsparse.so.1; only a removal or a changed meaning bumps it */
#define BSPARSE_VERSION 100   /* 10000 * major + 100 * minor + patch */

typedef int32_t bsparse_status; /* values are pinned for ever; new ones are only appended */
enum {
    BSPARSE_OK = 0,
    BSPARSE_INVALID_ARGUMENT = 1, /* the caller's mistake; bsparse_last_error() names the field */
    BSPARSE_UNSUPPORTED = 2,      /* a valid request that no kernel here serves */
    BSPARSE_OUT_OF_MEMORY = 3,    /* host memory only */
    BSPARSE_BACKEND_ERROR = 4,    /* a CUDA or operating system call failed; its text is in last_error */
    BSPARSE_INTERNAL = 5          /* a bug here: please report it */
};

typedef int32_t bsparse_backend;
enum { BSPARSE_BACKEND_CPU = 1, BSPARSE_BACKEND_CUDA = 2 };

typedef int32_t bsparse_cpu_isa; /* instruction sets of the CPU backend */
enum {
    BSPARSE_CPU_BEST = 0, /* the best that this processor runs */
    BSPARSE_CPU_PORTABLE = 1,
    BSPARSE_CPU_AVX2 = 2,
    BSPARSE_CPU_AVX512 = 3,
    BSPARSE_CPU_AVX512_BF16 = 4
};

typedef int32_t bsparse_dtype;
enum {
    BSPARSE_F32 = 1,
    BSPARSE_F16 = 2,
    BSPARSE_BF16 = 3,
    BSPARSE_F8E4M3 = 4, /* reserved */
    BSPARSE_I8 = 5,     /* reserved */
    BSPARSE_F64 = 6     /* CPU only, plain loops: for references and gradient checks */
};

typedef int32_t bsparse_format;
/* 2:4: of every 4 columns of a row two numbers are stored, and their positions; bsparse_pattern_desc says how. SEMI24:
 * in the whole matrix; BSR24: inside the stored blocks. On CPUs so far. */
enum { BSPARSE_BSR = 1, BSPARSE_SEMI24 = 2, BSPARSE_BSR24 = 3 };

typedef int32_t bsparse_op;
enum {
    BSPARSE_SPMM = 1,   /* D = act(alpha * S   @ B + beta * C + bias)  S on the left; D [rows, tokens] */
    BSPARSE_SPMM_T = 2, /* D = act(alpha * S^T @ B + beta * C + bias)                D [cols, tokens] */
    BSPARSE_SDDMM = 3   /* s_values = alpha * (A @ B at the stored blocks) + beta * s_values           */
};

typedef int32_t bsparse_order; /* of a dense operand */
enum {
    BSPARSE_ORDER_DEFAULT = 0, /* that of row-major activations: A, B of spmm and D col-major, B of sddmm row-major */
    BSPARSE_ROW_MAJOR = 1,
    BSPARSE_COL_MAJOR = 2
};

typedef int32_t bsparse_epilogue; /* bias, when args.bias is not NULL, is added before the activation */
enum {
    BSPARSE_EPILOGUE_NONE = 0,
    BSPARSE_EPILOGUE_RELU = 1,
    BSPARSE_EPILOGUE_GELU = 2,      /* x * Phi(x), by erf */
    BSPARSE_EPILOGUE_GELU_TANH = 3, /* its tanh approximation */
    BSPARSE_EPILOGUE_SILU = 4
};

/* plan flags, combined by or; unknown bits are refused */
enum {
    BSPARSE_ALLOW_ATOMICS = 1, /* faster split sums, no longer bitwise repeatable */
    BSPARSE_ALLOW_TF32 = 2,    /* f32 products may round their operands to TF32 */
    BSPARSE_FORCE_SM80 = 4     /* for tests: the sm_80 kernels on any newer GPU */
};

typedef struct bsparse_context bsparse_context; /* one backend on one device, with its threads */
typedef struct bsparse_pattern bsparse_pattern; /* which blocks exist, row-wise and column-wise */
typedef struct bsparse_plan bsparse_plan;       /* one product on one pattern: kernel and order of work */

typedef struct bsparse_context_desc {
    size_t struct_size; /* sizeof(bsparse_context_desc); fields past it read as zero */
    bsparse_backend backend;
    int32_t device;          /* CUDA ordinal; 0 for the CPU */
    int32_t threads;         /* CPU only: threads of one run, the caller's included; 0: one per core it may use */
    bsparse_cpu_isa cpu_isa; /* CPU only, for tests; 0: the best there is */
} bsparse_context_desc;

/* BSR24: block_cols is a multiple of 8. SEMI24: cols is, and the matrix is one block: block_rows = rows, block_cols =
 * cols, blocks = 1, row_offsets = {0, 1}, col_indices = {0}.
 * Both: values [blocks, block_rows, block_cols / 2], metadata [blocks, block_rows, block_cols / 8] bytes. A byte has
 * the positions of two groups of 4 columns, the first in its low half; of a group p0 | p1 << 2, 0 <= p0 < p1 <= 3. */
typedef struct bsparse_pattern_desc {
    size_t struct_size;
    bsparse_format format;
    int32_t block_rows, block_cols; /* elements per block, at least 1 */
    int32_t reserved;               /* 0 */
    int64_t rows, cols;             /* elements, at least 1; edge blocks are stored whole, zero in the padding */
    int64_t blocks;                 /* stored blocks; equals row_offsets[ceil(rows / block_rows)] */
    const int32_t *row_offsets;     /* host, [ceil(rows / block_rows) + 1], from 0, non-decreasing */
    const int32_t *col_indices;     /* host, [blocks], strictly ascending within a block row; NULL if blocks is 0 */
} bsparse_pattern_desc;

typedef struct bsparse_plan_desc {
    size_t struct_size;
    bsparse_op op;
    bsparse_dtype dtype;      /* of S, A and B; sums, alpha, beta: f32 (F64: f64); bf16 subnormals may read as 0 */
    bsparse_dtype out_dtype;  /* of D, in sddmm of s_values: dtype or F32; 0: dtype */
    bsparse_dtype c_dtype;    /* of C: out_dtype or F32; 0: out_dtype */
    bsparse_dtype bias_dtype; /* of bias: out_dtype or F32; 0: out_dtype */
    bsparse_order a_order, b_order, d_order; /* C and aux are laid out as D */
    bsparse_epilogue epilogue; /* NONE in sddmm */
    int32_t flags;
} bsparse_plan_desc;

typedef struct bsparse_args {
    size_t struct_size;
    int64_t tokens;         /* columns of B and D in spmm; the inner size in sddmm; 0 is fine */
    const void *a;          /* [rows, tokens], sddmm only */
    int64_t lda;            /* leading dimensions: elements from one row (column) to the next */
    const void *b;          /* spmm [cols, tokens], spmm_t [rows, tokens], sddmm [tokens, cols] */
    int64_t ldb;
    void *s_values;         /* [blocks, block_rows, block_cols], 2:4 half of it; read by spmm, written by sddmm */
    const void *s_metadata; /* 2:4: positions, also read by sddmm; the CPU checks them in every run. NULL for BSR */
    const void *prepared;   /* bsparse_plan_prepare's output; NULL where prepared_bytes is 0 */
    const void *c;          /* shaped as D; may be D itself; needed when beta is not 0 */
    int64_t ldc;
    void *d;                /* spmm [rows, tokens], spmm_t [cols, tokens] */
    int64_t ldd;
    void *aux;              /* NULL, or shaped and typed as D: the value before the activation */
    int64_t ldaux;
    const void *bias;       /* NULL, or one entry for each row of D */
    double alpha, beta;     /* 0 times infinity or NaN is NaN, also with alpha 0; beta 0: nothing is read */
    const float *row_scales, *token_scales;        /* reserved: NULL */
    int64_t batch;                                 /* reserved: 0 */
    int64_t b_stride, c_stride, d_stride;          /* reserved: 0 */
} bsparse_args;

/* library ------------------------------------------------------------------------------- */

/* BSPARSE_VERSION and BSPARSE_ABI of the library that runs: compare after dlopen. */
BSPARSE_API uint32_t bsparse_version(void);
BSPARSE_API uint32_t bsparse_abi(void);
/* "BSPARSE_OK" and so on; static, never NULL. */
BSPARSE_API const char *bsparse_status_name(bsparse_status status);
/* The calling thread's last failure, until its next one; "" if none. */
BSPARSE_API const char *bsparse_last_error(void);
/* Devices of a backend: 1 for the CPU; 0 where CUDA is not built, or has no driver or no device. */
BSPARSE_API int32_t bsparse_backend_devices(bsparse_backend backend);

/* context ------------------------------------------------------------------------------- */

/* Opens a backend on a device. The CPU backend's threads start at the first run that needs them and
 * sleep between runs; after fork() the child makes its own. In a process that has loaded an OpenMP runtime,
 * as torch does, that runtime's threads run instead. Destroy accepts NULL, like every destroy, and must come
 * after the last run and after the plans made with the context. */
BSPARSE_API bsparse_status bsparse_context_create(bsparse_context **out, const bsparse_context_desc *desc);
/* What it runs on: "cpu avx512, 2 threads"; lives as long as the context. */
BSPARSE_API const char *bsparse_context_name(const bsparse_context *context);
BSPARSE_API void bsparse_context_destroy(bsparse_context *context);

/* pattern ------------------------------------------------------------------------------- */

/* Validates and copies the index arrays: the caller may free them. */
BSPARSE_API bsparse_status bsparse_pattern_create(bsparse_pattern **out, const bsparse_pattern_desc *desc);
/* Bytes of s_values and s_metadata; either pointer may be NULL. */
BSPARSE_API bsparse_status bsparse_pattern_sizes(const bsparse_pattern *pattern, bsparse_dtype dtype,
                                                 size_t *values_bytes, size_t *metadata_bytes);
BSPARSE_API void bsparse_pattern_destroy(bsparse_pattern *pattern);

/* plan ---------------------------------------------------------------------------------- */

/* Picks kernels and orders the work; host only. The plan keeps what it needs of the pattern, which may
 * be destroyed; the context must outlive the plan. One plan serves every number of tokens. */
BSPARSE_API bsparse_status bsparse_plan_create(bsparse_plan **out, const bsparse_context *context,
                                               const bsparse_pattern *pattern, const bsparse_plan_desc *desc);
/* What bsparse_plan_create would answer, without creating. */
BSPARSE_API bsparse_status bsparse_plan_supports(const bsparse_context *context, const bsparse_pattern *pattern,
                                                 const bsparse_plan_desc *desc);
/* The kernel that serves this many tokens; lives as long as the plan. "" and last_error on a bad argument. */
BSPARSE_API const char *bsparse_plan_kernel(const bsparse_plan *plan, int64_t tokens);
/* Bytes of the device copy of the plan's work lists (0 on the CPU), and of scratch for one run. 0 and last_error on a
 * bad argument, as from bsparse_plan_prepared_bytes. */
BSPARSE_API size_t bsparse_plan_schedule_bytes(const bsparse_plan *plan);
BSPARSE_API size_t bsparse_plan_workspace_bytes(const bsparse_plan *plan, int64_t tokens);
/* Copies the work lists to the device, once per plan, asynchronously; the plan must outlive the copy. */
BSPARSE_API bsparse_status bsparse_plan_upload(const bsparse_plan *plan, void *schedule, void *stream);
/* The kernel's own order of values and metadata, for 2:4 formats; 0 bytes where values are read as they stand. */
BSPARSE_API size_t bsparse_plan_prepared_bytes(const bsparse_plan *plan);
BSPARSE_API bsparse_status bsparse_plan_prepare(const bsparse_plan *plan, const void *values, const void *metadata,
                                                void *prepared, void *stream);
/* Runs. schedule and workspace may be NULL where their bytes are 0; workspace needs 64-byte alignment and one
 * run's exclusive use. On the CPU it returns when done; on CUDA it only enqueues on the stream. */
BSPARSE_API bsparse_status bsparse_plan_run(const bsparse_plan *plan, const bsparse_args *args, const void *schedule,
                                            void *workspace, void *stream);
BSPARSE_API void bsparse_plan_destroy(bsparse_plan *plan);

/* values -------------------------------------------------------------------------------- */

/* Dense [rows, cols], row-major with leading dimension ld, to stored blocks and back; unpack writes zeros
 * where nothing is stored, pack writes zeros into the padding of edge blocks. 2:4: pack keeps the two numbers of each
 * group with the largest magnitudes, in F32 the larger of each two (1:2, as tensor cores have it); NaN is largest, and
 * of equal ones the first is kept. It writes metadata; unpack reads it. NULL for BSR. */
BSPARSE_API bsparse_status bsparse_pack(const bsparse_context *context, const bsparse_pattern *pattern,
                                        bsparse_dtype dtype, const void *dense, int64_t ld, void *values,
                                        void *metadata, void *stream);
BSPARSE_API bsparse_status bsparse_unpack(const bsparse_context *context, const bsparse_pattern *pattern,
                                          bsparse_dtype dtype, const void *values, const void *metadata, void *dense,
                                          int64_t ld, void *stream);
/* 2:4: the values at positions that are given: of a mask, or of a layer whose gradient this is. */
BSPARSE_API bsparse_status bsparse_pack_at(const bsparse_context *context, const bsparse_pattern *pattern,
                                           bsparse_dtype dtype, const void *dense, int64_t ld, const void *metadata,
                                           void *values, void *stream);
/* Whether metadata in host memory holds ascending positions in every group: what a caller does before metadata of
 * unknown origin goes to a device. Any two may be kept, whatever the dtype. */
BSPARSE_API bsparse_status bsparse_check_metadata(const bsparse_pattern *pattern, const void *metadata);
/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif /* BSPARSE_BSPARSE_H */
