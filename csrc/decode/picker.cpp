#include "decode/picker.h"

#include "sampler/candidates.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <limits>
#include <new>
#include <string_view>

namespace token_trie {
namespace {

// Natural logarithm of token's share among the allowed; a NaN has none.
float log_share(const AllowedSet & allowed, const float * logits, Token token) {
    float max = logits[token];
    allowed.for_each([&](Token t) { max = std::max(max, logits[t]); });
    double sum = 0;
    allowed.for_each(
        [&](Token t) { sum += std::isnan(logits[t]) ? 0 : std::exp(static_cast<double>(logits[t]) - max); });
    return static_cast<float>(static_cast<double>(logits[token]) - max - std::log(sum));
}

// Whether "name ::=" is somewhere; of a grammar that llama.cpp does not take.
bool has_rule(std::string_view gbnf, std::string_view name) {
    constexpr std::string_view assign = "::=";
    for (std::size_t at = gbnf.find(name); at != std::string_view::npos; at = gbnf.find(name, at + 1)) {
        const bool inside = at > 0 && (std::isalnum(static_cast<unsigned char>(gbnf[at - 1])) != 0 ||
                                       gbnf[at - 1] == '-' || gbnf[at - 1] == '_');
        const std::size_t behind = std::min(gbnf.find_first_not_of(" \t", at + name.size()), gbnf.size());
        if (!inside && gbnf.substr(behind, assign.size()) == assign) {
            return true;
        }
    }
    return false;
}

float repeat_of(const Sampling & options) { return options.penalty_repeat == 0 ? 1 : options.penalty_repeat; }

// llama-cpp-python 0.3.36 takes the vocabulary's size first; earlier ones do not.
[[maybe_unused]] llama_sampler * init_penalties(llama_sampler * (*init)(std::int32_t, float, float, float),
                                                std::size_t /*n_vocab*/,
                                                const Sampling & options) {
    return init(options.penalty_last_n, repeat_of(options), options.penalty_freq, options.penalty_present);
}
[[maybe_unused]] llama_sampler * init_penalties(
    llama_sampler * (*init)(std::int32_t, std::int32_t, float, float, float),
    std::size_t n_vocab,
    const Sampling & options) {
    return init(static_cast<std::int32_t>(n_vocab), options.penalty_last_n, repeat_of(options), options.penalty_freq,
                options.penalty_present);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMaxFloat = std::numeric_limits<float>::max();
// Whether a value is from 0 to a maximum; NaN is not.
bool is_within(float value, float max) { return value >= 0 && value <= max; }

}  // namespace

void check(const Sampling & sampling) {
    check_rules({
        {!is_within(sampling.temperature, kMaxFloat), "temperature: not in [0, inf)"},
        {!is_within(sampling.top_p, 1), "top_p: not in (0, 1]"},
        {sampling.top_k < 0, "top_k: not in [0, 2147483647]"},
        {!is_within(sampling.min_p, 1), "min_p: not in [0, 1]"},
        {sampling.penalty_last_n < 0 || sampling.penalty_last_n > 1 << 20, "penalty_last_n: not in [0, 1048576]"},
        {!is_within(sampling.penalty_repeat, kMaxFloat), "penalty_repeat: not above 0"},
        {!std::isfinite(sampling.penalty_freq), "penalty_freq: not finite"},
        {!std::isfinite(sampling.penalty_present), "penalty_present: not finite"},
    });
}

Picker::Picker(const llama_vocab * vocab, const Sampling & sampling)
    : vocab_(vocab), n_vocab_(static_cast<std::size_t>(llama_vocab_n_tokens(vocab))) {
    set_sampling(sampling);
}

Picker::Picker(const Picker & other)
    : vocab_(other.vocab_),
      n_vocab_(other.n_vocab_),
      sampling_(other.sampling_),
      penalties_(other.make_penalties(other.sampling_)),
      draw_(copy(other.draw_)),
      grammar_(copy(other.grammar_)),
      parsed_(copy(other.parsed_)),
      text_(other.text_),
      n_parsed_(other.n_parsed_) {
    std::transform(other.chain_.begin(), other.chain_.end(), std::back_inserter(chain_), copy);
}

Picker::Sampler Picker::copy(const Sampler & sampler) {
    return Sampler(sampler == nullptr ? nullptr : llama_sampler_clone(sampler.get()));
}

// Not a clone, as that of older releases has not counted what it looks back on.
Picker::Sampler Picker::make_penalties(const Sampling & sampling) const {
    if (sampling.penalty_last_n == 0) {
        return nullptr;
    }
    return Sampler(init_penalties(llama_sampler_init_penalties, n_vocab_, sampling));
}

// First what may fail.
void Picker::set_sampling(const Sampling & sampling) {
    check(sampling);
    Sampler penalties = make_penalties(sampling);
    std::vector<Sampler> chain;
    const auto add = [&](bool is_on, const auto & init, auto... given) {
        if (is_on) {
            chain.push_back(Sampler(init(given...)));
        }
    };
    add(sampling.top_k > 0, llama_sampler_init_top_k, sampling.top_k);
    add(sampling.top_p > 0 && sampling.top_p < 1, llama_sampler_init_top_p, sampling.top_p, std::size_t{1});
    add(sampling.min_p > 0, llama_sampler_init_min_p, sampling.min_p, std::size_t{1});
    add(sampling.temperature > 0, llama_sampler_init_temp, sampling.temperature);
    if (sampling.seed != TOKEN_TRIE_SEED_KEEP || draw_ == nullptr) {
        const std::int64_t seed = std::max<std::int64_t>(sampling.seed, 0);  // 0 to keep draws where there are none
        draw_.reset(llama_sampler_init_dist(
            sampling.seed == TOKEN_TRIE_SEED_RANDOM ? LLAMA_DEFAULT_SEED : static_cast<std::uint32_t>(seed)));
    }
    penalties_ = std::move(penalties);
    chain_ = std::move(chain);
    sampling_ = sampling;
    n_penalized_ = 0;
}

Picker::Pick Picker::pick_allowed(const AllowedSet & allowed, const float * logits, bool greedy) {
    candidates_.clear();
    allowed.for_each([&](Token token) { candidates_.push_back({token, logits[token], 0.0F}); });
    const Token token = draw(candidates_.size(), greedy);
    return {token, log_share(allowed, logits, token)};
}

Token Picker::pick_any(const float * logits, bool under_grammar, const TokenSpan & except) {
    under_grammar = under_grammar && grammar_ != nullptr;
    if (under_grammar) {
        catch_up_grammar();
    }
    Token token = -1;
    if (takes_the_best(false)) {
        // Which takes no array of candidates.
        token = static_cast<Token>(best_of(n_vocab_, [&](std::size_t i) { return logits[i]; }));
    }
    if (token < 0 || except.contains(token)) {
        fill(logits, except);
        token = draw(n_vocab_, false);
    }
    // A grammar over a whole vocabulary is slow. Most tokens a model wants pass it, and are queried alone. Else those
    // of the best ones that do not are out, and then of more: what is drawn and passes has its share of all that do.
    constexpr std::size_t first = 256;
    constexpr std::size_t growth = 16;
    std::size_t n_asked = 0;
    while (under_grammar && n_asked < n_vocab_ && (except.contains(token) || !grammar_takes(token, logits[token]))) {
        n_asked = std::min(n_asked == 0 ? first : n_asked * growth, n_vocab_);
        fill(logits, except);
        std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(n_asked),
                          candidates_.end(), [](const llama_token_data & a, const llama_token_data & b) {
                              return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                          });
        llama_token_data_array best = {candidates_.data(), n_asked, -1, false};
        llama_sampler_apply(grammar().get(), &best);
        throw_if(n_asked == n_vocab_ && !any_above_minus_infinity(best, n_asked), Status::grammar,
                 "the grammar leaves no token to go on with");
        token = draw(n_vocab_, false);
    }
    return token;
}

void Picker::fill(const float * logits, const TokenSpan & except) {
    candidates_.resize(n_vocab_);
    for (std::size_t i = 0; i < n_vocab_; ++i) {
        candidates_[i] = {static_cast<Token>(i), std::isnan(logits[i]) ? -kInfinity : logits[i], 0.0F};
    }
    for (const Token token : except) {
        candidates_[static_cast<std::size_t>(token)].logit = -kInfinity;
    }
}

// One of the first n candidates, by the samplers in the order of llama.cpp's own chains.
Token Picker::draw(std::size_t n, bool greedy) {
    llama_token_data_array array = {candidates_.data(), n, -1, false};
    const auto apply = [&](const Sampler & sampler) {
        if (sampler != nullptr) {
            llama_sampler_apply(sampler.get(), &array);
        }
    };
    catch_up_penalties();
    apply(penalties_);
    const llama_token_data best = array.data[best_of(array, array.size)];
    if (greedy || sampling_.temperature == 0 || !any_above_minus_infinity(array, array.size)) {
        return best.id;
    }
    // From the best one down, so that a temperature next to nothing divides none of them to infinity; a NaN, which the
    // samplers would sort by, is out.
    for (llama_token_data & candidate : candidates_) {
        const float logit = candidate.logit;
        candidate.logit = logit == best.logit ? 0 : logit < best.logit ? logit - best.logit : -kInfinity;
    }
    std::for_each(chain_.begin(), chain_.end(), apply);
    apply(draw_);
    return array.data[array.selected].id;
}

void Picker::restart() noexcept {
    if (penalties_ != nullptr) {
        llama_sampler_reset(penalties_.get());
    }
    parsed_.reset();
    text_.clear();
    n_penalized_ = n_parsed_ = 0;
}

void Picker::set_grammar(const char * gbnf, const char * root) {
    if (gbnf == nullptr) {
        grammar_.reset();
        parsed_.reset();
        return;
    }
    root = root == nullptr ? "root" : root;
    // llama.cpp takes an empty text for no grammar.
    Sampler grammar(*gbnf == '\0' ? nullptr : llama_sampler_init_grammar(vocab_, gbnf, root));
    if (grammar == nullptr) {
        throw Error(Status::grammar, has_rule(gbnf, root)
                                         ? "gbnf: the grammar does not parse; llama.cpp has printed why to stderr"
                                         : "gbnf: the grammar has no rule " + quote(root));
    }
    grammar_ = std::move(grammar);
    parsed_.reset();
    n_parsed_ = text_.size();
}

bool Picker::grammar_takes(Token token, float logit) {
    llama_token_data one = {token, logit, 0.0F};
    llama_token_data_array array = {&one, 1, -1, false};
    llama_sampler_apply(grammar().get(), &array);
    return one.logit > -kInfinity;
}

// Which look back on so many tokens and no further.
void Picker::catch_up_penalties() {
    if (penalties_ == nullptr) {
        return;
    }
    const std::size_t n_last = std::min(text_.size(), static_cast<std::size_t>(sampling_.penalty_last_n));
    n_penalized_ = std::max(n_penalized_, text_.size() - n_last);
    for (; n_penalized_ < text_.size(); ++n_penalized_) {
        llama_sampler_accept(penalties_.get(), text_[n_penalized_]);
    }
}

// llama.cpp's grammar throws on a token it does not take and is of no use afterwards, so a copy goes ahead.
void Picker::catch_up_grammar() {
    if (n_parsed_ == text_.size()) {
        return;
    }
    Sampler ahead = copy(grammar());
    for (std::size_t i = n_parsed_; i < text_.size(); ++i) {
        throw_if(llama_vocab_is_eog(vocab_, text_[i]), Status::grammar,
                 "the grammar cannot go on after an end-of-generation token; set it again");
        try {
            llama_sampler_accept(ahead.get(), text_[i]);
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & error) {
            throw Error(Status::grammar,
                        "the text so far does not fit the grammar, which can only be set again from here (",
                        error.what(), ")");
        }
    }
    parsed_ = std::move(ahead);
    n_parsed_ = text_.size();
}

}  // namespace token_trie
