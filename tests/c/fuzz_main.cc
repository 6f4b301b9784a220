// Drives a fuzz target without libFuzzer: files given as arguments are replayed, else random inputs are made, always
// the same ones. `fuzz_pattern_plan 100000` makes that many.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace {

constexpr size_t kLongestInput = 160;

void replay(const char *path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size());
}

void make_random_inputs(long count) {
    std::mt19937_64 random(1);
    std::vector<uint8_t> bytes;
    for (long i = 0; i < count; ++i) {
        bytes.resize(random() % kLongestInput);
        for (uint8_t &byte : bytes) {
            byte = static_cast<uint8_t>(random());
        }
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
}

} // namespace

int main(int argc, char **argv) {
    const long count = argc == 2 ? std::strtol(argv[1], nullptr, 10) : 0;
    if (count > 0) {
        make_random_inputs(count);
        return 0;
    }
    for (int i = 1; i < argc; ++i) {
        replay(argv[i]);
    }
    return 0;
}
