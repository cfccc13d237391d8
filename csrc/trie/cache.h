#pragma once

#include "trie/trie.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// The tries of a payload, by their descriptors' paths.
using TrieSets = std::map<std::string, std::shared_ptr<const Trie>>;

// The tries used last, keyed by the SHA-256 of the payload and path they were read from. Safe across threads; a lock is
// held for a look-up of at most 128 keys, never while a trie is built.
class Cache {
   public:
    static constexpr std::size_t kCapacity = 128;

    using Stats = token_trie_cache_stats;

    // The one of this process.
    static Cache & shared();

    // The payload's trie, built now if it is not here. n_vocab > 0 refuses token ids from n_vocab on, also on a hit.
    // Throws what read_payload and Trie::build throw, and then keeps nothing.
    std::shared_ptr<const Trie> get(std::string_view json,
                                    const std::optional<std::string> & path,
                                    std::int32_t n_vocab);

    // The payload's tries, one a path, read all at once if one is not here.
    TrieSets get_paths(std::string_view json, std::int32_t n_vocab);

    Stats stats() const;
    void clear();

   private:
    using Key = std::array<unsigned char, 32>;
    struct Entry {
        Key key;
        std::shared_ptr<const Trie> trie;
    };

    static Key key_of(std::string_view json, const std::optional<std::string> & path);
    std::shared_ptr<const Trie> find(const Key & key);
    // Empty if one is not here, or does not fit the vocabulary.
    TrieSets find_paths(const Key & whole, std::string_view json, std::int32_t n_vocab);
    std::shared_ptr<const Trie> insert(const Key & key, std::shared_ptr<const Trie> trie);

    mutable std::mutex mutex_;
    std::vector<Entry> entries_;                     // used last first
    std::map<Key, std::vector<std::string>> paths_;  // for payloads that were read by path
    Stats counts_{};
};

}  // namespace token_trie

// A trie with what it was read from, as the C ABI hands it out. Immutable, so any number of threads may use one; its
// tries may outlive it.
//
//     payload  "action": READ, WRITE    whole     READ, WRITE, Oslo
//              "city":   Oslo           by path   "action": READ, WRITE   "city": Oslo
struct [[gnu::visibility("default")]] token_trie_set {
   public:
    // A set of one trie, without paths.
    explicit token_trie_set(std::shared_ptr<const token_trie::Trie> trie) : whole_(std::move(trie)) {}
    // All paths of a payload, read at once, and kept in the cache. Throws what the cache does.
    token_trie_set(std::string_view json, std::int32_t n_vocab);

    const std::shared_ptr<const token_trie::Trie> & whole() const noexcept { return whole_; }
    // Null for the whole. Throws Error (argument) for a path that no descriptor has.
    const std::shared_ptr<const token_trie::Trie> & at(const char * path) const;
    const token_trie::TrieSets & by_path() const noexcept { return by_path_; }

   private:
    std::shared_ptr<const token_trie::Trie> whole_;
    token_trie::TrieSets by_path_;
};

namespace token_trie {
using Set = ::token_trie_set;
}  // namespace token_trie
