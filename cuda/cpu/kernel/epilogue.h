// From sums to results: alpha, beta * C, bias, aux, activation, conversion and store, in one pass over a small tile.
// Part of the kernel source: see kernel/all.h.

static inline char *at(const Dense &dense, int64_t token, int64_t feature) {
    return dense.data + (token * dense.token_stride + feature * dense.feature_stride) * bytes_of(dense.dtype);
}

// D can hold the sums themselves while they are made: a row of f32 for each token.
static inline bool holds_sums(const Dense &d) { return d.dtype == BSPARSE_F32 && d.feature_stride == 1; }

// A part of D: what its sums are and where they go.
struct Sums {
    const float *data; // [tokens][stride], in whole vectors
    int64_t stride;
    int64_t first_token, tokens;
    int64_t first_feature, features;
};

// One vector of features of each token, where C, aux, a stride or a narrow end make it slow.
template <bsparse_epilogue kActivation>
static void finish_any(const Epilogue &e, const Sums &sums, int64_t f, Vf bias) {
    const int64_t count = sums.features - f;
    const int64_t feature = sums.first_feature + f;
    for (int64_t t = 0; t < sums.tokens; ++t) {
        const int64_t token = sums.first_token + t;
        Vf x = load<Vf>(sums.data + t * sums.stride + f) * e.alpha;
        if (e.beta != 0) {
            x += e.beta * load_f32(at(e.c, token, feature), e.c.feature_stride, count, e.c.dtype);
        }
        x += bias;
        if (e.aux.data != nullptr) {
            store_f32(at(e.aux, token, feature), e.aux.feature_stride, count, e.aux.dtype, x);
        }
        store_f32(at(e.d, token, feature), e.d.feature_stride, count, e.d.dtype, activate<kActivation>(x));
    }
}

template <bsparse_epilogue kActivation, bsparse_dtype kDtype>
static void finish_part(const Epilogue &e, const Sums &sums) {
    const bool fast = e.beta == 0 && e.aux.data == nullptr && e.d.feature_stride == 1;
    for (int64_t f = 0; f < sums.features; f += kLanes) {
        const int64_t count = sums.features - f;
        Vf bias = {};
        if (e.bias != nullptr) {
            bias = load_f32(e.bias + (sums.first_feature + f) * bytes_of(e.bias_dtype), 1, count, e.bias_dtype);
        }
        if (!fast || count < kLanes) {
            finish_any<kActivation>(e, sums, f, bias);
            continue;
        }
        // Copies, as what is stored through `to` might change the originals for all that the compiler knows.
        const float alpha = e.alpha;
        const float *from = sums.data + f;
        const int64_t from_stride = sums.stride;
        char *to = at(e.d, sums.first_token, sums.first_feature + f);
        const int64_t to_stride = e.d.token_stride * bytes_of(kDtype);
        for (int64_t left = sums.tokens; left > 0; --left, from += from_stride, to += to_stride) {
            store_as<kDtype>(to, activate<kActivation>(load<Vf>(from) * alpha + bias));
        }
    }
}

template <bsparse_epilogue kActivation> static void finish_as(const Epilogue &e, const Sums &sums) {
    switch (e.d.dtype) {
    case BSPARSE_F32:
        return finish_part<kActivation, BSPARSE_F32>(e, sums);
    case BSPARSE_BF16:
        return finish_part<kActivation, BSPARSE_BF16>(e, sums);
    default:
        return finish_part<kActivation, BSPARSE_F16>(e, sums);
    }
}

static void finish(const Epilogue &e, const Sums &sums) {
    switch (e.activation) {
    case BSPARSE_EPILOGUE_RELU:
        return finish_as<BSPARSE_EPILOGUE_RELU>(e, sums);
    case BSPARSE_EPILOGUE_GELU:
        return finish_as<BSPARSE_EPILOGUE_GELU>(e, sums);
    case BSPARSE_EPILOGUE_GELU_TANH:
        return finish_as<BSPARSE_EPILOGUE_GELU_TANH>(e, sums);
    case BSPARSE_EPILOGUE_SILU:
        return finish_as<BSPARSE_EPILOGUE_SILU>(e, sums);
    default:
        return finish_as<BSPARSE_EPILOGUE_NONE>(e, sums);
    }
}

// Nothing to do but store the sums.
static inline bool is_plain(const Epilogue &e) {
    return e.alpha == 1 && e.beta == 0 && e.bias == nullptr && e.aux.data == nullptr &&
           e.activation == BSPARSE_EPILOGUE_NONE;
}
