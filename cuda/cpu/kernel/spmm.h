// spmm and spmm_t: for each block row (column) the blocks of its list become panels, a segment of the list at a time,
// and the panels meet the tokens in tiles. Part of the kernel source: see kernel/all.h.

constexpr int kGroup = 2 * kLanes; // outer features of a panel

// Tokens whose sums are finished together: calls enough apart, but D's rows, which may stand kilobytes apart, still
// find room in the first-level cache. Sums made in D are finished tile by tile: they are there already.
constexpr int kFinishTokens = 12;

// One thread's memory.
struct SpmmScratch {
    Step steps[kSegmentInner];
    alignas(64) float panels[kSegmentInner * kGroup];
    alignas(64) float sums[kItemTokens * kGroup];
};

// Where a list is being read: block l, from its inner feature k on.
struct Cursor {
    int32_t l;
    int32_t k;
};

// What is packed: inner features [first, last) of a block, its outer ones from `feature` on.
struct BlockPart {
    int64_t block;
    int64_t ahead; // bytes from its values to those of the next block of the list
    int64_t first, last;
    int64_t feature;
};

// A block as a panel of `vectors` * kLanes outer features. The same places of the next block are fetched meanwhile:
// with few tokens packing waits for memory.
template <bsparse_dtype kDtype, bool kPairs, bool k24>
static void pack_panel(const SpmmTask &task, const BlockPart &part, int vectors, char *panel) {
    constexpr int64_t kStep = kPairs ? 2 : 1; // inner features of a panel's row
    const Rows<kDtype, k24> rows(task, part.block);
    const int64_t panel_row = vectors * sizeof(Vf);
    for (int v = 0; v < vectors; ++v) {
        const int64_t lane = part.feature + v * kLanes; // outer feature of lane 0
        char *to = panel + v * sizeof(Vf);
        if (task.transposed) { // outer features are columns: rows are copied
            const int64_t count = task.block_cols - lane;
            for (int64_t k = part.first; k < part.last; k += kStep, to += panel_row) {
                __builtin_prefetch(rows.values(k, lane) + part.ahead);
                const Vf even = rows.load(k, lane, count);
                store(to, kPairs ? pair_up(even, rows.load(k + 1, lane, count)) : as<Vu>(even));
            }
            continue;
        }
        for (int64_t k = part.first; k < part.last; k += kLanes * kStep, to += kLanes * panel_row) {
            const int64_t count = least((part.last - k) / kStep, kLanes); // rows of the panel
            Vu square[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                __builtin_prefetch(rows.values(lane + i, k) + part.ahead);
                square[i] = Vu{};
                if (lane + i < task.block_rows) {
                    square[i] = kPairs ? rows.load_pairs(lane + i, k, count) : as<Vu>(rows.load(lane + i, k, count));
                }
            }
            transpose(square);
            for (int i = 0; i < count; ++i) {
                store(to + i * panel_row, square[i]);
            }
        }
    }
}

template <bool k24> static void pack_part(const SpmmTask &task, const BlockPart &part, int vectors, char *panel) {
    switch (task.dtype) {
    case BSPARSE_F32:
        return pack_panel<BSPARSE_F32, false, k24>(task, part, vectors, panel);
    case BSPARSE_BF16:
        return task.pairs ? pack_panel<BSPARSE_BF16, true, k24>(task, part, vectors, panel)
                          : pack_panel<BSPARSE_BF16, false, k24>(task, part, vectors, panel);
    default:
        return pack_panel<BSPARSE_F16, false, k24>(task, part, vectors, panel);
    }
}

