// Bad input and the sentence it gets: the field, its value, and the cure. Nothing is written on failure.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "inputs.h"

struct BadInput {
    void (*spoil)(Inputs &);
    bsparse_status status;
    std::vector<const char *> words; // in the order of the sentence
    bsparse_op op = BSPARSE_SPMM;
};

inline void check_bad(const BadInput &bad, const char *table, size_t row) {
    Inputs inputs(bad.op);
    bad.spoil(inputs);
    const std::vector<float> tall = inputs.tall, flat = inputs.flat, values = inputs.values;
    const Answer answer = inputs.run();
    const char *rest = answer.sentence.c_str();
    bool good = answer.status == bad.status;
    for (const char *word : bad.words) {
        rest = rest == nullptr ? nullptr : std::strstr(rest, word);
        good = good && rest != nullptr;
    }
    if (!good) {
        std::fprintf(stderr, "%s row %zu: %s: %s\n", table, row, bsparse_status_name(answer.status),
                     answer.sentence.c_str());
        std::exit(1);
    }
    CHECK(tall == inputs.tall && flat == inputs.flat && values == inputs.values);
}

template <size_t n> void check_table(const BadInput (&bad)[n], const char *table) {
    for (size_t row = 0; row < n; ++row) {
        check_bad(bad[row], table, row);
    }
}
