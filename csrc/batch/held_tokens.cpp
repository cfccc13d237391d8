#include "batch/held_tokens.h"

#include "walk/make_room.h"

#include <algorithm>

namespace token_trie {

std::size_t HeldTokens::n_common(llama_seq_id id, const std::vector<Token> & tokens) const noexcept {
    const Cells & held = of(id);
    const auto differ = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end(),
                                      [](const Cell & cell, Token token) { return cell.token == token; });
    return static_cast<std::size_t>(differ.first - held.begin());
}

std::size_t HeldTokens::n_common(llama_seq_id a, llama_seq_id b) const noexcept {
    const auto differ = std::mismatch(of(a).begin(), of(a).end(), of(b).begin(), of(b).end(),
                                      [](const Cell & x, const Cell & y) { return x.token == y.token; });
    return static_cast<std::size_t>(differ.first - of(a).begin());
}

void HeldTokens::share(llama_seq_id from, llama_seq_id to, std::size_t n) {
    const Cells & source = of(from);
    of(to).assign(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(n));
    for (const Cell & cell : of(to)) {
        ++n_refs_[cell.name];
    }
    if (n > 0) {
        has_count_ = false;
        llama_memory_seq_cp(memory_, from, to, 0, static_cast<llama_pos>(n));
        has_count_ = true;
    }
}

void HeldTokens::append(llama_seq_id id, const Token * tokens, std::size_t n) {
    Cells & cells = of(id);
    make_room(cells, n);
    if (n > free_.size()) {
        const std::size_t n_more = n - free_.size();
        make_room(n_refs_, n_more);
        free_.reserve(n_refs_.capacity());  // so that giving back finds memory
        for (std::size_t i = 0; i < n_more; ++i) {
            free_.push_back(static_cast<std::uint32_t>(n_refs_.size()));
            n_refs_.push_back(0);
        }
    }
    for (std::size_t i = 0; i < n; ++i) {
        cells.push_back({tokens[i], free_.back()});
        n_refs_[free_.back()] = 1;
        free_.pop_back();
    }
}

void HeldTokens::cut(llama_seq_id id, std::size_t n) noexcept {
    Cells & cells = of(id);
    if (n >= cells.size()) {
        return;
    }
    llama_memory_seq_rm(memory_, id, static_cast<llama_pos>(n), -1);
    for (; cells.size() > n; cells.pop_back()) {
        if (--n_refs_[cells.back().name] == 0) {
            free_.push_back(cells.back().name);
        }
    }
}

void HeldTokens::clear() noexcept {
    llama_memory_clear(memory_, true);
    has_count_ = true;
    for (std::size_t id = 0; id < held_.size(); ++id) {
        cut(static_cast<llama_seq_id>(id), 0);
    }
}

}  // namespace token_trie
