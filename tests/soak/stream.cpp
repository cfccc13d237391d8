#include "answer.h"
#include "reference.h"

#include <algorithm>
#include <cmath>

namespace token_trie::soak {
namespace {

constexpr std::size_t kMaxLength = 3;  // a scored member's, and behind a prompt in the reference
constexpr double kNear = 2e-3;

Tokens joined(Tokens a, const Tokens & b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

// Members are of these tokens, few enough for sets to overlap.
const Tokens & alphabet() {
    static const Tokens tokens = joined(bytes("abcd"), {kRead, kFile, kMail, kSend});
    return tokens;
}

// Each alone and some the beginning of another, so that a cache is kept, cut and made anew.
const std::vector<Tokens> & prompts() {
    static const std::vector<Tokens> texts = {bytes("Do: "), bytes("Do: now "), bytes("so"), {kSend}};
    return texts;
}

// 0 .. 8 into the alphabet.
Tokens spelled(Tokens tokens) {
    for (Token & token : tokens) {
        token = alphabet()[static_cast<std::size_t>(token)];
    }
    return tokens;
}

std::set<Tokens> spelled(const std::set<Tokens> & members) {
    std::set<Tokens> out;
    for (const Tokens & member : members) {
        out.insert(spelled(member));
    }
    return out;
}

FollowSet::Options random_options(std::mt19937 & rng, FollowSet::Options options) {
    options.separator = spelled(options.separator);
    options.end_tokens = spelled(options.end_tokens);
    // The vocabulary's own, which are neither passed on nor part of the sequence.
    if (options.on_complete != OnComplete::release && (options.end_tokens.empty() || one_in(rng, 2))) {
        options.end_tokens = {kTinyEnd};
    }
    return options;
}

}  // namespace

struct Streams::Place {
    Handle stream;
    Reference reference;

    // Contexts that the streams take their different ways on: passes cut short, whole ones, no way back; and inside
    // whose graph it chooses.
    explicit Place(TinyKind kind, bool is_cut = true, std::int32_t device_sampling = TOKEN_TRIE_DEVICE_OFF)
        : reference(tiny_context(256, kind).get(), prompts(), alphabet(), kMaxLength) {
        llama_context_params context_params = tiny_context_params();
        if (!is_cut) {
            context_params.cb_eval = [](ggml_tensor * /*node*/, bool /*ask*/, void * /*user*/) { return false; };
        }
        auto params = sized<token_trie_stream_params>();
        params.device_sampling = device_sampling;
        stream = open_tiny(context_params, kind, params);
    }
};

Streams::Streams() {
    places_.push_back(std::make_unique<Place>(TinyKind::attention));
    places_.push_back(std::make_unique<Place>(TinyKind::attention, /* is_cut = */ false));
    places_.push_back(std::make_unique<Place>(TinyKind::recurrent));
    places_.push_back(std::make_unique<Place>(TinyKind::attention, /* is_cut = */ true, TOKEN_TRIE_DEVICE_ON));
}

Streams::~Streams() = default;

namespace {

// Compares what is generated, token by token, with what oracle and reference say.
class Listener {
   public:
    Listener(const Reference & reference, std::size_t prompt, Oracle oracle, bool best, const Wrong & wrong)
        : reference_(reference), prompt_(prompt), oracle_(std::move(oracle)), best_(best), wrong_(wrong) {}

    static bool call(const token_trie_token * token, void * user) {
        static_cast<Listener *>(user)->hear(*token);
        return true;
    }

    void hear(const token_trie_token & token) {
        const std::optional<std::set<Token>> allowed = oracle_.allowed();
        const std::vector<float> * logits = reference_.logits(prompt_, tokens_);
        if (allowed && allowed->count(token.id) == 0) {
            say("a token that is not allowed");
        }
        if (allowed && (allowed->size() == 1) != (token.forced != 0)) {
            say(token.forced != 0 ? "a token forced though there were others" : "the only token, but not forced");
        }
        if (!allowed && !std::isnan(token.logprob)) {
            say("a logprob in free text");
        }
        if (logits != nullptr && best_) {
            const auto below_best = [&](Token other) {
                return (*logits)[static_cast<std::size_t>(other)] >
                       (*logits)[static_cast<std::size_t>(token.id)] + static_cast<float>(kNear);
            };
            if (allowed && std::any_of(allowed->begin(), allowed->end(), below_best)) {
                say("not the best of the allowed tokens");
            }
        }
        if (allowed) {
            logprob_ += static_cast<double>(token.logprob);
        }
        if (logits != nullptr && allowed) {
            const double expected =
                static_cast<double>((*logits)[static_cast<std::size_t>(token.id)]) - log_sum(*logits, allowed);
            if (std::abs(expected - static_cast<double>(token.logprob)) > kNear) {
                say("logprob " + std::to_string(token.logprob) + ", not " + std::to_string(expected));
            }
        }
        oracle_.accept(token.id);
        tokens_.push_back(token.id);
    }

