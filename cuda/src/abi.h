// Reading sized structs, from callers older and newer than this library.
#pragma once

#include <cstddef>
#include <cstring>

#include "bsparse/bsparse.h"
#include "error.h"

namespace bsparse {

// Name in messages, and the size that ABI 1 began with: no caller can be older than that.
template <class Struct> struct SizedStruct;

template <> struct SizedStruct<bsparse_context_desc> {
    static constexpr const char *kName = "context_desc";
    static constexpr size_t kFirstSize = offsetof(bsparse_context_desc, cpu_isa) + sizeof(bsparse_cpu_isa);
};

template <> struct SizedStruct<bsparse_pattern_desc> {
    static constexpr const char *kName = "pattern_desc";
    static constexpr size_t kFirstSize = offsetof(bsparse_pattern_desc, col_indices) + sizeof(const int32_t *);
};

template <> struct SizedStruct<bsparse_plan_desc> {
    static constexpr const char *kName = "plan_desc";
    static constexpr size_t kFirstSize = offsetof(bsparse_plan_desc, flags) + sizeof(int32_t);
};

template <> struct SizedStruct<bsparse_args> {
    static constexpr const char *kName = "args";
    static constexpr size_t kFirstSize = offsetof(bsparse_args, d_stride) + sizeof(int64_t);
};

// No struct of any version is larger: a greater struct_size is an uninitialised one, not a newer caller's.
constexpr size_t kLargestStruct = 4096;

// A complete copy of *given: fields that an older caller does not know are zero, which always means the old
// behaviour. Never reads past struct_size.
template <class Struct> Struct read_sized(const Struct *given) {
    constexpr const char *name = SizedStruct<Struct>::kName;
    if (given == nullptr) {
        invalid_argument("%s is NULL: pass a bsparse_%s with struct_size set to its sizeof", name, name);
    }
    const size_t size = given->struct_size;
    if (size < SizedStruct<Struct>::kFirstSize || size > kLargestStruct) {
        invalid_argument("%s.struct_size is %zu; it must be the size of the struct, %zu in this version: set it to "
                         "sizeof(bsparse_%s)",
                         name, size, sizeof(Struct), name);
    }
    const auto *bytes = reinterpret_cast<const unsigned char *>(given);
    for (size_t i = sizeof(Struct); i < size; ++i) {
        if (bytes[i] != 0) {
            unsupported("%s.struct_size is %zu, %zu in this version, and a field that only a newer version knows is "
                        "not zero (byte %zu): leave that field zero, or use a newer libbsparse",
                        name, size, sizeof(Struct), i);
        }
    }
    Struct copy{};
    std::memcpy(&copy, given, size < sizeof(Struct) ? size : sizeof(Struct));
    return copy;
}

} // namespace bsparse
