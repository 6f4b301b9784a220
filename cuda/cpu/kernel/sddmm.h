// sddmm: each stored block is the sum over tokens of outer products of a row of its strip of A and one of its strip
// of B. Part of the kernel source: see kernel/all.h.

// One tile of a block: rows [row, row + rows), columns [column, column + width) of block b.
static void store_tile(const SddmmTask &task, int64_t b, int64_t row, int64_t rows, int64_t column, int64_t width,
                       const float *sums, int64_t stride) {
    const int64_t valid_rows = task.rows - int64_t{task.majors[b]} * task.block_rows - row;
    const int64_t valid_columns = task.cols - int64_t{task.minors[b]} * task.block_cols - column;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t start = (b * task.block_rows + row + r) * task.block_cols + column;
        for (int64_t c = 0; c < width; c += kLanes) {
            const char *in = task.in + (start + c) * bytes_of(task.in_dtype);
            char *out = task.out + (start + c) * bytes_of(task.out_dtype);
            Vf x = load<Vf>(sums + r * stride + c) * task.alpha;
            if (task.beta != 0) {
                x += task.beta * load_f32(in, 1, width - c, task.in_dtype);
            }
            const int64_t valid = r < valid_rows ? valid_columns - c : 0;
            for (int64_t i = valid > 0 ? valid : 0; i < kLanes; ++i) {
                x[i] = 0; // padding stays zero
            }
            store_f32(out, 1, width - c, task.out_dtype, x);
        }
    }
}

template <class Multiply>
static void sddmm_blocks(const SddmmTask &task, int64_t first_block, int64_t last_block, int32_t first_row,
                         int32_t last_row) {
    const int64_t bytes = task.pairs ? 2 : 4;
    const int64_t padded = (task.block_cols + kLanes - 1) / kLanes * kLanes;
    const int32_t count = static_cast<int32_t>(task.tokens / (task.pairs ? 2 : 1));
    const int64_t a_stride = int64_t{task.block_rows} * 4;
    alignas(64) float sums[kTileRows * kGroup];
    for (int64_t b = first_block; b < last_block; ++b) {
        const char *a = task.a_strips + task.majors[b] * task.tokens * task.block_rows * bytes; // [count][block_rows]
        const char *strip = task.b_strips + task.minors[b] * task.tokens * padded * bytes;
        for (int64_t column = 0; column < padded; column += kGroup) {
            const int64_t width = least(kGroup, padded - column);
            const Step step = {strip + task.tokens * column * bytes, count, 0}; // [count][width]
            for (int32_t row = first_row; row < last_row;) {
                const int64_t rows = tile_rows(last_row - row, kTileRows);
                const TileFunction multiply =
                    width > kLanes ? tile_of<Multiply, 2, true>(rows) : tile_of<Multiply, 1, true>(rows);
                multiply(&step, 1, a + row * 4, a_stride, sums, width, false);
                store_tile(task, b, row, rows, column, least(width, task.block_cols - column), sums, width);
                row += static_cast<int32_t>(rows);
            }
        }
    }
}

static void sddmm(const SddmmTask &task, int64_t first_block, int64_t last_block, int32_t first_row, int32_t last_row) {
#if defined(__AVX512BF16__)
    if (task.pairs) {
        return sddmm_blocks<MultiplyPairs>(task, first_block, last_block, first_row, last_row);
    }
#endif
    sddmm_blocks<MultiplyF32>(task, first_block, last_block, first_row, last_row);
}
