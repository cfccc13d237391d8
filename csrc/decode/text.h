#pragma once

#include "trie/trie.h"

#include <string>
#include <string_view>
#include <vector>

struct llama_vocab;

namespace [[gnu::visibility("default")]] token_trie {

// Bytes go in as tokens end, anywhere; complete UTF-8 characters come out. Bytes that can be none become U+FFFD.
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

// Text as it is written token by token, until one of some stop strings is in it, wherever in a token it begins:
//
//     tokens    He  llo␣  th  ere       stop string "o t"
//     kept      He                      rest "ll", to be tokenized anew
class WrittenText {
   public:
    // Throws Error (argument) if one of them is empty.
    explicit WrittenText(std::vector<std::string> stop_strings);

    // Adds the text of a token, and whether no character goes on after it. Returns whether a stop string is there
    // now.
    bool add(const std::string & more, bool is_whole);

    // Where one does: which.
    std::size_t stop_string() const noexcept { return which_; }
    // And what is before it, in no more tokens than max_tokens: those of the text that lie whole there, and those
    // of its rest, as many as may be and end with a character.
    struct End {
        std::size_t n_kept = 0;
        std::vector<Token> rest;
        bool is_cut = false;  // not all may be
    };
    End end(const llama_vocab * vocab, std::size_t max_tokens) const;

   private:
    std::size_t n_kept() const;

    std::vector<std::string> stop_strings_;
    std::string text_;
    std::vector<std::size_t> ends_;  // in the text, of tokens
    std::vector<bool> are_whole_;    // likewise
    std::size_t position_ = std::string::npos;
    std::size_t which_ = 0;
};

}  // namespace token_trie
