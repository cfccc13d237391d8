#include "decode/written_text.h"

#include "decode/utf8.h"
#include "llama/vocab.h"

#include <algorithm>

namespace token_trie {
namespace {

std::vector<Token> tokens_inside(const llama_vocab * vocab, const std::string & text) {
    if (text.empty()) {
        return {};
    }
    std::vector<Token> alone;
    try {
        alone = tokenize(vocab, {text}, "text").tokens;
    } catch (const Error &) {
        alone.clear();
    }
    if (detokenize(vocab, alone) == text) {
        return alone;
    }
    // SentencePiece puts a space before a text; so another one goes before this.
    const std::vector<Token> line = tokenize(vocab, {"\n"}, "text").tokens;
    std::vector<Token> both = tokenize(vocab, {"\n" + text}, "text").tokens;
    both.erase(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(std::min(line.size(), both.size())));
    return both;
}

// Of the first n tokens, those that end no later than a character does.
std::size_t n_whole(const llama_vocab * vocab, const std::vector<Token> & tokens, std::size_t n) {
    Utf8Stream text;
    std::size_t out = 0;
    for (std::size_t i = 0; i < n; ++i) {
        text.feed(detokenize(vocab, tokens[i], /* special = */ false));
        out = text.is_whole() ? i + 1 : out;
    }
    return out;
}

}  // namespace

WrittenText::WrittenText(std::vector<std::string> stop_strings) : stop_strings_(std::move(stop_strings)) {
    for (std::size_t i = 0; i < stop_strings_.size(); ++i) {
        if (stop_strings_[i].empty()) {
            throw Error(Status::argument, "stop_strings[" + std::to_string(i) + "]: empty");
        }
    }
}

// Looked for where what was added last may have completed one; the first of them counts.
bool WrittenText::add(const std::string & more, bool is_whole) {
    const std::size_t before = text_.size();
    text_ += more;
    ends_.push_back(text_.size());
    are_whole_.push_back(is_whole);
    for (std::size_t i = 0; i < stop_strings_.size(); ++i) {
        const std::size_t at = text_.find(stop_strings_[i], before - std::min(before, stop_strings_[i].size() - 1));
        if (at < position_) {
            position_ = at;
            which_ = i;
        }
    }
    return position_ != std::string::npos;
}

// Not those that end inside a character.
std::size_t WrittenText::n_kept() const {
    auto n = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), position_) - ends_.begin());
    while (n > 0 && !are_whole_[n - 1]) {
        --n;
    }
    return n;
}

WrittenText::End WrittenText::end(const llama_vocab * vocab, std::size_t max_tokens) const {
    const std::size_t n = n_kept();
    const std::size_t begin = n == 0 ? 0 : ends_[n - 1];
    End out = {n, tokens_inside(vocab, text_.substr(begin, position_ - begin)), false};
    const std::size_t n_left = max_tokens - std::min(max_tokens, n);
    if (out.rest.size() > n_left) {
        out.rest.resize(n_whole(vocab, out.rest, n_left));
        out.is_cut = true;
    }
    return out;
}

}  // namespace token_trie
