// Dense operands as the kernels want them: images (rows of f32 or bf16) for spmm, strips for sddmm.
// Part of the kernel source: see kernel/all.h.

// kLanes tokens by kLanes features from (token, feature) on, as f32, of a source whose tokens stand side by side: each
// row becomes one token. What lies outside is zero.
template <bsparse_dtype kDtype>
static void load_square(const Dense &x, int64_t token, int64_t tokens, int64_t feature, int64_t features,
                        Vf rows[kLanes]) {
    const int64_t stride = x.feature_stride * bytes_of(kDtype);
    const char *from = x.data + token * bytes_of(kDtype) + feature * stride;
    Vu columns[kLanes];
    for (int64_t f = 0; f < kLanes; ++f) {
        columns[f] = f < features ? as<Vu>(load_as_f32<kDtype>(from + f * stride, 1, tokens)) : Vu{};
    }
    transpose(columns);
    for (int64_t t = 0; t < kLanes; ++t) {
        rows[t] = as<Vf>(columns[t]);
    }
}

template <bsparse_dtype kDtype>
static void image_of(const Dense &x, int64_t features, int64_t first, int64_t last, bool pairs, char *to, int64_t ld) {
    const bsparse_dtype dtype = pairs ? BSPARSE_BF16 : BSPARSE_F32;
    const int64_t size = bytes_of(dtype);
    if (x.feature_stride == 1) { // rows stay rows
        for (int64_t token = first; token < last; ++token, to += ld * size) {
            const char *from = x.data + token * x.token_stride * bytes_of(kDtype);
            for (int64_t f = 0; f < features; f += kLanes) {
                const Vf numbers = load_as_f32<kDtype>(from + f * bytes_of(kDtype), 1, features - f);
                store_f32(to + f * size, 1, features - f, dtype, numbers);
            }
        }
        return;
    }
    for (int64_t token = first; token < last; token += kLanes, to += kLanes * ld * size) {
        for (int64_t f = 0; f < features; f += kLanes) {
            const int64_t tokens = least(last - token, kLanes);
            Vf rows[kLanes];
            load_square<kDtype>(x, token, tokens, f, features - f, rows);
            for (int64_t t = 0; t < tokens; ++t) {
                store_f32(to + (t * ld + f) * size, 1, features - f, dtype, rows[t]);
            }
        }
    }
}

static void image(const Dense &x, int64_t features, int64_t first, int64_t last, bool pairs, char *to, int64_t ld) {
    switch (x.dtype) {
    case BSPARSE_F32:
        return image_of<BSPARSE_F32>(x, features, first, last, pairs, to, ld);
    case BSPARSE_BF16:
        return image_of<BSPARSE_BF16>(x, features, first, last, pairs, to, ld);
    default:
        return image_of<BSPARSE_F16>(x, features, first, last, pairs, to, ld);
    }
}

// Two rows of bf16 numbers (given as f32, exactly) as pairs.
static inline Vu pair_up(Vf even, Vf odd) { return (as<Vu>(even) >> 16) | (as<Vu>(odd) & 0xffff0000); }

// One group of one strip, as `strips_of` fills it.
struct StripGroup {
    int64_t feature, valid; // of the source: the first, and how many there are (the rest of the row is zero)
    int64_t width;          // numbers, or pairs, of a row
    char *rows;             // of the chunk's first token
};

// Tokens [first, last) of the chunk: rows of the source stay rows.
template <bsparse_dtype kDtype, bool kPairs>
static void copy_rows(const StripTask &task, const StripGroup &group, int64_t first, int64_t last) {
    const int64_t stride = task.source.token_stride * bytes_of(kDtype);
    const char *from = task.source.data + (task.first_token + first) * stride + group.feature * bytes_of(kDtype);
    char *to = group.rows + first / (kPairs ? 2 : 1) * group.width * 4;
    for (int64_t t = first; t < last; t += kPairs ? 2 : 1, from += kPairs ? 2 * stride : stride) {
        for (int64_t f = 0; f < group.width; f += kLanes) {
            const int64_t valid = group.valid - f;
            Vf row = load_as_f32<kDtype>(from + f * bytes_of(kDtype), 1, valid);
            if (kPairs) { // an odd number of tokens ends with half a pair
                const char *odd = from + stride + f * bytes_of(kDtype);
                row = as<Vf>(pair_up(row, load_as_f32<kDtype>(odd, 1, t + 1 < task.tokens ? valid : 0)));
            }
            store_f32(to + f * 4, 1, group.width - f, BSPARSE_F32, row);
        }
        to += group.width * 4;
    }
}

// The same from a source whose tokens stand side by side.
template <bsparse_dtype kDtype, bool kPairs>
static void transpose_rows(const StripTask &task, const StripGroup &group, int64_t first, int64_t last) {
    constexpr int64_t kStep = kPairs ? 2 : 1;
    for (int64_t t = first; t < last; t += kLanes) {
        for (int64_t f = 0; f < group.width; f += kLanes) {
            Vf rows[kLanes];
            load_square<kDtype>(task.source, task.first_token + t, task.tokens - t, group.feature + f, group.valid - f,
                                rows);
            char *to = group.rows + (t / kStep * group.width + f) * 4;
            for (int64_t r = 0; r < least(kLanes, last - t); r += kStep, to += group.width * 4) {
                const Vf row = kPairs ? as<Vf>(pair_up(rows[r], rows[r + 1])) : rows[r];
                store_f32(to, 1, group.width - f, BSPARSE_F32, row);
            }
        }
    }
}

template <bsparse_dtype kDtype, bool kPairs> static void strips_of(const StripTask &task, int64_t first, int64_t last) {
    const bool grouped = task.group != 0; // then rows are padded to whole lanes
    const int64_t padded = grouped ? (task.block + kLanes - 1) / kLanes * kLanes : task.block;
    const int64_t widest = grouped ? task.group : task.block;
    const int64_t rows = task.chunk_tokens / (kPairs ? 2 : 1); // of a strip
    for (int64_t b = 0; b * task.block < task.features; ++b) {
        if (task.offsets[b] == task.offsets[b + 1]) {
            continue; // no block needs it
        }
        const int64_t inside = least(task.block, task.features - b * task.block);
        for (int64_t start = 0; start < padded; start += widest) {
            const StripGroup group = {b * task.block + start, inside - start, least(widest, padded - start),
                                      task.strips + rows * (b * padded + start) * 4};
            if (task.source.feature_stride == 1) {
                copy_rows<kDtype, kPairs>(task, group, first, last);
            } else {
                transpose_rows<kDtype, kPairs>(task, group, first, last);
            }
        }
    }
}

static void strips(const StripTask &task, int64_t first, int64_t last) {
    switch (task.source.dtype) {
    case BSPARSE_F32:
        return strips_of<BSPARSE_F32, false>(task, first, last);
    case BSPARSE_BF16:
        return task.pairs ? strips_of<BSPARSE_BF16, true>(task, first, last)
                          : strips_of<BSPARSE_BF16, false>(task, first, last);
    default:
        return strips_of<BSPARSE_F16, false>(task, first, last);
    }
}
