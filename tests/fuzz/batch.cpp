#include "abi_payloads.h"
#include "answer.h"
#include "tiny_model.h"

#include <array>
#include <cmath>
#include <map>
#include <thread>

// Prompts submitted to a batch, cancelled, waited for and closed on, against a stream that answers each alone. The
// first byte of an input chooses the context and the model: with cells, with sliding windows, or with states.
namespace token_trie::fuzz {
namespace {

using test::Tokens;

constexpr int kLongest = 16;
constexpr std::int32_t kMost = 64;     // tokens of an answer
constexpr std::int32_t kNoLimit = -1;  // to wait
constexpr std::uint32_t kAloneContext = 256;

class Alone {
   public:
    explicit Alone(test::TinyKind kind) : kind_(kind) {
        // Not freed: models end first, as the process does.
        stream_ = test::open_tiny(test::tiny_context_params(kAloneContext), kind).release();
    }

    test::TinyKind kind() const { return kind_; }

    // Two answers may be as good as each other but for llama.cpp's rounding, which sums otherwise in other batches.
    void check(const Tokens & tokens, const std::string & json, double logprob) const {
        auto state = sized<token_trie_stream_state>();
        require(token_trie_stream_prefill(stream_, tokens.data(), tokens.size()) == TOKEN_TRIE_OK &&
                    test::set_trie(stream_, json) == TOKEN_TRIE_OK &&
                    token_trie_stream_generate(stream_, kMost, nullptr, nullptr) == TOKEN_TRIE_OK &&
                    token_trie_stream_get_state(stream_, &state) == TOKEN_TRIE_OK,
                "a stream answers alone");
        require(std::abs(state.logprob - logprob) < (test::tiny_window(kind_) > 0 ? 0.03 : 1e-3),
                "what is decided is decided as alone");
    }

   private:
    test::TinyKind kind_;
    token_trie_stream * stream_;
};

const Alone & alone(std::uint32_t i) {
    using Kind = test::TinyKind;
    static const std::array<Alone, 4> all{Alone(Kind::attention), Alone(Kind::hybrid), Alone(Kind::window_of_16),
                                          Alone(Kind::recurrent)};
    return all[i % all.size()];
}

// A prompt that is out, or to be.
struct Asked {
    Tokens tokens;
    PayloadCase payload;
    token_trie_query query{};
    token_trie_sampling sampling{};
    bool is_cancelled = false;
};

using test::AnswerHandle;
using test::info_of;
using test::logprobs_of;
using test::tokens_of;

class Caller {
   public:
    explicit Caller(std::uint32_t how) : alone_(alone(how / 36)), n_ctx_(how % 3 == 2 ? 512 : 256) {
        llama_context_params context = test::tiny_context_params(n_ctx_);
        context.n_ubatch = how / 3 % 3 == 2 ? 8 : 64;
        auto params = sized<token_trie_batch_params>();
        params.n_ctx_first = 256;  // grows to 512
        params.n_parallel = std::array<std::int32_t, 4>{0, 2, 3, 8}[how / 9 % 4];
        batch_ = token_trie_batch_open(test::tiny_model(alone_.kind()), &context, &params);
        require(batch_ != nullptr, "a batch can be opened");
    }
    Caller(const Caller &) = delete;
    Caller & operator=(const Caller &) = delete;
    ~Caller() { token_trie_batch_close(batch_); }

    void finish() {
        while (is_open_ && !out_.empty()) {
            take(0, kNoLimit);
        }
    }

    void call(Input & in) {
        switch (in.below(8)) {
            case 0:
            case 1: submit(in); break;
            case 2: in.one_in(2) ? submit_text(in) : submit(in); break;
            case 3: take(0, 0); break;
            case 4: take(out_.empty() ? 1 : ticket(in), in.one_in(2) ? kNoLimit : 1); break;
            case 5: cancel(in); break;
            case 6: beside_another_thread(in); break;
            default: odd(in); break;
        }
    }

   private:
    std::int64_t ticket(Input & in) const {
        auto at = out_.begin();
        std::advance(at, in.below(static_cast<std::uint32_t>(out_.size())));
        return at->first;
    }

    Expected expected() const {
        Expected out;
        out.wrong_if(!is_open_, TOKEN_TRIE_ERROR_ARGUMENT);
        return out;
    }

