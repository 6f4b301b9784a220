// Dense to 2:4 and back on the CPU. Arguments are validated, metadata too, before they come here.
#pragma once

#include "../src/backend.h"

namespace bsparse::cpu {

void pack_24(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
             void *values, uint8_t *metadata);
void pack_24_at(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
                const uint8_t *metadata, void *values);
void unpack_24(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values,
               const uint8_t *metadata, void *dense, int64_t ld);

} // namespace bsparse::cpu
