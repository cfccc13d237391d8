#pragma once

#include "trie/payload.h"

#include <cstdint>
#include <string>
#include <vector>

namespace token_trie {

// Where the reader of a payload stands: what is open around it, how far each array is, and which keys it has met.
//
//     {"modelId": "m", "descriptors": [{"path": "p", "leaves": [{"name": "a", "tokens": [7, 8]}]}]}
//      root                            descriptor              leaf                      |
//                                                                 descriptors[0].leaves[0].tokens[0]
class PayloadPlace {
   public:
    enum class At { document, root, descriptors, descriptor, leaves, leaf, tokens, skipped };
    enum class Key { unknown, model_id, vocab, descriptors, path, tokenization, leaves, name, tokens, text };

    At at() const noexcept { return stack_.back(); }
    // The key whose value is read; unknown in arrays, and where none of ours may stand.
    Key key() const noexcept { return key_; }
    // Whether the object around has had this key.
    bool has(Key key) const noexcept { return (seen_.back() & bit_of(key)) != 0; }
    // Of the array around what is open, the element that this is.
    std::uint64_t index() const noexcept { return index_[index_.size() - 2]; }

    // What a value here has to be; nullptr if anything may stand here.
    const char * expected() const noexcept;
    // Such as descriptors[0].leaves[3].tokens[1] or descriptors[0].path.
    std::string name() const;
    // The same without the key.
    std::string name_of_open() const;

    // Throws Error (limit) where nesting is too deep.
    void open(At inner) {
        check_depth();
        stack_.push_back(inner);
        seen_.push_back(0);
        index_.push_back(0);
        forget_key();
    }
    void close() noexcept {
        stack_.pop_back();
        seen_.pop_back();
        index_.pop_back();
        forget_key();
        next();
    }
    // Behind a value: the array around, if it is one, moves on to its next element.
    void next() noexcept { ++index_.back(); }
    // At a key. Throws Error (payload) on one of ours that stands twice.
    void take_key(const std::string & name);

   private:
    static unsigned bit_of(Key key) noexcept { return 1U << static_cast<unsigned>(key); }
    Key known(const std::string & name) const;
    void check_depth() const {
        if (stack_.size() > kMaxPayloadDepth) {
            fail_too_deep();
        }
    }
    [[noreturn]] void fail_too_deep() const;
    void forget_key() noexcept {
        key_ = Key::unknown;
        key_text_.clear();
    }

    std::vector<At> stack_{At::document};
    std::vector<unsigned> seen_{0};        // one bit a known key, for each open object
    std::vector<std::uint64_t> index_{0};  // values seen, for each open array
    Key key_ = Key::unknown;
    std::string key_text_;
};

}  // namespace token_trie