// Packs blocks from the cursor on until the list ends or the panels are full, and moves the cursor. Returns the steps.
static int64_t pack_segment(const SpmmTask &task, int32_t end, int64_t feature, int vectors, Cursor &at,
                            SpmmScratch &scratch) {
    const int32_t inner_block = task.transposed ? task.block_rows : task.block_cols;
    char *panel = reinterpret_cast<char *>(scratch.panels);
    int64_t steps = 0;
    int32_t left = kSegmentInner;
    while (at.l < end && left > 0) {
        const int64_t first = int64_t{task.minors[at.l]} * inner_block; // inner feature of the block's k = 0
        const int32_t valid = static_cast<int32_t>(least(inner_block, task.inner - first)); // x ends there
        const int32_t last = static_cast<int32_t>(least(valid, int64_t{at.k} + left));
        const bool is_24 = task.metadata != nullptr;
        const int64_t stored = int64_t{task.block_rows} * task.block_cols;
        const int64_t block_bytes = stored * bytes_of(task.dtype) / (is_24 ? 2 : 1); // of values
        const int64_t ahead = at.l + 1 < end ? (task.index[at.l + 1] - task.index[at.l]) * block_bytes : 0;
        const BlockPart part = {task.index[at.l], ahead, at.k, last, feature};
        is_24 ? pack_part<true>(task, part, vectors, panel) : pack_part<false>(task, part, vectors, panel);
        const int32_t count = (last - at.k) / (task.pairs ? 2 : 1);
        scratch.steps[steps++] = {panel, count, (first + at.k) * (task.pairs ? 2 : 4)};
        panel += count * vectors * sizeof(Vf);
        left -= last - at.k;
        at = last == valid ? Cursor{at.l + 1, 0} : Cursor{at.l, last};
    }
    return steps;
}

template <class Multiply> static TileFunction spmm_tile(int vectors, int64_t rows) {
    return vectors == 1 ? tile_of<Multiply, 1, false>(rows) : tile_of<Multiply, 2, false>(rows);
}

// The outer features [feature, feature + width) of one major's blocks, for the item's tokens.
template <class Multiply>
static void spmm_group(const SpmmTask &task, const SpmmItem &item, int32_t major, int64_t feature, int64_t width,
                       SpmmScratch &scratch) {
    const int32_t outer_block = task.transposed ? task.block_cols : task.block_rows;
    const int64_t first_feature = int64_t{major} * outer_block + feature; // of D
    const int64_t features = least(width, task.outer - first_feature);
    const int vectors = width > kLanes ? 2 : 1;
    const Epilogue &e = task.epilogue;
    // Sums are made in D itself where it can hold them and nothing there is needed.
    const bool in_place = holds_sums(e.d) && e.beta == 0 && features == vectors * kLanes;
    float *sums = in_place ? reinterpret_cast<float *>(at(e.d, item.first_token, first_feature)) : scratch.sums;
    const int64_t stride = in_place ? e.d.token_stride : vectors * kLanes;
    const int64_t a_stride = task.ldx * (task.pairs ? 2 : 4);
    const char *a = task.x + (item.first_token - task.first_token) * a_stride;
    const int64_t tokens = item.last_token - item.first_token;
    const int64_t most = most_rows(a_stride);

    Cursor cursor = {task.offsets[major], 0};
    const int32_t end = task.offsets[major + 1];
    bool more = false;
    do { // an empty list is one empty segment: D is written all the same
        const int64_t steps = pack_segment(task, end, feature, vectors, cursor, scratch);
        const bool done = cursor.l == end;
        int64_t finished = 0;
        for (int64_t t = 0; t < tokens;) {
            const int64_t rows = tile_rows(tokens - t, most);
            spmm_tile<Multiply>(vectors, rows)(scratch.steps, steps, a + t * a_stride, a_stride, sums + t * stride,
                                               stride, more);
            t += rows;
            const bool enough = in_place || t - finished >= kFinishTokens || t == tokens;
            if (done && enough && !(in_place && is_plain(e))) {
                const int64_t first_token = item.first_token + finished;
                finish(e, {sums + finished * stride, stride, first_token, t - finished, first_feature, features});
                finished = t;
            }
        }
        more = true;
    } while (cursor.l < end);
}

template <class Multiply> static void spmm_item(const SpmmTask &task, const SpmmItem &item, char *memory) {
    SpmmScratch &scratch = *reinterpret_cast<SpmmScratch *>(memory);
    const int64_t outer_block = task.transposed ? task.block_cols : task.block_rows;
    for (int32_t major = item.first_major; major < item.last_major; ++major) {
        const int64_t inside = least(outer_block, task.outer - major * outer_block);
        for (int64_t group = item.first_group; group < item.last_group && group * kGroup < inside; ++group) {
            spmm_group<Multiply>(task, item, major, group * kGroup, least(kGroup, outer_block - group * kGroup),
                                 scratch);
        }
    }
}

static void spmm(const SpmmTask &task, const SpmmItem &item, char *scratch) {
#if defined(__AVX512BF16__)
    if (task.pairs) {
        return spmm_item<MultiplyPairs>(task, item, scratch);
    }
#endif
    spmm_item<MultiplyF32>(task, item, scratch);
}
