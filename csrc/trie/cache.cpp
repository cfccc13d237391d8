#include "trie/cache.h"

#include "trie/payload.h"
#include "trie/sha256.h"

#include <algorithm>

namespace token_trie {

Cache & Cache::shared() {
    static Cache cache;
    return cache;
}

Cache::Key Cache::key_of(std::string_view json, const std::optional<std::string> & path) {
    Sha256 hash;
    hash.update(json);
    if (path) {
        // A payload holds no NUL, so no payload hashes like a shorter one with a path.
        hash.update(std::string_view("\0", 1));
        hash.update(*path);
    }
    return hash.finish();
}

TrieSets Cache::get_paths(std::string_view json, std::int32_t n_vocab) {
    const Key whole = key_of(json, std::nullopt);
    TrieSets out = find_paths(whole, json, n_vocab);
    if (!out.empty()) {
        return out;
    }
    std::vector<std::string> paths;
    for (auto & [path, leaves] : read_paths(json, n_vocab)) {
        out.emplace(path, insert(key_of(json, path), Trie::build(std::move(leaves))));
        paths.push_back(path);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (paths_.size() == kCapacity) {
        paths_.clear();
    }
    paths_[whole] = std::move(paths);
    return out;
}

TrieSets Cache::find_paths(const Key & whole, std::string_view json, std::int32_t n_vocab) {
    std::vector<std::string> paths;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto at = paths_.find(whole);
        if (at == paths_.end()) {
            return {};
        }
        paths = at->second;
    }
    TrieSets out;
    for (const std::string & path : paths) {
        const std::shared_ptr<const Trie> trie = find(key_of(json, path));
        if (trie == nullptr || (n_vocab > 0 && trie->max_token() >= n_vocab)) {
            return {};
        }
        out.emplace(path, trie);
    }
    return out;
}

std::shared_ptr<const Trie> Cache::get(std::string_view json,
                                       const std::optional<std::string> & path,
                                       std::int32_t n_vocab) {
    const Key key = key_of(json, path);
    std::shared_ptr<const Trie> trie = find(key);
    if (trie && (n_vocab <= 0 || trie->max_token() < n_vocab)) {
        return trie;
    }
    // A cached trie that does not fit this vocabulary is read again for the message that names the place.
    return insert(key, Trie::build(read_payload(json, path, n_vocab)));
}

std::shared_ptr<const Trie> Cache::find(const Key & key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const Entry & e) { return e.key == key; });
    if (at == entries_.end()) {
        ++counts_.misses;
        return nullptr;
    }
    ++counts_.hits;
    std::rotate(entries_.begin(), at, at + 1);
    return entries_.front().trie;
}

std::shared_ptr<const Trie> Cache::insert(const Key & key, std::shared_ptr<const Trie> trie) {
    // Dropped after the lock, since freeing a large trie takes time.
    std::shared_ptr<const Trie> evicted;
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.reserve(kCapacity);
    // Another thread may have built the same trie meanwhile; all then share the first.
    const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const Entry & e) { return e.key == key; });
    if (at != entries_.end()) {
        return at->trie;
    }
    if (entries_.size() == kCapacity) {
        evicted = std::move(entries_.back().trie);
        entries_.pop_back();
        ++counts_.evictions;
    }
    entries_.insert(entries_.begin(), {key, trie});
    return trie;
}

Cache::Stats Cache::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    Stats stats = counts_;
    stats.entries = entries_.size();
    stats.capacity = kCapacity;
    for (const Entry & entry : entries_) {
        stats.bytes += entry.trie->total_bytes();
    }
    return stats;
}

void Cache::clear() {
    std::vector<Entry> dropped;
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(entries_);
    paths_.clear();
}

}  // namespace token_trie

using namespace token_trie;

token_trie_set::token_trie_set(std::string_view json, std::int32_t n_vocab)
    : by_path_(Cache::shared().get_paths(json, n_vocab)) {
    whole_ = by_path_.size() == 1 ? by_path_.begin()->second : Cache::shared().get(json, std::nullopt, n_vocab);
}

const std::shared_ptr<const Trie> & token_trie_set::at(const char * path) const {
    if (path == nullptr) {
        return whole();
    }
    const auto at = by_path_.find(path);
    if (at == by_path_.end()) {
        std::string there = by_path_.empty() ? "none" : "";
        std::size_t n = 0;
        for (const auto & entry : by_path_) {
            if (++n > 5) {
                there += ", ...";
                break;
            }
            there += (n > 1 ? ", " : "") + quote(entry.first);
        }
        throw Error(Status::argument, "path: no descriptor has the path ", quote(path), "; there is ", there);
    }
    return at->second;
}