    void submit(Input & in) {
        Asked asked;
        asked.tokens = read_tokens(in, n_ctx_);
        asked.payload = read_payload_case(in);
        token_trie_query & query = asked.query;
        query.size = sizeof query;
        asked.sampling.size = sizeof asked.sampling;
        const std::uint32_t how = in.byte();
        query.mode = how == 255 ? 5 : static_cast<std::int32_t>(how % 4);
        asked.sampling.seed = 7;
        asked.sampling.temperature = static_cast<float>(how / 4 % 2);
        query.leaf_end = static_cast<std::int32_t>(how / 8 % 3);
        query.branches = static_cast<std::int32_t>(how / 32 % 2);
        query.n_best = how / 64 % 3;
        const test::SetHandle handle = set_of(asked.payload, llama_model_get_vocab(test::tiny_model()));
        if (handle == nullptr) {
            return;
        }
        query.set = handle.get();
        const bool is_scored = query.mode >= TOKEN_TRIE_QUERY_BEST;
        SetModel & set = asked.payload.set;
        set.options.on_complete = OnComplete::end;
        Expected wrong = expected();
        wrong.wrong_if(asked.tokens.empty() || query.mode == 5, TOKEN_TRIE_ERROR_ARGUMENT);
        wrong.wrong_if(is_scored && !set.is_scorable(), TOKEN_TRIE_ERROR_ARGUMENT);
        wrong.wrong_if(!in_vocab(asked.tokens), TOKEN_TRIE_ERROR_VOCAB);
        wrong.wrong_if(asked.tokens.size() > n_ctx_, TOKEN_TRIE_ERROR_CONTEXT);
        if (asked.tokens.size() + set.max_length + set.n_nodes > n_ctx_) {
            wrong.may(TOKEN_TRIE_ERROR_CONTEXT);
        }
        submit(std::move(asked), wrong);
    }

    void submit(Asked asked, const Expected & wrong) {
        asked.query.sampling = &asked.sampling;
        std::int64_t number = 0;
        if (wrong.check(
                token_trie_batch_submit(batch_, asked.tokens.data(), asked.tokens.size(), &asked.query, &number))) {
            require(number > 0 && out_.count(number) == 0, "a ticket is given once");
            out_.emplace(number, std::move(asked));
        }
    }

    // Free text, or what is thought before a set.
    void submit_text(Input & in) {
        static constexpr std::array<const char *, 3> kStops = {"a", "READ", ""};
        static const Tokens kMarker = test::bytes("->");
        static const test::SetHandle kSet = test::set_of(test::payload_of({{"READ", {test::kRead}}}));
        Asked asked;
        asked.tokens = read_tokens(in, n_ctx_);
        token_trie_query & query = asked.query;
        query.size = sizeof query;
        asked.sampling.size = sizeof asked.sampling;
        query.mode = TOKEN_TRIE_QUERY_TEXT;
        const std::uint32_t how = in.byte();
        asked.sampling.seed = how;
        asked.sampling.temperature = static_cast<float>(how % 2);
        query.stop_strings = kStops.data();
        query.n_stop_strings = how / 2 % 4;
        query.gbnf = std::array<const char *, 4>{nullptr, nullptr, "root ::= [a-z]*", "root ::= ("}[how / 8 % 4];
        query.max_tokens = static_cast<std::int32_t>(in.below(33)) - 1;
        auto params = sized<token_trie_params>();
        params.on_complete = TOKEN_TRIE_END;
        if (in.one_in(2)) {
            query.set = kSet.get();
            query.set_params = &params;
            params.start_after = kMarker.data();
            params.n_start_after = in.one_in(8) ? 0 : kMarker.size();
            params.max_before = static_cast<std::int32_t>(in.below(17)) - 1;
        }
        const bool has_no_marker = query.set != nullptr && params.n_start_after == 0;
        Expected wrong = expected();
        wrong.wrong_if(asked.tokens.empty() || query.max_tokens < 0 || query.n_stop_strings == 3 || has_no_marker,
                       TOKEN_TRIE_ERROR_ARGUMENT);
        wrong.wrong_if(how / 8 % 4 == 3, TOKEN_TRIE_ERROR_GRAMMAR);
        wrong.wrong_if(!in_vocab(asked.tokens), TOKEN_TRIE_ERROR_VOCAB);
        // A text ends where the context is full.
        wrong.wrong_if(asked.tokens.size() + (query.max_tokens > 0 ? 1 : 0) > n_ctx_, TOKEN_TRIE_ERROR_CONTEXT);
        submit(std::move(asked), wrong);
    }

    void take(std::int64_t number, std::int32_t timeout_ms) {
        token_trie_answer * taken = nullptr;
        Expected wrong = expected();
        wrong.wrong_if(number != 0 && out_.count(number) == 0, TOKEN_TRIE_ERROR_ARGUMENT);
        if (!wrong.check(token_trie_batch_next(batch_, number, timeout_ms, &taken, nullptr))) {
            require(taken == nullptr, "a call that fails gives none");
            return;
        }
        const AnswerHandle answer(taken);
        if (answer == nullptr) {
            require(out_.empty() || timeout_ms != kNoLimit, "who waits gets an answer");
            return;
        }
        const std::int64_t its = info_of(answer).ticket;
        require(number == 0 || its == number, "the answer waited for");
        const auto at = out_.find(its);
        require(at != out_.end(), "an answer is to a prompt that is out");
        check(at->second, answer);
        out_.erase(at);
    }

