// From sums to results: alpha, beta * C, bias, aux, activation, conversion and store, in one pass over a small tile.
// Part of the kernel source: see kernel/all.h.

static inline char *at(const Dense &dense, int64_t token, int64_t feature) {
    return dense.data + (token * dense.token_stride + feature * dense.feature_stride) * bytes_of(dense.dtype);
}

// D can hold the sums themselves while they are made: a row of f32 for each token.
static inline bool holds_sums(const Dense &d) { return d.dtype == BSPARSE_F32 && d.feature_stride == 1; }

// sums [tokens][stride], in whole vectors, of which `features` are D's, from `token` and `feature` on.
template <bsparse_epilogue kActivation>
static void finish_tile(const Epilogue &e, const float *sums, int64_t stride, int64_t tokens, int64_t token,
                        int64_t features, int64_t feature) {
    for (int64_t f = 0; f < features; f += kLanes) {
        const int64_t count = features - f;
        const Vf bias = e.bias == nullptr
                            ? Vf{}
                            : load_f32(e.bias + (feature + f) * bytes_of(e.bias_dtype), 1, count, e.bias_dtype);
        for (int64_t t = 0; t < tokens; ++t) {
            Vf x = load<Vf>(sums + t * stride + f) * e.alpha;
            if (e.beta != 0) {
                x += e.beta * load_f32(at(e.c, token + t, feature + f), e.c.feature_stride, count, e.c.dtype);
            }
            x += bias;
            if (e.aux.data != nullptr) {
                store_f32(at(e.aux, token + t, feature + f), e.aux.feature_stride, count, e.aux.dtype, x);
            }
            store_f32(at(e.d, token + t, feature + f), e.d.feature_stride, count, e.d.dtype, activate<kActivation>(x));
        }
    }
}

static void finish(const Epilogue &e, const float *sums, int64_t stride, int64_t tokens, int64_t token,
                   int64_t features, int64_t feature) {
    switch (e.activation) {
    case BSPARSE_EPILOGUE_RELU:
        return finish_tile<BSPARSE_EPILOGUE_RELU>(e, sums, stride, tokens, token, features, feature);
    case BSPARSE_EPILOGUE_GELU:
        return finish_tile<BSPARSE_EPILOGUE_GELU>(e, sums, stride, tokens, token, features, feature);
    case BSPARSE_EPILOGUE_GELU_TANH:
        return finish_tile<BSPARSE_EPILOGUE_GELU_TANH>(e, sums, stride, tokens, token, features, feature);
    case BSPARSE_EPILOGUE_SILU:
        return finish_tile<BSPARSE_EPILOGUE_SILU>(e, sums, stride, tokens, token, features, feature);
    default:
        return finish_tile<BSPARSE_EPILOGUE_NONE>(e, sums, stride, tokens, token, features, feature);
    }
}

// Nothing to do but store the sums.
static inline bool is_plain(const Epilogue &e) {
    return e.alpha == 1 && e.beta == 0 && e.bias == nullptr && e.aux.data == nullptr &&
           e.activation == BSPARSE_EPILOGUE_NONE;
}
