#pragma once

#include <string>
#include <string_view>

namespace token_trie {

// Bytes go in as tokens end, anywhere; complete UTF-8 characters come out. What can be none becomes U+FFFD.
class Utf8Stream {
   public:
    // The characters that bytes complete, with what was held back before.
    std::string feed(std::string_view bytes);
    // Whether nothing is held back.
    bool is_whole() const noexcept { return held_.empty(); }
    void reset() { held_.clear(); }

   private:
    std::string held_;  // the beginning of a character, at most 3 bytes
};

}  // namespace token_trie
