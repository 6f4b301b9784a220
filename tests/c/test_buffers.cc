// The checks of schedule and workspace from inside, whatever a backend of today needs of them.
#include "args.h"
#include "check.h"
#include "error.h"

namespace {

// The sentence that a buffer of 128 bytes gets; "" if it is accepted.
std::string sentence(const void *buffer) {
    try {
        bsparse::check_buffer(buffer, 128, "workspace", "bsparse_plan_workspace_bytes");
    } catch (const bsparse::Error &error) {
        CHECK(error.status() == BSPARSE_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

bool holds(const std::string &text, const char *words) { return text.find(words) != std::string::npos; }

void test_missing() {
    const std::string text = sentence(nullptr);
    CHECK(holds(text, "workspace is NULL") && holds(text, "128 bytes") && holds(text, "bsparse_plan_workspace_bytes"));
}

void test_misaligned() {
    alignas(64) const char memory[256] = {};
    CHECK(sentence(memory).empty());
    const std::string text = sentence(memory + 32);
    CHECK(holds(text, "workspace is 0x") && holds(text, "multiple of 64") && holds(text, "aligned_alloc(64, ...)"));
}

void test_nothing_needed() { bsparse::check_buffer(nullptr, 0, "schedule", "bsparse_plan_schedule_bytes"); }

} // namespace

int main() {
    test_missing();
    test_misaligned();
    test_nothing_needed();
    return 0;
}
