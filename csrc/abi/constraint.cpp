#include "abi/constraint.h"

#include "abi/structs.h"

#include <algorithm>

namespace token_trie {
namespace {

constexpr std::int32_t kMaxSpan = 500;

std::vector<Token> to_tokens(const llama_token * tokens, std::size_t n, const char * what) {
    throw_if(tokens == nullptr && n > 0, Status::argument, what, ": null, with n_", what, " = ", n);
    throw_if(n > kMaxLeafTokens, Status::limit, "n_", what, ": ", n, "; at most 65535");
    return {tokens, tokens + n};
}

FollowSet::Options to_follow(const token_trie_params & params, const Vocab & vocab) {
    check_enum(params.on_complete, TOKEN_TRIE_RESTART, "on_complete");
    FollowSet::Options options;
    options.on_complete = static_cast<OnComplete>(params.on_complete);
    options.end_tokens = to_tokens(params.end_tokens, params.n_end_tokens, "end_tokens");
    options.separator = to_tokens(params.separator, params.n_separator, "separator");
    options.max_items = params.max_items;
    options.min_items = params.min_items;
    options.unique = params.unique != 0;
    options.exclude = to_names(params.exclude, params.n_exclude, "exclude");
    options.start_after = to_tokens(params.start_after, params.n_start_after, "start_after");
    options.max_before = params.max_before;
    options.max_span = params.max_span == 0 ? kMaxSpan : std::max(params.max_span, 0);
    if (!options.start_after.empty()) {
        options.not_before = vocab.get() == nullptr ? options.end_tokens : vocab.end_of_generation();
    }
    if (params.end_tokens == nullptr && options.on_complete != OnComplete::release) {
        options.end_tokens = vocab.end_of_generation();
    }
    options.check();
    return options;
}

std::shared_ptr<const FollowSet> make_follow(const Trie & trie, const Vocab & vocab, FollowSet::Options options) {
    auto follow = std::make_shared<const FollowSet>(trie, std::move(options));
    check_vocab(*follow, vocab);
    return follow;
}

// Options first: what these alone refuse need not be read.
template <typename FindTrie>
Constraint constrain(const Vocab & vocab, const token_trie_params & params, const FindTrie & find_trie) {
    check_enum(params.mode, TOKEN_TRIE_SAMPLED, "mode");
    FollowSet::Options options = to_follow(params, vocab);
    std::shared_ptr<const Trie> trie = find_trie();
    check_vocab(*trie, vocab);
    std::shared_ptr<const FollowSet> follow = make_follow(*trie, vocab, std::move(options));
    return {Cursor(std::move(trie), std::move(follow)), static_cast<Mode>(params.mode)};
}

}  // namespace

std::shared_ptr<const FollowSet> make_follow(const Trie & trie, const Vocab & vocab, const token_trie_params & params) {
    return make_follow(trie, vocab, to_follow(params, vocab));
}

Constraint read_constraint(const Vocab & vocab, std::string_view json, const token_trie_params & params) {
    return constrain(vocab, params, [&] { return Cache::shared().get(json, std::nullopt, vocab.size()); });
}

Constraint make_constraint(const Vocab & vocab, const Set & set, const token_trie_params & params) {
    return constrain(vocab, params, [&] { return set.at(params.path); });
}

token_trie_params read_params(const token_trie_params * params, const char * what) {
    token_trie_params defaults{};
    defaults.on_complete = TOKEN_TRIE_END;
    return params == nullptr ? defaults : read_struct(params, what);
}

const Set & to_set(const token_trie_set * set) {
    require_not_null(set, "set");
    return *set;
}

}  // namespace token_trie
