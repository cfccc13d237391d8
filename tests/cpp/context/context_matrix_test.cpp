#include "answer.h"
#include "oracle.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <sstream>

// A stream on every kind of model and context, beside a plain llama.cpp loop that takes one token after the other.
namespace token_trie::test {
namespace {

// Members that begin others, and members whose beginning is forced for longer than a micro-batch.
const std::vector<Leaf> kMixed = {{"READ", {kRead}},
                                  {"READ_FILE", {kRead, kFile}},
                                  {"READ_MAIL", {kRead, kMail}},
                                  {"SEND_MAIL", {kSend, kMail}},
                                  {"SEND", bytes("SEND")},
                                  {"write", bytes("write")}};
const std::vector<Leaf> kForced = {
    {"x", bytes("forced up to here: x")}, {"y", bytes("forced up to here: yes")}, {"z", bytes("forced up to here: z")}};
const Tokens kPrompt = bytes("a prompt that takes more than one batch of sixty-four tokens, and some more: ");
const Tokens kOther = bytes("a prompt that takes one batch: ");

enum class Cache { f32, f16, q8_0 };
enum class Adapts { nothing, a_layer, the_output };

struct Setting {
    TinyKind kind;
    std::uint32_t n_batch;  // and so many sequence ids at most
    std::uint32_t n_ubatch;
    bool flash;
    Cache cache;
    bool listens;  // has no cb_eval of the caller's
    Adapts adapts;
};

const char * name_of(TinyKind kind) {
    switch (kind) {
        case TinyKind::attention: return "Attention";
        case TinyKind::sliding_window: return "SlidingWindow";
        case TinyKind::window_of_16: return "WindowOf16";
        case TinyKind::window_of_32: return "WindowOf32";
        case TinyKind::recurrent: return "Recurrent";
        case TinyKind::hybrid: return "Hybrid";
        case TinyKind::quantized: return "Quantized";
        case TinyKind::capped: return "Capped";
        default: return "Other";
    }
}

std::string name_of(const Setting & setting) {
    std::ostringstream out;
    out << name_of(setting.kind) << "_" << setting.n_batch << "a_batch_" << setting.n_ubatch << "at_once"
        << (setting.flash ? "_flash" : "")
        << (setting.cache == Cache::f32   ? "_F32"
            : setting.cache == Cache::f16 ? "_F16"
                                          : "_Q8")
        << (setting.listens ? "_listens" : "")
        << (setting.adapts == Adapts::nothing   ? ""
            : setting.adapts == Adapts::a_layer ? "_adapted"
                                                : "_adaptedOutput");
    return out.str();
}

// Drawn from all there are, so many that each pair of values meets. llama.cpp wants flash attention and a head of 32
// for a quantized cache, and a layer that attends for an adapter of its queries; an output matrix that is the
// embeddings' too has an adapter of another shape.
std::vector<Setting> settings() {
    std::mt19937 rng(8);
    const auto one_of = [&](auto... values) {
        const std::array all = {values...};
        return all[std::uniform_int_distribution<std::size_t>(0, all.size() - 1)(rng)];
    };
    std::vector<Setting> out;
    while (out.size() < 64) {
        Setting setting = {
            one_of(TinyKind::attention, TinyKind::sliding_window, TinyKind::recurrent, TinyKind::hybrid,
                   TinyKind::quantized, TinyKind::capped, TinyKind::window_of_16, TinyKind::window_of_32),
            one_of(1U, 2U, 7U, 64U),
            one_of(7U, 16U, 64U),
            one_of(true, false),
            one_of(Cache::f32, Cache::f16, Cache::q8_0),
            one_of(true, false),
            one_of(Adapts::nothing, Adapts::a_layer, Adapts::the_output)};
        if (setting.cache == Cache::q8_0) {
            setting.flash = true;
            setting.kind = one_of(TinyKind::quantized, TinyKind::hybrid);
        }
        if ((setting.adapts == Adapts::a_layer && setting.kind == TinyKind::recurrent) ||
            (setting.adapts == Adapts::the_output && setting.kind == TinyKind::hybrid)) {
            setting.adapts = Adapts::nothing;
        }
        out.push_back(setting);
    }
    return out;
}

llama_context_params params_of(const Setting & setting) {
    llama_context_params params = tiny_context_params(256);
    params.flash_attn_type = setting.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = setting.cache == Cache::f32   ? GGML_TYPE_F32
                                    : setting.cache == Cache::f16 ? GGML_TYPE_F16
                                                                  : GGML_TYPE_Q8_0;
    return params;
}

Handle open(const Setting & setting, llama_adapter_lora * adapter) {
    llama_context_params context_params = params_of(setting);
    context_params.n_batch = setting.n_batch;
    context_params.n_ubatch = std::min(setting.n_ubatch, setting.n_batch);
    if (!setting.listens) {
        context_params.cb_eval = [](ggml_tensor * /*node*/, bool /*ask*/, void * /*user*/) { return false; };
    }
    auto params = sized<token_trie_stream_params>();
    params.adapters = &adapter;
    params.n_adapters = adapter == nullptr ? 0 : 1;
    return open_tiny(context_params, setting.kind, params);
}

// Log-probabilities from a context with a cache and kernels of the same kind and nothing else: a prompt in batches, and
// what goes on from there one token a pass.
class PlainLoop {
   public:
    PlainLoop(const Setting & setting, llama_adapter_lora * adapter)
        : context_(tiny_context_of(params_of(setting), setting.kind)) {
        set_adapter(context_.get(), adapter);
    }

