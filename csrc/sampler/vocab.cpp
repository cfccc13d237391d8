#include "sampler/vocab.h"

#include "trie/sha256.h"

#include <llama.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace token_trie {
namespace {

void update_u32(Sha256 & hash, std::size_t value) {
    const auto v = static_cast<std::uint32_t>(value);
    const unsigned char bytes[4] = {static_cast<unsigned char>(v), static_cast<unsigned char>(v >> 8U),
                                    static_cast<unsigned char>(v >> 16U), static_cast<unsigned char>(v >> 24U)};
    hash.update(bytes, sizeof bytes);
}

std::string compute_fingerprint(const llama_vocab * vocab) {
    Sha256 hash;
    const std::int32_t n = llama_vocab_n_tokens(vocab);
    update_u32(hash, static_cast<std::size_t>(n));
    for (Token token = 0; token < n; ++token) {
        const std::string_view text = llama_vocab_get_text(vocab, token);
        update_u32(hash, text.size());
        hash.update(text);
    }
    std::string out = "sha256:";
    for (const unsigned char byte : hash.finish()) {
        constexpr char hex[] = "0123456789abcdef";
        out += hex[byte >> 4U];
        out += hex[byte & 15U];
    }
    return out;
}

std::vector<Token> compute_end_of_generation(const llama_vocab * vocab) {
    std::vector<Token> out;
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        if (llama_vocab_is_eog(vocab, token)) {
            out.push_back(token);
        }
    }
    return out;
}

// What tells two vocabularies at one address apart, at the price of 64 texts instead of all.
struct Probe {
    const llama_vocab * vocab = nullptr;
    std::int32_t n = 0;
    const char * storage = nullptr;
    std::string texts;

    static Probe of(const llama_vocab * vocab) {
        constexpr std::int32_t n_samples = 64;
        Probe probe{vocab, llama_vocab_n_tokens(vocab), llama_vocab_get_text(vocab, 0), {}};
        for (std::int64_t i = 0; i < n_samples; ++i) {
            probe.texts += llama_vocab_get_text(vocab, static_cast<Token>(i * (probe.n - 1) / (n_samples - 1)));
            probe.texts += '\0';
        }
        return probe;
    }
    bool operator==(const Probe & other) const {
        return vocab == other.vocab && n == other.n && storage == other.storage && texts == other.texts;
    }
};

// The answers of the vocabularies asked about last.
template <typename Value>
class Memo {
   public:
    template <typename Compute>
    Value get(const llama_vocab * vocab, Compute && compute) {
        Probe probe = Probe::of(vocab);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            const auto at =
                std::find_if(entries_.begin(), entries_.end(), [&](const Entry & e) { return e.probe == probe; });
            if (at != entries_.end()) {
                return at->value;
            }
        }
        Value value = compute(vocab);
        const std::lock_guard<std::mutex> lock(mutex_);
        constexpr std::size_t capacity = 8;
        if (entries_.size() == capacity) {
            entries_.erase(entries_.begin());
        }
        entries_.push_back({std::move(probe), value});
        return value;
    }

   private:
    struct Entry {
        Probe probe;
        Value value;
    };
    std::mutex mutex_;
    std::vector<Entry> entries_;
};

// Models without a tokenizer have a vocabulary too, which llama.cpp aborts on when asked for texts.
bool has_texts(const llama_vocab * vocab) {
    return vocab_size(vocab) > 0 && llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
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

std::shared_ptr<const Lexicon> compute_lexicon(const llama_vocab * vocab) {
    std::vector<std::string> pieces(static_cast<std::size_t>(llama_vocab_n_tokens(vocab)));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const auto token = static_cast<Token>(i);
        if (!llama_vocab_is_eog(vocab, token)) {
            append_piece(vocab, token, /* special = */ false, pieces[i]);
        }
    }
    return std::make_shared<const Lexicon>(pieces, vocab_fingerprint(vocab));
}

