// How a thread waits for another that is about to be done.
#pragma once

namespace bsparse::cpu {

// How often a waiting thread looks before it sleeps: tens of microseconds (a pause takes 25 ns on the processors we
// measured), about what waking a thread takes.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

} // namespace bsparse::cpu
