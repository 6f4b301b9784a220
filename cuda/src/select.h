// Which kernel family of the CUDA backend serves a product: the rules, without a device, so that they can be tested
// anywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "backend.h"

namespace bsparse::gpu {

enum class Kind { kDecode, kSm90, kSm80 };

constexpr int64_t kDecodeTokens = 64; // most tokens that the decode kernels take

// Whether f32 is multiplied as TF32: where the caller allows it.
bool multiplies_as_tf32(const bsparse_plan_desc &desc);

// The families worth making for a plan on an architecture (80, 86, 90, ...), best first; the last serves every run.
std::vector<Kind> candidates(const Plan &plan, int arch);

// Whether a candidate is meant for so many tokens.
bool suits(Kind kind, int64_t tokens);

} // namespace bsparse::gpu
