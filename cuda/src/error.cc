#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace bsparse {
namespace {

// Long enough for every sentence of ours; a driver's own text may be cut at its end.
constexpr size_t kLongestSentence = 1024;

[[noreturn]] void throw_error(bsparse_status status, const char *format, va_list values) {
    char sentence[kLongestSentence];
    std::vsnprintf(sentence, sizeof(sentence), format, values);
    va_end(values);
    throw Error(status, sentence);
}

} // namespace

void invalid_argument(const char *format, ...) {
    va_list values;
    va_start(values, format);
    throw_error(BSPARSE_INVALID_ARGUMENT, format, values);
}

void unsupported(const char *format, ...) {
    va_list values;
    va_start(values, format);
    throw_error(BSPARSE_UNSUPPORTED, format, values);
}

void backend_error(const char *format, ...) {
    va_list values;
    va_start(values, format);
    throw_error(BSPARSE_BACKEND_ERROR, format, values);
}

} // namespace bsparse
