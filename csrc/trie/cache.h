#pragma once

#include "trie/lexicon.h"

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

namespace [[gnu::visibility("default")]] token_trie {

// The tries of a payload, by their descriptors' paths.
using TrieSets = std::map<std::string, std::shared_ptr<const Trie>>;

// The tries used last, keyed by the SHA-256 of the payload and path they were read from. Safe across threads; a lock is
// held for a look-up of at most 128 keys, never while a trie is built.
class Cache {
   public:
    static constexpr std::size_t kCapacity = 128;

    struct Stats {
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
        std::uint64_t evictions = 0;
        std::uint64_t entries = 0;
        std::uint64_t bytes = 0;
    };

    // The one of this process.
    static Cache & shared();

    // Null where there is no vocabulary to spell with.
    using FindLexicon = std::function<std::shared_ptr<const Lexicon>()>;

    // The payload's trie, built now if it is not here. n_vocab > 0 refuses token ids from n_vocab on, also on a hit.
    // Of a payload of texts there is one trie a lexicon; lexicon is called for these alone. Throws what read_payload
    // and Trie::build throw, and then keeps nothing.
    std::shared_ptr<const Trie> get(std::string_view json,
                                    const std::optional<std::string> & path,
                                    std::int32_t n_vocab,
                                    const FindLexicon & lexicon = nullptr);

    // The payload's tries, one a path, read all at once; those that are here are shared.
    TrieSets get_paths(std::string_view json, std::int32_t n_vocab, const FindLexicon & lexicon = nullptr);

    Stats stats() const;
    void clear();

   private:
    using Key = std::array<unsigned char, 32>;
    struct Entry {
        Key key;
        std::shared_ptr<const Trie> trie;
    };

    static Key key_of(std::string_view json, const std::optional<std::string> & path);
    static std::shared_ptr<const Trie> build(LeafList leaves, const FindLexicon & lexicon);
    std::shared_ptr<const Trie> find(const Key & key, const FindLexicon & lexicon);
    std::shared_ptr<const Trie> look_up(const Key & key, const std::string * lexicon);
    static bool is_of(const Trie & trie, const std::string * lexicon);
    std::shared_ptr<const Trie> insert(const Key & key, std::shared_ptr<const Trie> trie);

    mutable std::mutex mutex_;
    std::vector<Entry> entries_;  // used last first
    Stats counts_;
};

}  // namespace token_trie
