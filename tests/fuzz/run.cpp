#include "fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t * data, std::size_t size) {
    token_trie::fuzz::Input in(data, size);
    token_trie::fuzz::run(in);
    return 0;
}