    // A sum that begins anew where a span does, which here is never.
    double logprob() const { return logprob_; }
    Oracle & oracle() { return oracle_; }
    const Tokens & tokens() const { return tokens_; }

   private:
    void say(const std::string & what) const { wrong_(what + ", behind " + name_of(tokens_)); }

    const Reference & reference_;
    std::size_t prompt_;
    Oracle oracle_;
    bool best_;
    const Wrong & wrong_;
    Tokens tokens_;
    double logprob_ = 0;
};

// One call of generate, or as many of next.
std::int32_t generate(token_trie_stream * stream, bool at_once, std::int32_t n, Listener & listener) {
    if (at_once) {
        return token_trie_stream_generate(stream, n, Listener::call, &listener);
    }
    for (std::int32_t i = 0; i < n; ++i) {
        auto token = sized<token_trie_token>();
        std::int32_t stop = TOKEN_TRIE_STOP_NONE;
        const std::int32_t status = token_trie_stream_next(stream, &token, &stop);
        if (status != TOKEN_TRIE_OK) {
            return status;
        }
        if (token.id >= 0) {
            listener.hear(token);
        }
        if (stop != TOKEN_TRIE_STOP_MAX_TOKENS) {
            break;
        }
    }
    return TOKEN_TRIE_OK;
}

}  // namespace

void Streams::decide(std::mt19937 & rng, const Wrong & wrong) {
    const Place & place = *places_[below(rng, places_.size())];
    token_trie_stream * stream = place.stream.get();
    const std::size_t prompt = below(rng, prompts().size());
    const RandomCase random(rng, static_cast<Token>(alphabet().size()));
    const std::set<Tokens> members = spelled(random.members);
    const FollowSet::Options options = random_options(rng, random.options);
    const Mode mode = one_in(rng, 2) ? Mode::greedy : Mode::sampled;
    const float temperature = one_in(rng, 3) ? 0.0F : 1.5F;
    const auto n = static_cast<std::int32_t>(one_in(rng, 4) ? 1 + below(rng, 6) : 20);
    const token_trie_params params = params_of(options, mode);
    const Tokens & before = prompts()[prompt];
    if (token_trie_stream_prefill(stream, before.data(), before.size()) != TOKEN_TRIE_OK ||
        set_sampling(stream, temperature, 1, static_cast<std::uint32_t>(rng())) != TOKEN_TRIE_OK ||
        token_trie_stream_set_token_trie(stream,
                                         set_of(payload_of(members), 0, token_trie_stream_get_vocab(stream)).get(),
                                         &params) != TOKEN_TRIE_OK) {
        wrong(token_trie_last_error());
        return;
    }
    Listener listener(place.reference, prompt, Oracle(members, options), mode == Mode::greedy || temperature == 0.0F,
                      wrong);
    if (generate(stream, one_in(rng, 2), n, listener) != TOKEN_TRIE_OK) {
        wrong(token_trie_last_error());
        return;
    }
    auto state = sized<token_trie_stream_state>();
    token_trie_stream_get_state(stream, &state);
    Oracle & oracle = listener.oracle();
    const bool stopped_by_itself = state.stop == TOKEN_TRIE_STOP_COMPLETE || state.stop == TOKEN_TRIE_STOP_END;
    // By an end token, which is not passed on.
    const bool ended = stopped_by_itself && oracle.state() == State::constrained;
    if (ended) {
        oracle.accept(kTinyEnd);
    }
    if (stopped_by_itself
            ? oracle.state() != State::complete
            : state.stop != TOKEN_TRIE_STOP_MAX_TOKENS || listener.tokens().size() != static_cast<std::size_t>(n)) {
        wrong("stopped for reason " + std::to_string(state.stop) + " behind " + name_of(listener.tokens()));
    }
    const std::string leaf = state.leaf_name == nullptr ? "" : state.leaf_name;
    if (state.span != static_cast<std::int32_t>(oracle.state()) || state.n_items != oracle.n_items() ||
        state.n_tokens != before.size() + listener.tokens().size() ||
        (!oracle.item().empty() && leaf != (oracle.is_finished() ? name_of(oracle.item()) : ""))) {
        wrong("the stream stands elsewhere than the oracle, behind " + name_of(listener.tokens()));
    }
    if (!ended && std::abs(state.logprob - listener.logprob()) > kNear) {
        wrong("the span's logprob is not the sum of its tokens'");
    }
}

void Streams::score(std::mt19937 & rng, const Wrong & wrong) {
    const Place & place = *places_[below(rng, places_.size())];
    token_trie_stream * stream = place.stream.get();
    const std::set<Tokens> members = spelled(random_members(rng, 1 + below(rng, 12), kMaxLength, 8));
    const std::string payload = payload_of(members);
    const std::size_t prompt = below(rng, prompts().size());
    const bool behind_prefix = one_in(rng, 2);
    const Tokens & before = prompts()[behind_prefix ? below(rng, prompts().size()) : prompt];
    const SetHandle handle = set_of(payload);
    token_trie_query query = query_of(handle, TOKEN_TRIE_QUERY_SCORES);
    query.leaf_end = static_cast<std::int32_t>(below(rng, 3));
    const Tokens prefix = behind_prefix ? prompts()[prompt] : Tokens();
    std::vector<double> expected;
    for (const Tokens & member : members) {
        double sum = 0;
        Tokens behind;
        for (const Token token : member) {
            sum += place.reference.logprob(prompt, behind, token);
            behind.push_back(token);
        }
        if (query.leaf_end == TOKEN_TRIE_LEAF_FOLLOW) {
            sum += place.reference.logprob(prompt, behind, kTinyEnd);
        } else if (query.leaf_end == TOKEN_TRIE_LEAF_LONGEST && member.size() < kMaxLength) {
            std::set<Token> longer;
            for (const Tokens & other : members) {
                if (other.size() > member.size() && std::equal(member.begin(), member.end(), other.begin())) {
                    longer.insert(other[member.size()]);
                }
            }
            if (!longer.empty()) {
                sum += std::log1p(-std::exp(place.reference.logprob(prompt, behind, longer)));
            }
        }
        expected.push_back(sum);
    }

    AnswerHandle scored;
    if (token_trie_stream_prefill(stream, before.data(), before.size()) != TOKEN_TRIE_OK ||
        answer(stream, query, scored, prefix) != TOKEN_TRIE_OK) {
        wrong(token_trie_last_error());
        return;
    }
    const std::vector<double> leaves = logprobs_of(scored);
    const auto is_near = [](double a, double b) { return std::abs(a - b) <= kNear; };
    if (!std::equal(leaves.begin(), leaves.end(), expected.begin(), is_near)) {
        wrong("scores other than the reference's");
    }

    const std::size_t n_best = std::min<std::size_t>(1 + below(rng, 4), members.size());
    query.mode = TOKEN_TRIE_QUERY_BEST;
    query.n_best = n_best;
    AnswerHandle found;
    if (answer(stream, query, found, prefix) != TOKEN_TRIE_OK) {
        wrong(token_trie_last_error());
        return;
    }
    const std::vector<std::int64_t> best = leaves_of(found);
    const std::vector<double> logprobs = logprobs_of(found);
    bool is_best = best.size() == n_best && info_of(found).gap == 0;
    for (std::size_t i = 0; is_best && i < n_best; ++i) {
        is_best = is_near(logprobs[i], expected[static_cast<std::size_t>(best[i])]);
    }
    std::sort(expected.rbegin(), expected.rend());
    if (!is_best || !std::equal(logprobs.begin(), logprobs.end(), expected.begin(), is_near)) {
        wrong("a search that did not find the best");
    }
}

}  // namespace token_trie::soak
