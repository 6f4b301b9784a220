/* What every test here needs: a check that says where it failed. C99 and C++. */
#ifndef BSPARSE_TESTS_CHECK_H
#define BSPARSE_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "bsparse/bsparse.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition,               \
                    bsparse_last_error());                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
