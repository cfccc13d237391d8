#pragma once

namespace [[gnu::visibility("default")]] token_trie {

// A base of classes that are not copied, as they own something or their address counts.
class NonCopyable {
   public:
    NonCopyable(const NonCopyable &) = delete;
    NonCopyable & operator=(const NonCopyable &) = delete;

   protected:
    NonCopyable() = default;
    ~NonCopyable() = default;
};

}  // namespace token_trie