    void check(const Asked & asked, const AnswerHandle & answer) const {
        const token_trie_answer_info its = info_of(answer);
        const std::vector<double> logprobs = logprobs_of(answer);
        const Tokens tokens = tokens_of(answer);
        if (its.status != TOKEN_TRIE_OK) {
            require(
                its.status == TOKEN_TRIE_ERROR_CANCELLED ? asked.is_cancelled : its.status == TOKEN_TRIE_ERROR_CONTEXT,
                "a prompt fails where it is cancelled, or its tree finds no cells");
            require(*info_of(answer).message != '\0', "a failure has its message");
            return;
        }
        if (asked.query.mode == TOKEN_TRIE_QUERY_TEXT) {
            require(its.n_free + its.n_forced <= static_cast<std::uint64_t>(asked.query.max_tokens), "max_tokens");
            require(its.leaf == -1, "text is no member");
            require(tokens.size() <= static_cast<std::size_t>(asked.query.max_tokens), "no more than asked for");
            require((its.stop == TOKEN_TRIE_STOP_STRING) == (its.stop_string >= 0), "the stop string has its number");
            return;
        }
        const SetModel & set = asked.payload.set;
        require(its.leaf >= -1 && its.leaf < static_cast<std::int64_t>(set.n_leaves), "leaf");
        require(its.logprob <= 1e-4, "a logarithm");
        if (asked.query.mode == TOKEN_TRIE_QUERY_SCORES) {
            double sum = 0;
            for (const double logprob : logprobs) {
                require(logprob <= 1e-5, "a leaf's logarithm");
                sum += std::exp(logprob);
            }
            require(logprobs.size() == set.n_leaves, "every leaf has a score");
            require((asked.query.leaf_end == TOKEN_TRIE_LEAF_ANY && asked.query.branches == 0) || sum < 1.001,
                    "members exclude each other");
        } else if (asked.query.mode <= TOKEN_TRIE_QUERY_SAMPLED) {
            require(set.members.count(tokens) > 0, "what is taken is a member");
        }
        if (asked.query.mode == TOKEN_TRIE_QUERY_GREEDY && asked.tokens.size() + set.max_length < kAloneContext) {
            alone_.check(asked.tokens, asked.payload.json, its.logprob);
        }
    }

    void cancel(Input & in) {
        const std::int64_t number = out_.empty() ? 99 : ticket(in);
        token_trie_batch_cancel(batch_, number);
        if (!out_.empty()) {
            out_[number].is_cancelled = true;
        }
    }

    // It cancels and closes, while this thread waits.
    void beside_another_thread(Input & in) {
        if (!is_open_) {
            return;
        }
        const std::uint32_t script = in.byte();
        const bool closes = script % 8 == 7;
        std::vector<std::int64_t> numbers;
        for (auto & [number, asked] : out_) {
            asked.is_cancelled = asked.is_cancelled || script % 8 == 1;
            numbers.push_back(number);
        }
        std::thread another([batch = batch_, script, closes, numbers] {
            for (std::uint32_t i = 0; i < script / 8; ++i) {
                std::this_thread::yield();
            }
            for (const std::int64_t number : numbers) {
                if (script % 8 == 1) {
                    token_trie_batch_cancel(batch, number);
                }
            }
            if (closes) {
                token_trie_batch_close(batch);
            }
        });
        if (closes) {
            token_trie_answer * taken = nullptr;
            std::int32_t status = TOKEN_TRIE_OK;
            while ((status = token_trie_batch_next(batch_, 0, 1, &taken, nullptr)) == TOKEN_TRIE_OK) {
                if (const AnswerHandle answer(taken); answer != nullptr) {
                    require(out_.erase(info_of(answer).ticket) == 1, "an answer is to a prompt that is out");
                }
            }
            require(status == TOKEN_TRIE_ERROR_CANCELLED || status == TOKEN_TRIE_ERROR_ARGUMENT, "a close is told");
            is_open_ = false;
            out_.clear();
        } else {
            while (!out_.empty()) {
                take(0, kNoLimit);
            }
        }
        another.join();
    }

    void odd(Input & in) {
        Expected wrong;
        wrong.wrong_if(true, TOKEN_TRIE_ERROR_ARGUMENT);
        token_trie_answer * answer = nullptr;
        switch (in.below(5)) {
            case 0: wrong.check(token_trie_batch_next(batch_, 1 << 20, 0, &answer, nullptr)); break;
            case 1: wrong.check(token_trie_batch_submit(batch_, nullptr, 0, nullptr, nullptr)); break;
            case 2: wrong.check(token_trie_batch_next(nullptr, 0, 0, &answer, nullptr)); break;
            case 3: wrong.check(token_trie_batch_next(batch_, 0, 0, nullptr, nullptr)); break;
            default:
                token_trie_batch_close(batch_);
                is_open_ = false;
                out_.clear();
                break;
        }
    }

    const Alone & alone_;
    std::uint32_t n_ctx_;
    token_trie_batch * batch_ = nullptr;
    bool is_open_ = true;
    std::map<std::int64_t, Asked> out_;
};

}  // namespace

void run(Input & in) {
    static const bool is_quiet = [] {
        llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
        return true;
    }();
    static_cast<void>(is_quiet);
    Caller caller(in.byte());
    for (int n = 0; n < kLongest && !in.empty(); ++n) {
        caller.call(in);
    }
    caller.finish();
}

}  // namespace token_trie::fuzz