    const std::vector<double> & after(const Tokens & tokens) {
        std::vector<double> & out = known_[tokens];
        if (!out.empty()) {
            return out;
        }
        const bool goes_on = here_.size() < tokens.size() && std::equal(here_.begin(), here_.end(), tokens.begin());
        if (!goes_on) {
            llama_memory_clear(llama_get_memory(context_.get()), true);
            here_.clear();
        }
        const std::size_t n_batch = here_.empty() ? llama_n_batch(context_.get()) : 1;
        while (here_.size() < tokens.size()) {
            const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(here_.size());
            Tokens batch(from, from + static_cast<std::ptrdiff_t>(std::min(n_batch, tokens.size() - here_.size())));
            EXPECT_EQ(llama_decode(context_.get(),
                                   llama_batch_get_one(batch.data(), static_cast<std::int32_t>(batch.size()))),
                      0);
            here_.insert(here_.end(), batch.begin(), batch.end());
        }
        const float * logits = llama_get_logits_ith(context_.get(), -1);
        return out = log_probabilities(logits);
    }
    double logprob(Tokens tokens, const Tokens & leaf) {
        double sum = 0;
        for (const Token token : leaf) {
            sum += after(tokens)[static_cast<std::size_t>(token)];
            tokens.push_back(token);
        }
        return sum;
    }

   private:
    Context context_;
    Tokens here_;  // in its memory
    std::map<Tokens, std::vector<double>> known_;
};

class ContextMatrix : public ::testing::TestWithParam<Setting> {
   protected:
    void SetUp() override {
        ASSERT_EQ(adapter_ == nullptr, GetParam().adapts == Adapts::nothing);
        ASSERT_NE(stream_, nullptr);
    }

    void prefill(const Tokens & tokens) {
        ASSERT_EQ(token_trie_stream_prefill(stream_.get(), tokens.data(), tokens.size()), TOKEN_TRIE_OK)
            << token_trie_last_error();
        sequence_ = tokens;
    }

    Tokens generate(std::int32_t max_tokens) {
        Tokens out;
        const auto on_token = [](const token_trie_token * token, void * user) {
            static_cast<Tokens *>(user)->push_back(token->id);
            return true;
        };
        EXPECT_EQ(token_trie_stream_generate(stream_.get(), max_tokens, on_token, &out), TOKEN_TRIE_OK)
            << token_trie_last_error();
        return out;
    }

