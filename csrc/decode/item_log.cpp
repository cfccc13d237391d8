#include "decode/item_log.h"

#include "cursor/reserve_more.h"

namespace token_trie {

void ItemLog::clear() noexcept { items_.clear(); }

void ItemLog::reserve() { reserve_more(items_); }

void ItemLog::add(
    const Position & before, const Cursor & after, std::size_t n, double logprob_before, double logprob) noexcept {
    const bool is_next = before.n_before != after.n_before();
    if (after.node() == kRoot || (after.node() == before.node && !is_next)) {
        return;  // a separator, or an end
    }
    if (before.node == kRoot || is_next) {
        begin_ = n - 1;
        logprob_ = logprob_before;
    }
    items_.resize(static_cast<std::size_t>(after.n_items()));
    if (after.n_items() > after.n_before()) {
        items_.back() = {after.leaf(), begin_, n, logprob - logprob_};
    }
}

}  // namespace token_trie
