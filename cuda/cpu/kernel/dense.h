// Dense operands as the kernels want them: images for spmm, strips for sddmm.
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

// A few features of a chunk of tokens, one after the other in memory: what sddmm multiplies.
struct Strip {
    const Dense &source;
    int64_t first_token, tokens;
    int64_t feature, valid; // of the source: the first, and how many there are (the rest of a row becomes zero)
    int64_t width;          // numbers, or pairs of two tokens' numbers, of a row
    char *rows;             // [tokens, or pairs of tokens][width]
};

// Rows of the source stay rows; an odd number of tokens ends with half a pair.
template <bsparse_dtype kDtype, bool kPairs> static void copy_rows(const Strip &strip) {
    const int64_t size = bytes_of(kDtype);
    const int64_t stride = strip.source.token_stride * size;
    const char *from = strip.source.data + strip.first_token * stride + strip.feature * size;
    char *to = strip.rows;
    for (int64_t t = 0; t < strip.tokens; t += kPairs ? 2 : 1) {
        for (int64_t f = 0; f < strip.width; f += kLanes) {
            const int64_t valid = strip.valid - f;
            Vf row = load_as_f32<kDtype>(from + f * size, 1, valid);
            if (kPairs) {
                const Vf odd = load_as_f32<kDtype>(from + stride + f * size, 1, t + 1 < strip.tokens ? valid : 0);
                row = as<Vf>(pair_up(row, odd));
            }
            store_f32(to + f * 4, 1, strip.width - f, BSPARSE_F32, row);
        }
        from += kPairs ? 2 * stride : stride;
        to += strip.width * 4;
    }
}

// The same from a source whose tokens stand side by side.
template <bsparse_dtype kDtype, bool kPairs> static void transpose_rows(const Strip &strip) {
    for (int64_t t = 0; t < strip.tokens; t += kLanes) {
        for (int64_t f = 0; f < strip.width; f += kLanes) {
            Vf rows[kLanes];
            load_square<kDtype>(strip.source, strip.first_token + t, strip.tokens - t, strip.feature + f,
                                strip.valid - f, rows);
            constexpr int64_t kStep = kPairs ? 2 : 1;
            char *to = strip.rows + (t / kStep * strip.width + f) * 4;
            for (int64_t r = 0; r < least(kLanes, strip.tokens - t); r += kStep, to += strip.width * 4) {
                const Vf row = kPairs ? as<Vf>(pair_up(rows[r], rows[r + 1])) : rows[r];
                store_f32(to, 1, strip.width - f, BSPARSE_F32, row);
            }
        }
    }
}

template <bsparse_dtype kDtype, bool kPairs> static void fill_of(const Strip &strip) {
    if (strip.source.feature_stride == 1) {
        copy_rows<kDtype, kPairs>(strip);
    } else {
        transpose_rows<kDtype, kPairs>(strip);
    }
}

static void fill(const Strip &strip, bool pairs) {
    if (strip.tokens == 0) { // the operands may then be NULL, from where no address is counted on
        return;
    }
    switch (strip.source.dtype) {
    case BSPARSE_F32:
        return fill_of<BSPARSE_F32, false>(strip);
    case BSPARSE_BF16:
        return pairs ? fill_of<BSPARSE_BF16, true>(strip) : fill_of<BSPARSE_BF16, false>(strip);
    default:
        return fill_of<BSPARSE_F16, false>(strip);
    }
}
