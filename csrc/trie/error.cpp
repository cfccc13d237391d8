#include "trie/error.h"

namespace token_trie {

std::string quote(std::string_view text) {
    constexpr std::size_t max_bytes = 80;
    std::string out = "\"";
    if (text.size() <= max_bytes) {
        out.append(text);
    } else {
        std::size_t end = max_bytes;
        while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
            --end;
        }
        out.append(text.substr(0, end)).append("...");
    }
    return out += '"';
}

}  // namespace token_trie
