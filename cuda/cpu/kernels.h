// Between the host code of the CPU backend, compiled once, and its kernels, compiled for each instruction set
// (kernel/, kernels_<isa>.cc). Plain structs and function pointers only: an inline function or a template here
// would be compiled with several instruction sets, and the linker would keep any one of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bsparse/bsparse.h"

namespace bsparse::cpu {

// A dense operand seen as [tokens, features], whatever its order in memory: one of the strides is 1.
struct Dense {
    char *data;
    int64_t token_stride, feature_stride; // elements
    bsparse_dtype dtype;
};

// What becomes of a sum x: d = act(alpha * x + beta * c + bias), aux receives what is inside the brackets.
struct Epilogue {
    float alpha, beta;
    Dense c;          // unused where beta is 0
    const char *bias; // [features] or NULL
    bsparse_dtype bias_dtype;
    Dense aux; // data NULL: not wanted
    Dense d;
    bsparse_epilogue activation;
};

// spmm and spmm_t of one run. "outer" features are D's and "inner" ones are summed over: rows and columns of S in
// spmm, columns and rows in spmm_t. A major is a block row in spmm, a block column in spmm_t.
struct SpmmTask {
    const int32_t *offsets, *minors, *index; // the pattern's list of blocks of each major
    const char *values;                      // [blocks, block_rows, block_cols]; 2:4: half of the columns
    const uint8_t *metadata;                 // 2:4: [blocks, block_rows, block_cols / 8], else NULL
    bsparse_dtype dtype;                     // of values
    bool transposed;                         // spmm_t
    int32_t block_rows, block_cols;
    int64_t outer, inner;
    bool pairs;          // bf16 is multiplied as it is, two inner features at a time
    const char *x;       // [tokens from first_token on, inner], bf16 where pairs, else f32
    int64_t ldx;         // elements
    int64_t first_token;
    Epilogue epilogue;
};

// x of one chunk of tokens, converted by one thread for itself at its first item of the chunk. One image for all would
// be made once, but on two cores that share no cache (SddmmStrips tells more) bf16 then took twice the time of f32.
struct alignas(64) SpmmImage {
    int64_t first_token; // of the chunk; -1: none
    // Behind it: [tokens of the chunk][ldx].
};

// The part of it that one thread computes at a time.
struct SpmmItem {
    int32_t first_major, last_major;
    int32_t first_group, last_group; // groups of outer features within a block, Kernels::group wide
    int64_t first_token, last_token; // at most kItemTokens
};

// sddmm of one run over one chunk of its tokens. A and B are rearranged into strips: each holds a few features,
// contiguous for all tokens of the chunk.
struct SddmmTask {
    const int32_t *minors; // [blocks], block column of each
    const int32_t *majors; // [blocks], block row of each
    Dense a, b;            // [tokens, rows], [tokens, cols]
    int32_t block_rows, block_cols;
    int64_t rows, cols;
    bool pairs;                  // bf16 is multiplied as it is, two tokens at a time
    int64_t first_token, tokens; // the chunk, at most kStripTokens
    int64_t strip_rows;          // tokens, or pairs of tokens, of a strip
    int32_t range_cols;          // block columns of a range: those whose strips a thread keeps
    float alpha, beta;           // values = alpha * sums + beta * before
    const uint8_t *metadata;     // 2:4: which values there are, [blocks, block_rows, block_cols / 8]; else NULL
    const char *before;          // [blocks, block_rows, block_cols], 2:4 half of it, read where beta is not 0
    bsparse_dtype before_dtype;
    char *values; // same shape; padding becomes zero
    bsparse_dtype values_dtype;
};

// The part of it that one thread computes at a time: some rows of neighbouring blocks of one block row and one range.
struct SddmmItem {
    int32_t first_block, last_block;
    int32_t first_row, last_row; // at most kItemRows
};

constexpr int kItemTokens = 512;    // most tokens of one SpmmItem
constexpr int kFewTokens = 8;       // most tokens that the decode kernels can serve
constexpr int kSegmentInner = 2048; // inner features whose panel one thread holds: 256 KiB with AVX-512, fits L2
constexpr int kItemRows = 64;       // most rows of one SddmmItem
constexpr int kStripTokens = 512;   // strips of a 64x64 block are then 256 KiB
constexpr int kStripColumns = 1024; // of a range, whole lanes: strips of 2 MiB for each thread

// B's strips of one range, made by one thread for itself as its items need them. Shared strips would be made once, but
// writing again what another core has read can cost more than making them twice. Measured on a virtual machine whose
// two cores share a cache at one moment and not at the next: shared 0.68 or 1.26 ms, own 0.66 ms (f32, 512 tokens,
// 1024 x 1024 in 32x32 blocks, density 0.1).
struct alignas(64) SddmmStrips {
    int64_t first_token, first_col; // of the chunk and the range that they belong to; first_token -1: none
    bool made[kStripColumns / 4];   // [range_cols]; a block column takes 4 columns at least, a register's lanes
    // Behind it: [range_cols][groups][strip_rows][group] of f32, or of pairs of bf16.
};

struct Kernels {
    bsparse_cpu_isa isa;
    int32_t lanes; // f32 numbers of a register
    int32_t group; // outer features of a panel: two registers
    bool pairs;    // can multiply pairs of bf16
    size_t scratch_bytes; // of one thread

    // Tokens [first, last) of x as rows of f32 (bf16 where pairs), ld elements apart.
    void (*image)(const Dense &x, int64_t features, int64_t first, int64_t last, bool pairs, char *to, int64_t ld);
    void (*spmm)(const SpmmTask &task, const SpmmItem &item, char *scratch);
    void (*decode)(const SpmmTask &task, const SpmmItem &item, char *scratch);
    void (*sddmm)(const SddmmTask &task, const SddmmItem &item, SddmmStrips &strips, char *scratch);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels, kAvx512Bf16Kernels;
#endif

} // namespace bsparse::cpu
