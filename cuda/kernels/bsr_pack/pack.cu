// Blocks are copied as bytes, whatever the dtype: in the widest words that the alignment of all sides allows, so that
// a word is never split by the edge of the matrix.
#include "pack.h"

#include <algorithm>
#include <cuda_runtime.h>

#include "../../src/dtype.h"
#include "../common/launch.h"

namespace bsparse::gpu {
namespace {

constexpr int kWarps = 8;              // of a thread block
constexpr int kPieceBytes = 4096;      // of a block that one warp copies, about
constexpr int kBlocksPerLaunch = 3968; // kernel parameters end at 32764 bytes

struct Position {
    int32_t row, column; // in blocks
};

// One launch: consecutive stored blocks, each in pieces of whole rows.
struct Task {
    char *dense;         // [rows, row_words]
    char *values;        // of the first block here; [blocks, block_rows, block_words]
    int64_t dense_pitch; // bytes from row to row
    int64_t rows, row_words;
    int32_t block_rows, block_words; // of a block
    int32_t blocks;
    int32_t piece_rows, pieces; // rows of a piece, pieces of a block
    Position positions[kBlocksPerLaunch];
};
static_assert(sizeof(Task) <= 32764, "the parameters of a kernel on sm_70 and newer");

// One warp a piece.
template <typename Word, bool kPack>
__global__ __launch_bounds__(kWarps * 32) void copy(const __grid_constant__ Task task) {
    const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    const int64_t block = item / task.pieces;
    if (block >= task.blocks) {
        return;
    }
    const int first_row = static_cast<int>(item % task.pieces) * task.piece_rows;
    const int rows = min(task.piece_rows, task.block_rows - first_row);
    const int64_t row = int64_t{task.positions[block].row} * task.block_rows + first_row; // in the matrix
    const int64_t column = int64_t{task.positions[block].column} * task.block_words;      // in words
    Word *packed = reinterpret_cast<Word *>(task.values) + (block * task.block_rows + first_row) * task.block_words;
    const uint32_t block_words = task.block_words;
    for (uint32_t i = threadIdx.x % 32; i < rows * block_words; i += 32) { // fits: many rows only where they are short
        const int64_t line = row + i / block_words;
        const int64_t word = column + i % block_words;
        const bool inside = line < task.rows && word < task.row_words;
        Word *dense = reinterpret_cast<Word *>(task.dense + line * task.dense_pitch) + word;
        if (kPack) {
            packed[i] = inside ? *dense : Word{};
        } else if (inside) {
            *dense = packed[i];
        }
    }
}

using Kernel = void (*)(Task);

template <bool kPack> Kernel kernel_for(int word_bytes) {
    switch (word_bytes) {
    case 16:
        return copy<uint4, kPack>;
    case 8:
        return copy<uint2, kPack>;
    case 4:
        return copy<uint32_t, kPack>;
    default:
        return copy<uint16_t, kPack>;
    }
}

// Bytes of the widest word that every address, distance and width is a multiple of.
int common_word(const Pattern &pattern, int64_t element, const void *dense, int64_t ld, const void *values) {
    const uint64_t all = reinterpret_cast<uintptr_t>(dense) | reinterpret_cast<uintptr_t>(values) |
                         static_cast<uint64_t>(pattern.rows > 1 ? ld * element : 0) |
                         static_cast<uint64_t>(pattern.cols * element) |
                         static_cast<uint64_t>(pattern.block_cols * element) | 16;
    return static_cast<int>(all & (~all + 1)); // its lowest bit
}

template <bool kPack>
void run(const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld, const void *values,
         cudaStream_t stream) {
    const int64_t element = dtype_bytes(dtype);
    const int word = common_word(pattern, element, dense, ld, values);
    const int64_t block_row_bytes = pattern.block_cols * element;
    const Kernel kernel = kernel_for<kPack>(word);
    Task task;
    task.dense = static_cast<char *>(const_cast<void *>(dense));
    task.dense_pitch = ld * element;
    task.rows = pattern.rows;
    task.row_words = pattern.cols * element / word;
    task.block_rows = pattern.block_rows;
    task.block_words = static_cast<int32_t>(block_row_bytes / word);
    task.piece_rows = static_cast<int32_t>(
        std::max<int64_t>(1, std::min<int64_t>(pattern.block_rows, kPieceBytes / block_row_bytes)));
    task.pieces = (pattern.block_rows - 1) / task.piece_rows + 1;
    int32_t row = 0;
    for (int64_t first = 0; first < pattern.blocks; first += task.blocks) {
        const int64_t pieces_per_launch = int64_t{kWarps} << 30; // keeps the grid within its limit of 2^31 - 1
        task.blocks = static_cast<int32_t>(std::max<int64_t>(
            1, std::min({pattern.blocks - first, int64_t{kBlocksPerLaunch}, pieces_per_launch / task.pieces})));
        task.values = static_cast<char *>(const_cast<void *>(values)) + first * pattern.block_rows * block_row_bytes;
        for (int32_t b = 0; b < task.blocks; ++b) {
            while (first + b >= pattern.by_row.offsets[row + 1]) {
                ++row;
            }
            task.positions[b] = {row, pattern.by_row.minors[first + b]};
        }
        const int64_t items = int64_t{task.blocks} * task.pieces;
        Launcher()(kPack ? "bsr_pack" : "bsr_unpack", kernel,
                   {static_cast<unsigned>((items + kWarps - 1) / kWarps), kWarps * 32}, stream, task);
    }
}

} // namespace

void pack(const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld, void *values,
          cudaStream_t stream) {
    run<true>(pattern, dtype, dense, ld, values, stream);
}

void unpack(const Pattern &pattern, bsparse_dtype dtype, const void *values, void *dense, int64_t ld,
            cudaStream_t stream) {
    const size_t width = pattern.cols * dtype_bytes(dtype);
    const bool gapless = pattern.rows == 1 || ld == pattern.cols;
    check(gapless ? cudaMemsetAsync(dense, 0, pattern.rows * width, stream)
                  : cudaMemset2DAsync(dense, ld * dtype_bytes(dtype), 0, width, pattern.rows, stream),
          "the zeros of bsr_unpack");
    run<false>(pattern, dtype, dense, ld, values, stream);
}

} // namespace bsparse::gpu
