#pragma once

#include "trie/cache.h"

#include <atomic>

namespace [[gnu::visibility("default")]] token_trie {

// A trie with what it was read from, held by handles on either side of the C ABI: what struct token_trie_set is there.
// Immutable, so any number of threads may use one, and whoever took its trie needs the set no more.
//
//     payload  "action": READ, WRITE    whole     READ, WRITE, Oslo
//              "city":   Oslo           by path   "action": READ, WRITE   "city": Oslo
class Set {
   public:
    // Of one trie, without paths.
    explicit Set(std::shared_ptr<const Trie> trie) : whole_(std::move(trie)) {}
    // All paths of a payload, read at once, and kept in the cache. Throws what the cache does.
    Set(std::string_view json, std::int32_t n_vocab, const Cache::FindLexicon & lexicon);

    // Throws Error (argument) where descriptors in tokens and in texts do not make one set, so that a path is needed.
    const std::shared_ptr<const Trie> & whole() const;
    // Null for the whole. Throws Error (argument) for a path that no descriptor has.
    const std::shared_ptr<const Trie> & at(const char * path) const;
    const TrieSets & by_path() const noexcept { return by_path_; }

    // A handle is one reference; a new set has one.
    void retain() const noexcept { n_references_.fetch_add(1, std::memory_order_relaxed); }
    // The last deletes it.
    void release() const noexcept;

   private:
    std::shared_ptr<const Trie> whole_;
    TrieSets by_path_;
    mutable std::atomic<std::uint64_t> n_references_{1};
};

}  // namespace token_trie
