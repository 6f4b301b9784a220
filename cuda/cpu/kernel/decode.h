// spmm and spmm_t for a few tokens, where reading the values is the whole cost: each is read once, in the order of
// memory, converted on the way, and used for all tokens. Part of the kernel source: see kernel/all.h.

// The sums of one group of outer features.
struct DecodeScratch {
    Vf partial[kGroup * kFewTokens]; // spmm: [kGroup][tokens] vectors whose lanes are still to be added up
    alignas(64) float sums[kFewTokens * kGroup]; // [tokens][kGroup]
};

// spmm: rows of a block times x, lanes along the row: partial[i][t] += S[first + i][k] * x[t][k].
template <bsparse_dtype kDtype, int Tokens, bool k24>
static void dot_block(const Rows<kDtype, k24> &block, int64_t first, int64_t rows, const char *x, int64_t x_stride,
                      int64_t count, DecodeScratch &scratch) {
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t i = 0; i < rows; ++i) {
        Vf sum[Tokens];
#pragma GCC unroll 8
        for (int t = 0; t < Tokens; ++t) {
            sum[t] = scratch.partial[i * Tokens + t];
        }
        for (int64_t k = 0; k < whole; k += kLanes) {
            const Vf s = block.load(first + i, k, kLanes);
#pragma GCC unroll 8
            for (int t = 0; t < Tokens; ++t) {
                sum[t] += s * load<Vf>(x + t * x_stride + k * 4);
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < Tokens; ++t) {
            scratch.partial[i * Tokens + t] = sum[t];
        }
    }
}

// The rest of dot_block, where a row is no multiple of the lanes.
template <bsparse_dtype kDtype, bool k24>
static void dot_tail(const Rows<kDtype, k24> &block, int64_t first, int64_t rows, int tokens, const char *x,
                     int64_t x_stride, int64_t count, DecodeScratch &scratch) {
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t i = 0; i < rows; ++i) {
        const Vf s = block.load(first + i, whole, count - whole);
        for (int t = 0; t < tokens; ++t) {
            scratch.partial[i * tokens + t] +=
                s * load_as_f32<BSPARSE_F32>(x + t * x_stride + whole * 4, 1, count - whole);
        }
    }
}

// Adds up the lanes of partial[i][t] into sums[t][i].
static void add_lanes(int tokens, DecodeScratch &scratch) {
    for (int t = 0; t < tokens; ++t) {
        for (int first = 0; first < kGroup; first += kLanes) {
            Vu square[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                square[i] = as<Vu>(scratch.partial[(first + i) * tokens + t]);
            }
            transpose(square);
            Vf sum = {};
            for (int i = 0; i < kLanes; ++i) {
                sum += as<Vf>(square[i]);
            }
            store(scratch.sums + t * kGroup + first, sum);
        }
    }
}

// spmm_t: rows of a block scaled by x, lanes along the row: sums[t][j] += S[i][first + j] * x[t][i].
template <bsparse_dtype kDtype, int Tokens, bool Whole, bool k24>
static void scale_rows(const Rows<kDtype, k24> &block, int64_t first, int64_t columns, const char *x, int64_t x_stride,
                       int64_t count, DecodeScratch &scratch) {
    Vf sum[Tokens][2];
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) {
        sum[t][0] = load<Vf>(scratch.sums + t * kGroup);
        sum[t][1] = load<Vf>(scratch.sums + t * kGroup + kLanes);
    }
    const int64_t low_count = Whole ? kLanes : columns, high_count = Whole ? kLanes : columns - kLanes;
    for (int64_t i = 0; i < count; ++i) {
        const Vf low = block.load(i, first, low_count);
        const Vf high = block.load(i, first + kLanes, high_count);
#pragma GCC unroll 8
        for (int t = 0; t < Tokens; ++t) {
            const float number = load<float>(x + t * x_stride + i * 4);
            sum[t][0] += low * number;
            sum[t][1] += high * number;
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) {
        store(scratch.sums + t * kGroup, sum[t][0]);
        store(scratch.sums + t * kGroup + kLanes, sum[t][1]);
    }
}

