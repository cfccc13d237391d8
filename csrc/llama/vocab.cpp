#include "llama/vocab.h"

#include "trie/sha256.h"

#include <llama.h>

#include <algorithm>
#include <exception>
#include <future>
#include <thread>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// Models without a tokenizer have a vocabulary too, which llama.cpp aborts on when asked for texts.
bool has_texts(const llama_vocab * vocab) {
    return vocab != nullptr && llama_vocab_n_tokens(vocab) > 0 && llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
}

void append_piece(const llama_vocab * vocab, Token token, bool special, std::string & text) {
    char buffer[256];
    std::int32_t n = llama_token_to_piece(vocab, token, buffer, sizeof buffer, 0, special);
    if (n >= 0) {
        text.append(buffer, static_cast<std::size_t>(n));
        return;
    }
    const std::size_t start = text.size();
    text.resize(start + static_cast<std::size_t>(-n));
    n = llama_token_to_piece(vocab, token, &text[start], -n, 0, special);
    text.resize(start + static_cast<std::size_t>(std::max(n, 0)));
}

// All texts of a vocabulary, each with its NUL, which are compared faster than hashed.
struct Fingerprinted {
    std::string texts;
    std::string fingerprint;
};

// Hashing a large vocabulary takes some ten milliseconds, which a sampler made anew for each request is not to cost:
// the last few are kept for the process, and found by their texts, as another vocabulary may be at the same address.
// The lock is held neither while they are compared nor while one is made.
template <typename IsSame, typename Make>
std::shared_ptr<const Fingerprinted> remembered(const IsSame & is_same, const Make & make) {
    static std::mutex mutex;
    static std::vector<std::shared_ptr<const Fingerprinted>> latest;
    std::unique_lock<std::mutex> lock(mutex);
    const std::vector<std::shared_ptr<const Fingerprinted>> known = latest;
    lock.unlock();
    const auto at = std::find_if(known.begin(), known.end(), [&](const auto & each) { return is_same(*each); });
    if (at != known.end()) {
        return *at;
    }
    auto made = std::make_shared<const Fingerprinted>(make());
    constexpr std::size_t capacity = 8;
    lock.lock();
    if (latest.size() == capacity) {
        latest.erase(latest.begin());
    }
    latest.push_back(made);
    return made;
}

bool looks_like_control(const std::string & text) {
    return text.size() > 4 && text.compare(0, 2, "<|") == 0 && text.compare(text.size() - 2, 2, "|>") == 0;
}

// Texts begin to end of a list. A tokenizer is read alone, so that any number of threads may use one.
LeafList tokenize_some(const llama_vocab * vocab,
                       const std::vector<std::string> & texts,
                       std::size_t begin,
                       std::size_t end,
                       const std::string & what,
                       bool special) {
    LeafList out;
    std::vector<Token> tokens;
    for (std::size_t i = begin; i < end; ++i) {
        const std::string & text = texts[i];
        throw_if(text.size() > kMaxNameBytes, Status::limit, what, "[", i, "]: ", text.size(), " bytes; at most 65535");
        tokens.resize(text.size() + 8);
        const std::int32_t n = llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                                              static_cast<std::int32_t>(tokens.size()), /* add_special = */ false,
                                              /* parse_special = */ special);
        tokens.resize(static_cast<std::size_t>(std::max(n, 0)));
        const std::string spelled = detokenize(vocab, tokens);
        // SentencePiece vocabularies put a space before the text.
        throw_if(spelled != text && spelled != " " + text, Status::vocab, what, "[", i,
                 "]: cannot be spelled in this vocabulary");
        // By a merge, which some tokenizers make into any token.
        const auto is_control = [&](Token token) { return llama_vocab_is_control(vocab, token); };
        throw_if(!special && std::any_of(tokens.begin(), tokens.end(), is_control), Status::vocab, what, "[", i,
                 "]: is spelled with a control token in this vocabulary");
        out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
        out.end_leaf();
    }
    return out;
}

}  // namespace

std::int32_t Vocab::size() const { return vocab_ == nullptr ? 0 : llama_vocab_n_tokens(vocab_); }

