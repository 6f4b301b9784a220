// sddmm: each stored block is the sum over tokens of outer products of a row of A's strip for its block row and one of
// B's for its block column. Every thread makes the strips that it reads. Part of the kernel source: see kernel/all.h.

// One thread's memory.
struct SddmmScratch {
    alignas(64) float a[kStripTokens * kItemRows]; // [tokens][rows of the item]
    alignas(64) float sums[kItemRows * kGroup];    // [rows of the item][width of a group]
};

// Numbers, or pairs, of a row of all of a block column's strips: whole lanes.
static inline int64_t padded_columns(const SddmmTask &task) {
    return (int64_t{task.block_cols} + kLanes - 1) / kLanes * kLanes;
}

// The strip of a group of columns, from `column` of the range's block column `col` on.
static inline char *strip_of(const SddmmTask &task, SddmmStrips &strips, int64_t col, int64_t column) {
    char *rows = reinterpret_cast<char *>(&strips + 1);
    return rows + (col * padded_columns(task) + column) * task.strip_rows * 4;
}

// Makes the strips of block column `col` of the range, unless this thread has made them.
static void need_strips(const SddmmTask &task, SddmmStrips &strips, int64_t col) {
    if (strips.made[col]) {
        return;
    }
    strips.made[col] = true;
    const int64_t feature = (strips.first_col + col) * task.block_cols;
    const int64_t inside = least(task.block_cols, task.cols - feature);
    const int64_t padded = padded_columns(task);
    for (int64_t column = 0; column < padded; column += kGroup) {
        fill({task.b, task.first_token, task.tokens, feature + column, inside - column, least(kGroup, padded - column),
              strip_of(task, strips, col, column)},
             task.pairs);
    }
}

// 2:4: the kept ones of kLanes sums, of `columns` columns from element `first` of the stored blocks on, a multiple
// of 4. `valid` columns lie in the matrix: beyond is padding, which stays zero.
static void store_kept(const SddmmTask &task, int64_t first, int64_t columns, int64_t valid, Vf sums) {
    Vf x = {};
    int64_t column[kLanes] = {}; // of each kept one
    const int64_t count = least(columns, kLanes) / 2;
    for (int64_t i = 0; i < count; i += 2) {
        const int nibble = group_at(task.metadata, first / 4 + i / 2);
        column[i] = 2 * i + (nibble & 3);
        column[i + 1] = 2 * i + (nibble >> 2);
    }
    for (int64_t i = 0; i < count; ++i) {
        x[i] = sums[column[i]];
    }
    if (task.beta != 0) {
        const char *before = task.before + first / 2 * bytes_of(task.before_dtype);
        x += task.beta * load_f32(before, 1, count, task.before_dtype);
    }
    for (int64_t i = 0; i < count; ++i) {
        x[i] = column[i] < valid ? x[i] : 0;
    }
    store_f32(task.values + first / 2 * bytes_of(task.values_dtype), 1, count, task.values_dtype, x);
}

// From sums to values: `rows` rows of block b from `row` on, `columns` columns from `column` on.
static void store_values(const SddmmTask &task, int64_t b, int64_t row, int64_t rows, int64_t column, int64_t columns,
                         const float *sums, int64_t stride) {
    const int64_t valid_rows = task.rows - int64_t{task.majors[b]} * task.block_rows - row;
    const int64_t valid_columns = task.cols - int64_t{task.minors[b]} * task.block_cols - column;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t first = (b * task.block_rows + row + r) * task.block_cols + column;
        for (int64_t c = 0; c < columns; c += kLanes) {
            Vf x = load<Vf>(sums + r * stride + c) * task.alpha;
            const int64_t valid = r < valid_rows ? valid_columns - c : 0; // beyond it padding, which stays zero
            if (task.metadata != nullptr) {
                store_kept(task, first + c, columns - c, valid, x);
                continue;
            }
            if (task.beta != 0) {
                const char *before = task.before + (first + c) * bytes_of(task.before_dtype);
                x += task.beta * load_f32(before, 1, columns - c, task.before_dtype);
            }
            for (int64_t i = valid > 0 ? valid : 0; i < kLanes; ++i) {
                x[i] = 0;
            }
            char *values = task.values + (first + c) * bytes_of(task.values_dtype);
            store_f32(values, 1, columns - c, task.values_dtype, x);
        }
    }
}

template <class Multiply>
static void sddmm_item(const SddmmTask &task, const SddmmItem &item, SddmmStrips &strips, SddmmScratch &scratch) {
    const int64_t rows = item.last_row - item.first_row;
    const int64_t feature = int64_t{task.majors[item.first_block]} * task.block_rows + item.first_row; // of A
    const int64_t first_col = task.minors[item.first_block] / task.range_cols * task.range_cols;
    const int32_t count = static_cast<int32_t>(task.pairs ? (task.tokens + 1) / 2 : task.tokens);
    const int64_t padded = padded_columns(task);
    if (strips.first_token != task.first_token || strips.first_col != first_col) {
        strips.first_token = task.first_token;
        strips.first_col = first_col;
        __builtin_memset(strips.made, 0, sizeof(strips.made));
    }
    char *a = reinterpret_cast<char *>(scratch.a);
    fill({task.a, task.first_token, task.tokens, feature, task.rows - feature, rows, a}, task.pairs);
    for (int64_t b = item.first_block; b < item.last_block; ++b) {
        const int64_t col = task.minors[b] - first_col;
        need_strips(task, strips, col);
        for (int64_t column = 0; column < padded; column += kGroup) {
            const int64_t width = least(kGroup, padded - column);
            const Step step = {strip_of(task, strips, col, column), count, 0};
            for (int64_t row = 0; row < rows;) {
                const int64_t some = tile_rows(rows - row, kTileRows);
                const TileFunction multiply =
                    width > kLanes ? tile_of<Multiply, 2, true>(some) : tile_of<Multiply, 1, true>(some);
                multiply(&step, 1, a + row * 4, rows * 4, scratch.sums + row * width, width, false);
                row += some;
            }
            store_values(task, b, item.first_row, rows, column, least(width, task.block_cols - column), scratch.sums,
                         width);
        }
    }
}

static void sddmm(const SddmmTask &task, const SddmmItem &item, SddmmStrips &strips, char *memory) {
    SddmmScratch &scratch = *reinterpret_cast<SddmmScratch *>(memory);
#if defined(__AVX512BF16__)
    if (task.pairs) {
        return sddmm_item<MultiplyPairs>(task, item, strips, scratch);
    }
#endif
    sddmm_item<MultiplyF32>(task, item, strips, scratch);
}
