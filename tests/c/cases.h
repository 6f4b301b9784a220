// The named cases of the C tests: the edges that every product, dtype, order and instruction set must pass.
#pragma once

#include "product.h"

// A mask of that many blocks with about `tenths` tenths of them stored.
inline std::string scattered(int block_rows, int block_cols, unsigned tenths) {
    std::string mask;
    unsigned state = 12345;
    for (int i = 0; i < block_rows; ++i) {
        mask += i == 0 ? "" : "/";
        for (int k = 0; k < block_cols; ++k) {
            state = state * 1103515245u + 12345u;
            mask += (state >> 16) % 10 < tenths ? 'x' : '.';
        }
    }
    return mask;
}

inline const std::vector<Case> &named_cases() {
    static const std::vector<Case> cases = {
        {"empty", 64, 48, 16, 16, ".../.../.../..."},
        {"full", 64, 48, 16, 16, "xxx/xxx/xxx/xxx"},
        {"one block", 64, 48, 16, 16, ".../.../.x./..."},
        {"dense row", 48, 80, 16, 16, "...../xxxxx/....."},
        {"dense column", 80, 48, 16, 16, ".x./.x./.x./.x./.x."},
        {"first row empty", 48, 48, 16, 16, ".../xx./.xx"},
        {"last row empty", 48, 48, 16, 16, "x.x/.x./..."},
        {"last column empty", 48, 48, 16, 16, "xx./.x./x.."},
        {"one element", 1, 1, 1, 1, "x"},
        {"zero tokens", 64, 48, 16, 16, "x.x/.x./..x/xxx", 0},
        {"one token", 64, 48, 16, 16, "x.x/.x./..x/xxx", 1},
        {"two tokens", 64, 48, 16, 16, "x.x/.x./..x/xxx", 2},
        {"three tokens", 64, 48, 16, 16, "x.x/.x./..x/xxx", 3},
        {"odd tokens", 64, 48, 16, 16, "x.x/.x./..x/xxx", 37},
        {"rounds of tokens", 10, 12, 8, 4, "xx./x.x", 1029},
        {"segments of a row", 3, 5000, 2, 25, scattered(2, 200, 9), 9},
        {"segments of a column", 5000, 3, 25, 2, scattered(200, 2, 9), 9},
        {"many tokens", 32, 32, 16, 16, "x./xx", 129},
        {"ragged", 70, 45, 16, 16, "x.x/.x./..x/xxx/.xx", 9},
        {"ragged rows", 33, 64, 32, 32, "xx/xx", 5},
        {"ragged columns", 64, 33, 32, 32, "xx/xx", 5},
        {"smaller than a block", 5, 3, 16, 32, "x", 4},
        {"blocks 1x1", 9, 13, 1, 1, scattered(9, 13, 4)},
        {"blocks 1x8", 7, 24, 1, 8, scattered(7, 3, 5)},
        {"blocks 8x1", 24, 7, 8, 1, scattered(3, 7, 5)},
        {"blocks 4x4", 20, 28, 4, 4, scattered(5, 7, 4)},
        {"blocks 7x5", 49, 35, 7, 5, scattered(7, 7, 4), 11},
        {"blocks 32x32", 96, 128, 32, 32, scattered(3, 4, 6), 19},
        {"blocks 64x64", 128, 128, 64, 64, "x./xx", 17},
        {"tall blocks 128x32", 256, 64, 128, 32, "x./.x", 10},
        {"wide blocks 16x128", 32, 256, 16, 128, "x./.x", 10},
        {"misaligned ld", 64, 96, 32, 32, "x.x/xx.", 19, 3},
        {"misaligned base", 64, 96, 32, 32, "x.x/xx.", 19, 0, 1},
        {"misaligned ragged", 61, 87, 16, 16, scattered(4, 6, 5), 5, 1, 3},
        {"work for threads", 256, 192, 16, 16, scattered(16, 12, 4), 200},
    };
    return cases;
}