const std::string & Vocab::fingerprint() const {
    return fingerprint_.get([this]() -> std::string {
        if (!has_texts(vocab_)) {
            return "";
        }
        const auto for_each_text = [this](const auto & visit) {
            for (Token token = 0; token < size(); ++token) {
                if (!visit(std::string_view(llama_vocab_get_text(vocab_, token)))) {
                    return false;
                }
            }
            return true;
        };
        const auto is_same = [&](const Fingerprinted & known) {
            std::size_t at = 0;
            const bool is_beginning = for_each_text([&](std::string_view text) {
                const std::size_t begin = std::exchange(at, at + text.size() + 1);
                return std::string_view(known.texts).substr(std::min(begin, known.texts.size()), text.size() + 1) ==
                       std::string_view(text.data(), text.size() + 1);
            });
            return is_beginning && at == known.texts.size();
        };
        const auto make = [&] {
            Fingerprinted made;
            TextsHash hash(static_cast<std::size_t>(size()));
            for_each_text([&](std::string_view text) {
                made.texts.append(text).push_back('\0');
                hash.add(text);
                return true;
            });
            made.fingerprint = hash.finish();
            return made;
        };
        return remembered(is_same, make)->fingerprint;
    });
}

bool Vocab::is_control(Token token) const {
    return token >= 0 && token < size() && llama_vocab_is_control(vocab_, token);
}

const std::vector<Token> & Vocab::end_of_generation() const {
    return end_of_generation_.get([this] {
        std::vector<Token> out;
        for (Token token = 0; has_texts(vocab_) && token < size(); ++token) {
            if (llama_vocab_is_eog(vocab_, token)) {
                out.push_back(token);
            }
        }
        return out;
    });
}

std::vector<std::pair<Token, std::string>> Vocab::control_texts() const {
    std::vector<std::pair<Token, std::string>> out;
    if (!has_texts(vocab_)) {
        return out;
    }
    for (Token token = 0; token < size(); ++token) {
        const int attr = llama_vocab_get_attr(vocab_, token);
        const bool is_special = (attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
        if (!is_special && (attr & LLAMA_TOKEN_ATTR_USER_DEFINED) == 0 && !llama_vocab_is_eog(vocab_, token)) {
            continue;
        }
        std::string text = llama_vocab_get_text(vocab_, token);
        if (!text.empty() && (is_special || llama_vocab_is_eog(vocab_, token) || looks_like_control(text))) {
            out.emplace_back(token, std::move(text));
        }
    }
    return out;
}

LeafList tokenize(const llama_vocab * vocab,
                  const std::vector<std::string> & texts,
                  const std::string & what,
                  bool special,
                  const std::function<void()> & check) {
    throw_if(!has_texts(vocab), Status::vocab, what, ": this model has no tokenizer; give token sequences instead");
    constexpr std::size_t piece = 512;  // texts for which a thread is worth it
    constexpr std::size_t most_threads = 64;
    const std::size_t n_pieces = std::max<std::size_t>(1, texts.size() / piece);
    const std::size_t n_threads =
        std::clamp<std::size_t>(std::min<std::size_t>(n_pieces, std::thread::hardware_concurrency()), 1, most_threads);
    const auto begin_of = [&](std::size_t i) { return texts.size() * i / n_pieces; };
    // A thread takes the next piece when it is done with one, as some cores have other work too.
    std::vector<std::promise<LeafList>> pieces(n_pieces);
    std::atomic<std::size_t> next{0};
    std::atomic<bool> has_failed{false};
    const auto work = [&](const std::function<void()> & before_each) {
        while (!has_failed) {
            const std::size_t i = next++;
            if (i >= n_pieces) {
                return;
            }
            try {
                if (before_each) {
                    before_each();
                }
                pieces[i].set_value(tokenize_some(vocab, texts, begin_of(i), begin_of(i + 1), what, special));
            } catch (...) {
                has_failed = true;
                pieces[i].set_exception(std::current_exception());
            }
        }
    };
    {
        std::vector<std::future<void>> others;  // which are waited for where it ends
        for (std::size_t i = 1; i < n_threads; ++i) {
            others.push_back(std::async(std::launch::async, work, nullptr));
        }
        work(check);
    }
    // In order, so that of several wrong texts the first is reported: all pieces before one that failed were done.
    LeafList out;
    for (std::promise<LeafList> & made : pieces) {
        out.append(made.get_future().get());
    }
    return out;
}

std::string detokenize(const llama_vocab * vocab, const Token * tokens, std::size_t n, bool special) {
    throw_if(!has_texts(vocab), Status::vocab, "tokens: this model has no tokenizer");
    check_tokens(tokens, n, llama_vocab_n_tokens(vocab), "tokens");
    std::string text;
    std::for_each(tokens, tokens + n, [&](Token token) { append_piece(vocab, token, special, text); });
    return text;
}

}  // namespace token_trie
