// Checks of one run's arguments: after them a backend may trust every pointer, size and leading dimension.
#pragma once

#include "backend.h"

namespace bsparse {

// Throws Error naming the field; args has been read by abi.h.
void check_args(const Plan &plan, const bsparse_args &args);

// The caller's buffer of a plan: present and aligned where its bytes are not 0.
void check_buffer(const void *buffer, size_t bytes, const char *field, const char *bytes_function);

// The arguments of pack, pack_at and unpack.
void check_pack(const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld, const void *values,
                const void *metadata);

// Metadata in host memory: there where the format has it, and every group's positions ascend.
void check_host_metadata(const Pattern &pattern, const void *metadata);

} // namespace bsparse