template <typename Iterator, typename Where>
void check_range(Iterator begin, Iterator end, std::int32_t n_vocab, Where && where) {
    const auto at = std::find_if(begin, end, [n_vocab](Token t) { return t < 0 || t >= n_vocab; });
    if (at != end) {
        throw Error(Status::vocab, std::string(where()) + "[" + std::to_string(at - begin) +
                                       "]: " + std::to_string(*at) + " is outside the vocabulary (" +
                                       std::to_string(n_vocab) + " tokens)");
    }
}

}  // namespace

std::int32_t vocab_size(const llama_vocab * vocab) { return vocab == nullptr ? 0 : llama_vocab_n_tokens(vocab); }

std::string vocab_fingerprint(const llama_vocab * vocab) {
    static Memo<std::string> memo;
    return has_texts(vocab) ? memo.get(vocab, compute_fingerprint) : std::string();
}

std::vector<Token> vocab_end_of_generation(const llama_vocab * vocab) {
    static Memo<std::vector<Token>> memo;
    return has_texts(vocab) ? memo.get(vocab, compute_end_of_generation) : std::vector<Token>();
}

std::shared_ptr<const Lexicon> vocab_lexicon(const llama_vocab * vocab) {
    static Memo<std::shared_ptr<const Lexicon>> memo;
    return has_texts(vocab) ? memo.get(vocab, compute_lexicon) : nullptr;
}

void check_vocab(const Trie & trie, const llama_vocab * vocab) {
    const std::int32_t n = vocab_size(vocab);
    if (n == 0) {
        return;
    }
    if (!trie.vocab().empty() && trie.vocab() != vocab_fingerprint(vocab)) {
        throw Error(Status::vocab, "vocab: the set was made for another vocabulary (" + trie.vocab() +
                                       ") than this model's (" + vocab_fingerprint(vocab) +
                                       "); build it again with this model");
    }
    if (trie.max_token() < n) {
        return;
    }
    for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
        const std::vector<Token> tokens = trie.sequence(leaf);
        check_range(tokens.begin(), tokens.end(), n, [&] { return "leaf " + quote(trie.name(leaf)) + ": tokens"; });
    }
}

void check_vocab(const FollowSet & follow, const llama_vocab * vocab) {
    const std::int32_t n = vocab_size(vocab);
    if (n > 0) {
        check_range(follow.end_tokens().begin(), follow.end_tokens().end(), n, [] { return "end_tokens"; });
        check_range(follow.separator().begin(), follow.separator().end(), n, [] { return "separator"; });
    }
}

LeafList tokenize(const llama_vocab * vocab, const std::vector<std::string> & texts, const std::string & what) {
    if (!has_texts(vocab)) {
        throw Error(Status::vocab, what + ": this model has no tokenizer; give token sequences instead");
    }
    LeafList out;
    std::vector<Token> tokens;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const std::string & text = texts[i];
        const auto place = [&] { return what + "[" + std::to_string(i) + "]: "; };
        if (text.size() > kMaxNameBytes) {
            throw Error(Status::limit, place() + std::to_string(text.size()) + " bytes; at most 65535");
        }
        tokens.resize(text.size() + 8);
        const std::int32_t n = llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                                              static_cast<std::int32_t>(tokens.size()), /* add_special = */ false,
                                              /* parse_special = */ false);
        tokens.resize(static_cast<std::size_t>(std::max(n, 0)));
        const std::string spelled = detokenize(vocab, tokens);
        // SentencePiece vocabularies put a space before the text.
        if (spelled != text && spelled != " " + text) {
            throw Error(Status::vocab, place() + "cannot be spelled in this vocabulary");
        }
        out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
        out.end_leaf();
    }
    return out;
}

std::string detokenize(const llama_vocab * vocab, const std::vector<Token> & tokens, bool special) {
    if (!has_texts(vocab)) {
        throw Error(Status::vocab, "tokens: this model has no tokenizer");
    }
    check_range(tokens.begin(), tokens.end(), vocab_size(vocab), [] { return "tokens"; });
    std::string text;
    for (const Token token : tokens) {
        append_piece(vocab, token, special, text);
    }
    return text;
}

}  // namespace token_trie
