#include "decode/utf8.h"

#include <cstdint>

namespace token_trie {
namespace {

struct Range {
    std::uint8_t low;
    std::uint8_t high;
    bool holds(std::uint8_t byte) const { return low <= byte && byte <= high; }
};

// Length of a character that begins with this byte, 0 if none does, and where its second byte must lie
// (Unicode 15, table 3-7).
std::size_t length_of(std::uint8_t lead, Range & second) {
    second = {0x80, 0xBF};
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        second = lead == 0xE0 ? Range{0xA0, 0xBF} : lead == 0xED ? Range{0x80, 0x9F} : second;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        second = lead == 0xF0 ? Range{0x90, 0xBF} : lead == 0xF4 ? Range{0x80, 0x8F} : second;
        return 4;
    }
    return 0;
}

}  // namespace

std::string Utf8Stream::feed(std::string_view bytes) {
    held_ += bytes;
    std::string out;
    std::size_t at = 0;
    while (at < held_.size()) {
        Range range{};
        const std::size_t length = length_of(static_cast<std::uint8_t>(held_[at]), range);
        std::size_t n = 1;
        while (n < length && at + n < held_.size() && range.holds(static_cast<std::uint8_t>(held_[at + n]))) {
            range = {0x80, 0xBF};
            ++n;
        }
        if (n == length) {
            out.append(held_, at, n);
        } else if (length != 0 && at + n == held_.size()) {
            break;  // its rest may come with the next token
        } else {
            out += "\xEF\xBF\xBD";
        }
        at += n;
    }
    held_.erase(0, at);
    return out;
}

}  // namespace token_trie
