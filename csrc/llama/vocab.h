#pragma once

#include "cursor/cursor.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

struct llama_vocab;

namespace [[gnu::visibility("default")]] token_trie {

// A value that is computed when it is first needed; callers that need it meanwhile wait. A failure leaves it to the
// next, as std::call_once does not everywhere: where that is pthread_once, it may never return again (GCC's bug 66146).
template <typename Value>
class Lazy {
   public:
    template <typename Compute>
    const Value & get(Compute && compute) const {
        if (!is_there_.load(std::memory_order_acquire)) {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!is_there_.load(std::memory_order_relaxed)) {
                value_ = compute();
                is_there_.store(true, std::memory_order_release);
            }
        }
        return value_;
    }

   private:
    mutable std::mutex mutex_;
    mutable std::atomic<bool> is_there_{false};
    mutable Value value_{};
};

// A model's vocabulary and what this library derives from it, each fact computed when it is first needed. Valid as
// long as the model lives, which is the owner's to see to: nothing is remembered by a vocabulary's address, where
// another may be after a reload. Safe across threads.
//
// The fingerprint is of the texts of the tokens, the meaning of sequences, and is the same for a base model and those
// tuned from it whose tokens differ in what they are for.
class Vocab {
   public:
    // null: of unknown size, without texts and end-of-generation tokens.
    explicit Vocab(const llama_vocab * vocab) noexcept : vocab_(vocab) {}

    const llama_vocab * get() const noexcept { return vocab_; }
    // 0 if null.
    std::int32_t size() const;
    // As token_trie.h defines it, "sha256:" and 64 hex digits; "" without texts.
    const std::string & fingerprint() const;
    // Whether this is a token that is no text; false for what is no token.
    bool is_control(Token token) const;
    // Ascending.
    const std::vector<Token> & end_of_generation() const;
    // Tokens that are no text, or end a generation, or are written as these are (<|message|>, which llama.cpp has as
    // user-defined), and the unknown one; ascending, each with the text that llama.cpp reads it from, none empty.
    std::vector<std::pair<Token, std::string>> control_texts() const;

   private:
    const llama_vocab * vocab_;
    Lazy<std::string> fingerprint_;
    Lazy<std::vector<Token>> end_of_generation_;
};

// Throws Error (vocab) if the tokens cannot belong to this vocabulary, naming the leaf, the list or the identities.
void check_vocab(const Trie & trie, const Vocab & vocab);
void check_vocab(const FollowSet & follow, const Vocab & vocab);

// The tokens of each text as llama.cpp tokenizes it, one leaf a text, unnamed. Control tokens come of their text
// with special alone. Throws Error (vocab) naming `what[i]` where the tokens do not spell the text, such as an unknown
// character, or where without special there is one for control among them. check is called now and then on the calling
// thread; what it throws ends the call.
LeafList tokenize(const llama_vocab * vocab,
                  const std::vector<std::string> & texts,
                  const std::string & what,
                  bool special = false,
                  const std::function<void()> & check = nullptr);

// The bytes that tokens stand for; control tokens as their text, or with special = false as none. Throws Error (vocab)
// on a token outside the vocabulary.
std::string detokenize(const llama_vocab * vocab, const Token * tokens, std::size_t n, bool special);
inline std::string detokenize(const llama_vocab * vocab, const std::vector<Token> & tokens, bool special = true) {
    return detokenize(vocab, tokens.data(), tokens.size(), special);
}

}  // namespace token_trie
