// The micro-kernel of all three products: Rows x Vectors sums, kept in registers over a whole list of panels.
// Lanes run along a panel's features; each number of `a` is broadcast to them. For spmm and spmm_t a is x, read in
// place, and a panel is a block; for sddmm a is a strip of A, and the one panel is a strip of B.
// Part of the kernel source: see kernel/all.h.

// One panel: `count` rows (or pairs of rows) of Vectors * kLanes numbers (or pairs).
struct Step {
    const char *panel;
    int32_t count;
    int64_t offset; // bytes from a to the panel's first row's number
};

struct MultiplyF32 {
    using Panel = Vf;
    static Vf add(Vf sum, Vf panel, const char *a) { return sum + panel * load<float>(a); }
};

#if defined(__AVX512BF16__)
struct MultiplyPairs { // of bf16: lanes hold rows 2k and 2k + 1; the instruction takes subnormal numbers for zero
    using Panel = __m512bh;
    static Vf add(Vf sum, Panel panel, const char *a) {
        return as<Vf>(_mm512_dpbf16_ps(as<__m512>(sum), panel, as<Panel>(broadcast(load<uint32_t>(a)))));
    }
};
#endif

// a's numbers of one row stand a_stride bytes apart, those of the next row 4 bytes on (Outer: the other way round).
// sums [Rows][sums_stride], in f32; `more` adds to what is there.
using TileFunction = void (*)(const Step *steps, int64_t count, const char *a, int64_t a_stride, float *sums,
                              int64_t sums_stride, bool more);

template <class Multiply, int Rows, int Vectors, bool Outer>
static void tile(const Step *steps, int64_t count, const char *a, int64_t a_stride, float *sums, int64_t sums_stride,
                 bool more) {
    Vf sum[Rows][Vectors];
#pragma GCC unroll 24
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            sum[r][v] = more ? load<Vf>(sums + r * sums_stride + v * kLanes) : Vf{};
        }
    }
    for (const Step *step = steps; step < steps + count; ++step) {
        const char *panel = step->panel;
        const char *row = a + step->offset;
        for (int32_t k = 0; k < step->count; ++k) {
            typename Multiply::Panel p[Vectors];
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) {
                p[v] = load<typename Multiply::Panel>(panel + v * sizeof(Vf));
            }
#pragma GCC unroll 24
            for (int r = 0; r < Rows; ++r) {
                const char *number = row + (Outer ? r * 4 : r * a_stride);
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) {
                    sum[r][v] = Multiply::add(sum[r][v], p[v], number);
                }
            }
            panel += Vectors * sizeof(Vf);
            row += Outer ? a_stride : 4;
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            store(sums + r * sums_stride + v * kLanes, sum[r][v]);
        }
    }
}

// Sums that fit the registers beside a panel's row and a broadcast number: 24 of 32, or 12 of 16.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;

// The tile of so many rows, 1 to kTileRows.
template <class Multiply, int Vectors, bool Outer, int Rows = kTileRows> static TileFunction tile_of(int64_t rows) {
    if constexpr (Rows > 1) {
        if (rows < Rows) {
            return tile_of<Multiply, Vectors, Outer, Rows - 1>(rows);
        }
    }
    return tile<Multiply, Rows, Vectors, Outer>;
}

// Rows of the next tile: as few tiles as possible, of sizes that differ by one at most.
static inline int64_t tile_rows(int64_t left, int64_t most) {
    const int64_t tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

// Rows of `a` 4 KiB apart fall into the same set of an 8-way first-level cache: with more than 8 each broadcast would
// miss it (measured: 108 instead of 118 GFLOP/s, and worse from L3).
static inline int64_t most_rows(int64_t a_stride) {
    const int64_t past = a_stride & 4095;
    return past < 16 || past > 4080 ? least(kTileRows, 8) : kTileRows;
}
