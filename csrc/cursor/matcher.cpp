#include "cursor/matcher.h"

#include "cursor/reserve_more.h"

#include <cstring>

namespace token_trie {
namespace {

constexpr std::size_t kStride = 256;

}  // namespace

Matcher::Matcher(Cursor cursor, std::int32_t n_vocab) : cursor_(std::move(cursor)), n_vocab_(n_vocab) {
    throw_if(n_vocab <= 0, Status::argument, "n_vocab: ", n_vocab, " is no size of a vocabulary");
    check_tokens(cursor_.trie(), n_vocab);
    check_tokens(cursor_.follow(), n_vocab);
    cursor_.reset();
}

void Matcher::check(Token token) const {
    throw_if(token < 0 || token >= n_vocab_, Status::vocab, token, " is outside the vocabulary (", n_vocab_,
             " tokens)");
    throw_if(is_terminated() && !ends().contains(token), Status::argument, token,
             " comes after the end, where only end tokens may");
}

void Matcher::check_rollback(std::uint64_t n) const {
    throw_if(n > n_accepted(), Status::argument, n, " tokens to take back of ", n_accepted(), " accepted");
}

bool Matcher::take(Token token) {
    if (!allowed().contains(token)) {
        return false;
    }
    if (!cursor_.is_active()) {
        ++n_after_end_;
        return true;
    }
    // First what may fail.
    reserve_more(tokens_);
    if ((tokens_.size() + 1) % kStride == 0) {
        snapshots_.reserve(tokens_.size() / kStride + 1);
    }
    cursor_.accept(token);
    tokens_.push_back(token);
    if (tokens_.size() % kStride == 0) {
        snapshots_.push_back(cursor_);
    }
    return true;
}

bool Matcher::accept(Token token) {
    check(token);
    return take(token);
}

std::size_t Matcher::accept_all(const Token * tokens, std::size_t n) {
    check_tokens(tokens, n, n_vocab_, "tokens");
    std::size_t done = 0;
    while (done < n && take(tokens[done])) {
        ++done;
    }
    return done;
}

void Matcher::rollback(std::uint64_t n) {
    check_rollback(n);
    if (n <= n_after_end_) {
        n_after_end_ -= n;
        return;
    }
    const std::size_t kept = tokens_.size() - static_cast<std::size_t>(n - n_after_end_);
    const std::size_t n_snapshots = kept / kStride;
    Cursor again = n_snapshots == 0 ? cursor_ : snapshots_[n_snapshots - 1];
    if (n_snapshots == 0) {
        again.reset();
    }
    for (std::size_t i = n_snapshots * kStride; i < kept; ++i) {
        again.accept(tokens_[i]);
    }
    cursor_ = std::move(again);
    tokens_.resize(kept);
    snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(n_snapshots), snapshots_.end());
    n_after_end_ = 0;
}

void Matcher::reset() noexcept {
    cursor_.reset();
    tokens_.clear();
    snapshots_.clear();
    n_after_end_ = 0;
}

std::vector<Token> Matcher::forced(std::size_t n) const {
    std::vector<Token> tokens;
    if (is_terminated()) {
        return tokens;
    }
    Cursor ahead = cursor_;
    while (tokens.size() < n) {
        const Token token = ahead.allowed().only();
        if (token < 0 || ahead.ends_with(token)) {
            break;
        }
        tokens.push_back(token);
        ahead.accept(token);
    }
    return tokens;
}

bool Matcher::fill(std::int32_t * words) const noexcept {
    const AllowedSet set = allowed();
    auto * bits = reinterpret_cast<std::uint32_t *>(words);
    std::memset(words, set.everything ? 0xFF : 0, n_words() * sizeof *words);
    const auto flip = [bits](Token token) {
        const auto bit = static_cast<std::uint32_t>(token);
        bits[bit / 32] ^= std::uint32_t{1} << bit % 32;
    };
    if (set.everything) {
        for (const Token token : set.except) {
            if (token < n_vocab_) {
                flip(token);
            }
        }
        return !set.except.empty();
    }
    set.for_each(flip);
    return true;
}

}  // namespace token_trie
