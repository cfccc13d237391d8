#include "trie/set.h"

#include <algorithm>

namespace token_trie {

Set::Set(std::string_view json, std::int32_t n_vocab, const Cache::FindLexicon & lexicon)
    : by_path_(Cache::shared().get_paths(json, n_vocab, lexicon)) {
    const auto is_tree = [](const auto & entry) { return entry.second->is_tree(); };
    const auto n_trees = static_cast<std::size_t>(std::count_if(by_path_.begin(), by_path_.end(), is_tree));
    if (by_path_.size() == 1) {
        whole_ = by_path_.begin()->second;
    } else if (n_trees == 0 || n_trees == by_path_.size()) {
        whole_ = Cache::shared().get(json, std::nullopt, n_vocab, lexicon);
    }
}

const std::shared_ptr<const Trie> & Set::whole() const {
    if (whole_ == nullptr) {
        throw Error(Status::argument, "path: null, where descriptors of tokens and of texts do not make one set");
    }
    return whole_;
}

const std::shared_ptr<const Trie> & Set::at(const char * path) const {
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
        throw Error(Status::argument, "path: no descriptor has the path " + quote(path) + "; there is " + there);
    }
    return at->second;
}

void Set::release() const noexcept {
    if (n_references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        delete this;
    }
}

}  // namespace token_trie
