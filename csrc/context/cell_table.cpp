#include "context/cell_table.h"

#include "cursor/reserve_more.h"

#include <utility>

namespace token_trie {

namespace {

template <typename A, typename B, typename Same>
std::size_t n_same(const A & a, const B & b, const Same & same) noexcept {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same).first - a.begin());
}

}  // namespace

std::size_t CellTable::n_common(llama_seq_id id, const std::vector<Token> & tokens) const noexcept {
    return n_same(of(id), tokens, [](const Cell & cell, Token token) { return cell.token == token; });
}

std::size_t CellTable::n_common(llama_seq_id a, llama_seq_id b) const noexcept {
    return n_same(of(a), of(b), [](const Cell & x, const Cell & y) { return x.token == y.token; });
}

std::size_t CellTable::n_shared(llama_seq_id a, llama_seq_id b) const noexcept {
    return n_same(of(a), of(b), [](const Cell & x, const Cell & y) { return x.name == y.name; });
}

void CellTable::share(llama_seq_id from, llama_seq_id to, std::size_t n) {
    note_shared(from, to, n);
    copy(from, to, n);
}

void CellTable::note_shared(llama_seq_id from, llama_seq_id to, std::size_t n) {
    const Cells & source = of(from);
    of(to).assign(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(n));
    for (const Cell & cell : of(to)) {
        ++n_refs_[cell.name];
    }
}

void CellTable::move(llama_seq_id from, llama_seq_id to) {
    of(to) = std::exchange(of(from), {});
    copy(from, to, n_held(to));
    llama_memory_seq_rm(memory_, from, -1, -1);
}

void CellTable::copy(llama_seq_id from, llama_seq_id to, std::size_t n) {
    if (n > 0) {
        has_count_ = false;
        llama_memory_seq_cp(memory_, from, to, 0, static_cast<llama_pos>(n));
        has_count_ = true;
    }
}

void CellTable::append(llama_seq_id id, const Token * tokens, std::size_t n) {
    Cells & cells = of(id);
    reserve_more(cells, n);
    if (n > free_.size()) {
        const std::size_t n_more = n - free_.size();
        reserve_more(n_refs_, n_more);
        free_.reserve(n_refs_.capacity());  // so that forgetting finds memory
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

bool CellTable::cut(llama_seq_id id, std::size_t n) noexcept {
    if (!llama_memory_seq_rm(memory_, id, static_cast<llama_pos>(n), -1)) {
        return false;
    }
    forget(id, n);
    return true;
}

void CellTable::forget(llama_seq_id id, std::size_t n) noexcept {
    for (Cells & cells = of(id); cells.size() > n; cells.pop_back()) {
        if (--n_refs_[cells.back().name] == 0) {
            free_.push_back(cells.back().name);
        }
    }
}

void CellTable::clear() noexcept {
    llama_memory_clear(memory_, true);
    has_count_ = true;
    for (std::size_t id = 0; id < held_.size(); ++id) {
        forget(static_cast<llama_seq_id>(id));
    }
}

}  // namespace token_trie