template <bsparse_dtype kDtype, int Tokens, bool k24>
static void decode_group(const SpmmTask &task, const SpmmItem &item, int32_t major, int64_t feature,
                         DecodeScratch &scratch) {
    const int64_t outer_block = task.transposed ? task.block_cols : task.block_rows;
    const int64_t inner_block = task.transposed ? task.block_rows : task.block_cols;
    const int64_t first_feature = major * outer_block + feature;
    const int64_t width = least(kGroup, outer_block - feature);
    const int64_t x_stride = task.ldx * 4;
    const char *x = task.x + (item.first_token - task.first_token) * x_stride;
    if (task.transposed) {
        __builtin_memset(scratch.sums, 0, sizeof(scratch.sums));
    } else {
        __builtin_memset(scratch.partial, 0, kGroup * Tokens * sizeof(Vf));
    }
    for (int32_t l = task.offsets[major]; l < task.offsets[major + 1]; ++l) {
        const int64_t first = task.minors[l] * inner_block;
        const int64_t count = least(inner_block, task.inner - first);
        const Rows<kDtype, k24> block(task, task.index[l]);
        const char *numbers = x + first * 4;
        if (task.transposed && width == kGroup) {
            scale_rows<kDtype, Tokens, true>(block, feature, width, numbers, x_stride, count, scratch);
        } else if (task.transposed) {
            scale_rows<kDtype, Tokens, false>(block, feature, width, numbers, x_stride, count, scratch);
        } else {
            dot_block<kDtype, Tokens>(block, feature, width, numbers, x_stride, count, scratch);
            if (count % kLanes != 0) {
                dot_tail(block, feature, width, Tokens, numbers, x_stride, count, scratch);
            }
        }
    }
    if (!task.transposed) {
        add_lanes(Tokens, scratch);
    }
    const int64_t features = least(width, task.outer - first_feature);
    finish(task.epilogue, {scratch.sums, kGroup, item.first_token, Tokens, first_feature, features});
}

template <bsparse_dtype kDtype, int Tokens, bool k24>
static void decode_item(const SpmmTask &task, const SpmmItem &item, DecodeScratch &scratch) {
    const int64_t outer_block = task.transposed ? task.block_cols : task.block_rows;
    for (int32_t major = item.first_major; major < item.last_major; ++major) {
        const int64_t inside = least(outer_block, task.outer - major * outer_block);
        for (int64_t group = item.first_group; group < item.last_group && group * kGroup < inside; ++group) {
            decode_group<kDtype, Tokens, k24>(task, item, major, group * kGroup, scratch);
        }
    }
}

// The kernel of the item's number of tokens, 1 to kFewTokens.
template <bsparse_dtype kDtype, bool k24, int Tokens = kFewTokens>
static void decode_of(const SpmmTask &task, const SpmmItem &item, char *scratch) {
    if constexpr (Tokens > 1) {
        if (item.last_token - item.first_token < Tokens) {
            return decode_of<kDtype, k24, Tokens - 1>(task, item, scratch);
        }
    }
    decode_item<kDtype, Tokens, k24>(task, item, *reinterpret_cast<DecodeScratch *>(scratch));
}

template <bool k24> static void decode_format(const SpmmTask &task, const SpmmItem &item, char *scratch) {
    switch (task.dtype) {
    case BSPARSE_F32:
        return decode_of<BSPARSE_F32, k24>(task, item, scratch);
    case BSPARSE_BF16:
        return decode_of<BSPARSE_BF16, k24>(task, item, scratch);
    default:
        return decode_of<BSPARSE_F16, k24>(task, item, scratch);
    }
}

static void decode(const SpmmTask &task, const SpmmItem &item, char *scratch) {
    task.metadata != nullptr ? decode_format<true>(task, item, scratch) : decode_format<false>(task, item, scratch);
}