    // Whether no allowed token is better; nullopt: all are.
    void expect_greedy(Token token, const std::optional<std::set<Token>> & allowed) {
        const std::vector<double> & log = loop_.after(sequence_);
        for (Token other = 0; other < kTinyVocab; ++other) {
            if (!allowed || allowed->count(other) > 0) {
                ASSERT_GE(log[static_cast<std::size_t>(token)], log[static_cast<std::size_t>(other)] - near_)
                    << other << " is better than " << token << " after " << sequence_.size() << " tokens";
            }
        }
    }

    void expect_member(const std::vector<Leaf> & leaves) {
        const std::string payload = payload_of(leaves);
        ASSERT_EQ(set_trie(stream_.get(), payload), TOKEN_TRIE_OK);
        std::set<Tokens> members;
        for (const Leaf & leaf : leaves) {
            members.insert(leaf.tokens);
        }
        Oracle oracle(members, {OnComplete::end, {kTinyEnd}, {}, 0});
        for (const Token token : generate(64)) {
            expect_greedy(token, oracle.allowed());
            ASSERT_TRUE(oracle.accept(token));
            sequence_.push_back(token);
        }
        expect_greedy(kTinyEnd, oracle.allowed());
        ASSERT_TRUE(oracle.accept(kTinyEnd));
        token_trie_stream_clear_token_trie(stream_.get());
    }

    void expect_free_text() {
        for (const Token token : generate(6)) {
            expect_greedy(token, std::nullopt);
            sequence_.push_back(token);
        }
    }

    void expect_scores(const std::vector<Leaf> & leaves, const Tokens & prefix = {}) {
        const SetHandle set = set_of(payload_of(leaves));
        token_trie_query query = query_of(set, TOKEN_TRIE_QUERY_SCORES);
        std::vector<double> scores = scores_of(stream_.get(), query, prefix);
        ASSERT_EQ(scores.size(), leaves.size()) << token_trie_last_error();
        for (std::size_t i = 0; i < leaves.size(); ++i) {
            EXPECT_NEAR(scores[i], loop_.logprob(prefix.empty() ? sequence_ : prefix, leaves[i].tokens), near_)
                << leaves[i].name;
        }
        query.mode = TOKEN_TRIE_QUERY_BEST;
        query.n_best = 2;
        const std::vector<double> logprobs = scores_of(stream_.get(), query, prefix);
        ASSERT_EQ(logprobs.size(), 2U) << token_trie_last_error();
        std::sort(scores.begin(), scores.end(), std::greater<>());
        EXPECT_NEAR(logprobs[0], scores[0], near_);
        EXPECT_NEAR(logprobs[1], scores[1], near_);
    }

   private:
    // For sums over a member's tokens. Values rounded to eight bits on their way fall to the other side now and then;
    // so do, by less, values that Gemma's GELU looks up in a table in half precision.
    const double near_ = GetParam().kind == TinyKind::quantized || GetParam().cache == Cache::q8_0 ? 0.1
                         : tiny_window(GetParam().kind) > 0                                        ? 1e-2
                                                                                                   : 5e-3;

    CapturedLog quiet_;
    const Adapter adapter_ =
        GetParam().adapts == Adapts::nothing
            ? nullptr
            : tiny_adapter(GetParam().kind,
                           GetParam().adapts == Adapts::a_layer ? "blk.1.attn_q.weight" : "output.weight");
    PlainLoop loop_{GetParam(), adapter_.get()};
    const Handle stream_ = open(GetParam(), adapter_.get());
    Tokens sequence_;
};

TEST_P(ContextMatrix, AnswersAndScoresAreThoseOfAPlainLoop) {
    for (const Tokens & prompt : {kPrompt, kOther, kPrompt}) {
        prefill(prompt);
        expect_scores(kMixed);
        expect_member(kMixed);
        expect_free_text();
        expect_scores(kForced, kOther);
        expect_member(kForced);
        expect_scores(kMixed, bytes("behind this: "));
    }
}

INSTANTIATE_TEST_SUITE_P(On, ContextMatrix, ::testing::ValuesIn(settings()), [](const auto & info) {
    return std::to_string(info.index) + "_" + name_of(info.param);
});

}  // namespace
}  // namespace token_trie::test
