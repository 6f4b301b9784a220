// Dense operands as the kernels want them: images (rows of f32 or bf16) for spmm, strips for sddmm.
// Part of the kernel source: see kernel/all.h.

// kLanes tokens by kLanes features from (token, feature) on, as f32, each row one token; what lies outside is zero.
template <bsparse_dtype kDtype>
static inline void load_square(const Dense &x, int64_t token, int64_t tokens, int64_t feature, int64_t features,
                               Vf rows[kLanes]) {
    const int64_t size = bytes_of(kDtype);
    const char *from = x.data + (token * x.token_stride + feature * x.feature_stride) * size;
    if (x.feature_stride == 1) {
        for (int64_t t = 0; t < kLanes; ++t) {
            rows[t] = t < tokens ? load_as_f32<kDtype>(from + t * x.token_stride * size, 1, features) : Vf{};
        }
        return;
    }
    Vu columns[kLanes];
    for (int64_t f = 0; f < kLanes; ++f) {
        columns[f] = f < features
                         ? as<Vu>(load_as_f32<kDtype>(from + f * x.feature_stride * size, x.token_stride, tokens))
                         : Vu{};
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

// Rows are padded to whole lanes where groups are; a strip without
// groups is as wide as its block.
template <bsparse_dtype kDtype, bool kPairs> static void strips_of(const StripTask &task, int64_t first, int64_t last) {
    constexpr int64_t kStep = kPairs ? 2 : 1; // tokens of a row of a strip
    const int64_t group = task.group != 0 ? task.group : task.block;
    const int64_t padded = task.group != 0 ? (task.block + kLanes - 1) / kLanes * kLanes : task.block;
    const int64_t blocks = (task.features + task.block - 1) / task.block;
    for (int64_t t = first; t < last; t += kLanes) {
        const int64_t rows_here = least(kLanes, last - t);
        const int64_t tokens = least(rows_here, task.tokens - t); // may be below rows_here: a pair's other half
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t inside = least(task.block, task.features - b * task.block);
            char *strip = task.strips + b * (task.chunk_tokens / kStep) * padded * 4;
            for (int64_t f = 0; f < padded; f += kLanes) {
                const int64_t start = f / group * group;            // of the group
                const int64_t width = least(group, padded - start); // of its rows
                Vf rows[kLanes];
                load_square<kDtype>(task.source, task.first_token + t, tokens, b * task.block + f, inside - f, rows);
                char *to = strip + (task.chunk_tokens / kStep * start + t / kStep * width + f - start) * 4;
                for (int64_t r = 0; r < rows_here; r += kStep) {
                    const Vf row = kPairs ? as<Vf>(pair_up(rows[r], rows[r + 1])) : rows[r];
                    store_f32(to + r / kStep * width * 4, 1, width - (f - start), BSPARSE_F32, row);
                }
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
