// How a failure travels: thrown as Error inside the library, turned into a status and a
// sentence at the C ABI (api.cc). The sentence names field, value, rule and cure.
#pragma once

#include <exception>
#include <string>

#include "bsparse/bsparse.h"

namespace bsparse {

class Error : public std::exception {
public:
    Error(bsparse_status status, std::string sentence) : status_(status), sentence_(std::move(sentence)) {}
    const char *what() const noexcept override { return sentence_.c_str(); }
    bsparse_status status() const noexcept { return status_; }

private:
    bsparse_status status_;
    std::string sentence_;
};

// printf-style; never returns.
[[noreturn, gnu::format(printf, 1, 2)]] void invalid_argument(const char *format, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void unsupported(const char *format, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void backend_error(const char *format, ...);

} // namespace bsparse
