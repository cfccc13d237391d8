#include "abi_calls.h"
#include "answer.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstring>

namespace token_trie::fuzz {
namespace {

using test::Tokens;

std::set<Token> ends_of(const TinyMake & make) {
    const llama_vocab * vocab = llama_model_get_vocab(test::tiny_model(make.kind));
    std::set<Token> out;
    for (const Token token : {test::kTinyEnd, test::kSend}) {
        if (llama_vocab_is_eog(vocab, token)) {
            out.insert(token);
        }
    }
    return out;
}

}  // namespace

std::array<std::atomic<std::uint64_t>, Caller::kCalls> Caller::counts{};

Caller::Caller(std::uint32_t context) : make_(tiny_make_at(context)), ends_(ends_of(make_)), model_(kCapacity, ends_) {}

Caller::Caller(Caller & parent, token_trie_stream * stream)
    : make_(parent.make_),
      ends_(parent.ends_),
      stream_(stream),
      is_open_(true),
      model_(parent.model_.fork()),
      set_(parent.set_),
      sets_(parent.sets_),
      parent_(&parent) {
    check_state();
}

Caller::~Caller() { token_trie_stream_close(stream_); }

const llama_vocab * Caller::vocab() const { return llama_model_get_vocab(test::tiny_model(make_.kind)); }

Expected Caller::expected() const {
    Expected out;
    out.wrong_if(!is_open_, TOKEN_TRIE_ERROR_ARGUMENT);
    if (fork_ != nullptr || parent_ != nullptr) {
        out.may(TOKEN_TRIE_ERROR_CONTEXT);  // which holds all of them together
    }
    if (is_held_up()) {
        out.may(TOKEN_TRIE_ERROR_BUSY);
    }
    if (is_disturbed_) {
        out.may(TOKEN_TRIE_ERROR_CANCELLED);
        if (is_closed_by_another_) {
            out.may(TOKEN_TRIE_ERROR_ARGUMENT);
        }
    }
    return out;
}

bool Caller::is_held_up() const {
    return is_disturbed_ || (parent_ != nullptr && parent_->is_disturbed_) ||
           (fork_ != nullptr && fork_->is_disturbed_);
}

void Caller::call(Input & in) {
    if (fork_ != nullptr && in.below(2) == 1) {
        fork_->call(in);
        return;
    }
    const std::uint32_t choice = in.byte();
    const std::uint32_t which = choice < 208 ? choice % 16 : 16 + choice % 4;
    ++counts[which];
    if (!is_open_ && parent_ == nullptr && (which % 4 != 0 || stream_ == nullptr)) {
        open(in);
        return;
    }
    switch (which) {
        case 0: prefill(in); break;
        case 1: append(in); break;
        case 2: set_trie(in); break;
        case 3:
        case 4: set_trie_ext(in); break;
        case 5: clear(); break;
        case 6: set_grammar(in); break;
        case 7:
        case 8: generate(in); break;
        case 9: next(in); break;
        case 10: score(in); break;
        case 11: search(in); break;
        case 12:
        case 13: others(in); break;
        case 14: close(); break;
        case 16: fork(in); break;
        case 17: generate_until(in); break;
        case 18: read_set(in); break;
        case 19: set_by_path(in); break;
        default: beside_another_thread(in); break;
    }
    check_state();
}

void Caller::open(Input & in) {
    auto params = sized<token_trie_stream_params>();
    const std::uint32_t choice = in.byte();
    auto sampling = sized<token_trie_sampling>();
    params.sampling = &sampling;
    sampling.seed = choice;
    sampling.top_k = choice == 255 ? -1 : static_cast<std::int32_t>(choice % 3);
    sampling.min_p = choice == 254 ? 2.0F : choice % 5 == 4 ? 0.1F : 0.0F;
    sampling.penalty_last_n = choice % 7 == 6 ? 16 : 0;
    sampling.penalty_repeat = choice % 7 == 6 ? 1.5F : 0.0F;
    params.step_by_step = choice % 11 == 10 ? 1 : 0;
    Expected wrong;
    wrong.wrong_if(choice >= 254, TOKEN_TRIE_ERROR_ARGUMENT);
    token_trie_stream * stream = open_stream(make_, params);
    if (!wrong.check(stream == nullptr ? token_trie_last_status() : TOKEN_TRIE_OK)) {
        return;
    }
    require(stream != stream_, "a handle is given once");
    stream_ = stream;
    is_open_ = true;
    fork_.reset();
    set_ = nullptr;
    sets_.clear();
    model_ = StreamModel(kCapacity, ends_);
    check_state();
}

void Caller::prefill(Input & in) {
    Tokens tokens = read_tokens(in, model_.capacity());
    Expected wrong = expected();
    wrong.wrong_if(tokens.empty(), TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(tokens.size() > model_.capacity(), TOKEN_TRIE_ERROR_CONTEXT);
    wrong.wrong_if(!in_vocab(tokens), TOKEN_TRIE_ERROR_VOCAB);
    if (wrong.check(token_trie_stream_prefill(stream_, tokens.data(), tokens.size()))) {
        model_.prefill(std::move(tokens));
    }
}

void Caller::append(Input & in) {
    const std::size_t n = model_.tokens().size();
    const std::uint32_t back = in.byte();
    const std::size_t n_kept = back == 255 ? n + 1 : n - back % (n + 1);
    const Tokens tokens = read_tokens(in, model_.capacity());
    Expected wrong = expected();
    wrong.wrong_if(n_kept > n, TOKEN_TRIE_ERROR_ARGUMENT);
    wrong.wrong_if(n_kept + tokens.size() > model_.capacity(), TOKEN_TRIE_ERROR_CONTEXT);
    wrong.wrong_if(!in_vocab(tokens), TOKEN_TRIE_ERROR_VOCAB);
    if (wrong.check(token_trie_stream_splice(stream_, n_kept, tokens.data(), tokens.size()))) {
        Tokens whole(model_.tokens().begin(), model_.tokens().begin() + static_cast<std::ptrdiff_t>(n_kept));
        whole.insert(whole.end(), tokens.begin(), tokens.end());
        model_.prefill(std::move(whole));
    }
}

void Caller::set_trie(Input & in) {
    PayloadCase payload = read_payload_case(in);
    const int mode = static_cast<int>(in.below(8) == 7 ? 2 : in.below(2));
    const test::SetHandle set = set_of(payload, vocab());
    if (set == nullptr) {
        return;
    }
    auto params = sized<token_trie_params>();
    params.mode = mode;
    params.on_complete = TOKEN_TRIE_END;
    Expected wrong = expected();
    wrong.wrong_if(mode == 2, TOKEN_TRIE_ERROR_ARGUMENT);
    if (wrong.check(token_trie_stream_set_token_trie(stream_, set.get(), mode == 0 ? nullptr : &params))) {
        payload.set.options.on_complete = OnComplete::end;
        payload.set.options.end_tokens.assign(ends_.begin(), ends_.end());
        model_.put(std::move(payload.set));
    }
}

void Caller::set_trie_ext(Input & in) {
    PayloadCase payload = read_payload_case(in);
    const OptionsCase how(in, ends_, payload.set);
    const test::SetHandle set = set_of(payload, vocab());
    if (set == nullptr) {
        return;
    }
    Expected wrong = expected();
    wrong.wrong(how.wrong);
    if (wrong.check(token_trie_stream_set_token_trie(stream_, set.get(), &how.params))) {
        payload.set.options = how.options;
        model_.put(std::move(payload.set));
    }
}

void Caller::read_set(Input & in) {
    nlohmann::json json = {{"descriptors", nlohmann::json::array()}};
    std::map<std::string, SetModel> sets;
    std::string text;
    std::int32_t status = 0;
    for (std::uint32_t n = in.below(3); n > 0; --n) {
        PayloadCase one = read_payload_case(in);
        if (one.status != 0) {
            text = one.json;
            status = one.status;
            break;
        }
        const std::string path = "p" + std::to_string(n);
        nlohmann::json descriptor = nlohmann::json::parse(one.json)["descriptors"][0];
        descriptor["path"] = path;
        json["descriptors"].push_back(std::move(descriptor));
        sets[path] = std::move(one.set);
        text = json.dump();
    }
    if (text.empty()) {
        return;
    }
    std::shared_ptr<const token_trie_set> read = set_of(PayloadCase{text, {}, status}, vocab());
    if (read != nullptr) {
        set_ = std::move(read);
        sets_ = std::move(sets);
    }
}

void Caller::set_by_path(Input & in) {
    static constexpr std::array<const char *, 4> paths = {"p1", "p2", "p3", nullptr};
    const char * path = in.one_of(paths);
    if (path == nullptr && sets_.size() > 1) {
        return;  // all of them as one, which is no set of this model's
    }
    const auto at = path != nullptr ? sets_.find(path) : sets_.size() == 1 ? sets_.begin() : sets_.end();
    SetModel set = at == sets_.end() ? SetModel() : at->second;
    OptionsCase how(in, ends_, set);
    how.params.path = path;
    Expected wrong = expected();
    wrong.wrong(how.wrong);
    wrong.wrong_if(at == sets_.end(), TOKEN_TRIE_ERROR_ARGUMENT);
    if (wrong.check(token_trie_stream_set_token_trie(stream_, set_.get(), &how.params))) {
        set.options = how.options;
        model_.put(std::move(set));
    }
}

void Caller::clear() {
    if (expected().check(token_trie_stream_clear_token_trie(stream_))) {
        model_.clear();
    }
}

void Caller::set_grammar(Input & in) {
    struct Grammar {
        const char * text;
        const char * root;
        bool is_valid;
    };
    static constexpr std::array<Grammar, 8> grammars = {{{nullptr, nullptr, true},
                                                         {"root ::= [ab]+", nullptr, true},
                                                         {R"(root ::= "READ" "_FILE"? [a-z]*)", nullptr, true},
                                                         {R"(x ::= "a" | "b" x)", "x", true},
                                                         {"", nullptr, false},
                                                         {"root ::= ", "other", false},
                                                         {"x ::= \"a\"", nullptr, false},
                                                         {"root ::= root \"a\"", nullptr, false}}};
    const Grammar & grammar = in.one_of(grammars);
    Expected wrong = expected();
    wrong.wrong_if(!grammar.is_valid, TOKEN_TRIE_ERROR_GRAMMAR);
    if (wrong.check(token_trie_stream_set_grammar(stream_, grammar.text, grammar.root))) {
        model_.has_grammar = grammar.text != nullptr;
    }
}

void Caller::others(Input & in) {
    switch (in.below(6)) {
        case 0: token_trie_stream_cancel(stream_); break;  // ends nothing
        case 1: {
            const Expected wrong = expected();
            const auto temperature = static_cast<float>(in.below(3));
            wrong.check(test::set_sampling(stream_, temperature, 1, in.byte()));
            break;
        }
        case 2:
            require((token_trie_stream_get_vocab(stream_) != nullptr) == is_open_ || is_disturbed_, "a vocabulary");
            break;
        case 3: token_trie_cache_clear(); break;
        case 4: {
            Expected wrong;
            wrong.wrong_if(true, TOKEN_TRIE_ERROR_ARGUMENT);
            wrong.check(token_trie_stream_prefill(nullptr, nullptr, 0));
            break;
        }
        default: {
            auto state = sized<token_trie_stream_state>();
            state.size = 1;
            Expected wrong = expected();
            wrong.wrong_if(true, TOKEN_TRIE_ERROR_ARGUMENT);
            wrong.check(token_trie_stream_get_state(stream_, &state));
            break;
        }
    }
}

void Caller::fork(Input & in) {
    if (parent_ != nullptr || (fork_ != nullptr && in.below(2) == 1)) {
        close();
        return;
    }
    fork_.reset();
    token_trie_stream * stream = token_trie_stream_fork(stream_);
    if (expected().check(stream == nullptr ? token_trie_last_status() : TOKEN_TRIE_OK)) {
        fork_.reset(new Caller(*this, stream));
    }
}

void Caller::close() {
    token_trie_stream_close(stream_);
    is_open_ = false;
}

void Caller::beside_another_thread(Input & in) {
    if (is_held_up() || !is_open_) {
        return;
    }
    const std::array<std::uint32_t, 3> script = {in.byte(), in.byte(), in.byte()};
    is_disturbed_ = true;
    is_closed_by_another_ = std::any_of(script.begin(), script.end(), [](std::uint32_t s) { return s % 8 == 7; });
    std::thread another([stream = stream_, script, state = sized<token_trie_stream_state>()]() mutable {
        for (const std::uint32_t step : script) {
            // Microseconds, in which the call here comes to different places.
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(step * step / 128);
            while (std::chrono::steady_clock::now() < until) {
            }
            switch (step % 8) {
                case 4: static_cast<void>(token_trie_stream_get_state(stream, &state)); break;
                case 5: token_trie_cache_clear(); break;
                case 6: static_cast<void>(token_trie_stream_get_vocab(stream)); break;
                case 7: token_trie_stream_close(stream); break;
                default: token_trie_stream_cancel(stream); break;
            }
        }
    });
    call(in);
    another.join();
    is_disturbed_ = false;
    is_open_ = is_open_ && !is_closed_by_another_;
    is_closed_by_another_ = false;
}

void Caller::check_state() {
    if (is_held_up() || stream_ == nullptr) {
        return;
    }
    auto state = sized<token_trie_stream_state>();
    if (expected().check(token_trie_stream_get_state(stream_, &state))) {
        model_.check(state);
    }
    Tokens tokens(model_.capacity() + 1);
    std::size_t n = 0;
    if (expected().check(token_trie_stream_get_tokens(stream_, tokens.data(), tokens.size(), &n))) {
        tokens.resize(n);
        require(tokens == model_.tokens(), "the sequence is what was put into it");
    }
}

}  // namespace token_trie::fuzz
