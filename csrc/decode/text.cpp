#include "decode/text.h"

#include "llama/vocab.h"

#include <algorithm>
#include <cstdint>

namespace token_trie {
namespace {

struct Range {
    std::uint8_t low;
    std::uint8_t high;
    bool holds(std::uint8_t byte) const { return low <= byte && byte <= high; }
};

// Length of a character that begins with this byte, 0 if none does, and where its second byte must lie
// (Unicode 15, table 3-7).
std::size_t length_of(std::uint8_t lead, Range & second) {
    second = {0x80, 0xBF};
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        second = lead == 0xE0 ? Range{0xA0, 0xBF} : lead == 0xED ? Range{0x80, 0x9F} : second;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        second = lead == 0xF0 ? Range{0x90, 0xBF} : lead == 0xF4 ? Range{0x80, 0x8F} : second;
        return 4;
    }
    return 0;
}

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

// How many of the first n tokens there are up to the last one that ends with a character.
std::size_t n_whole(const llama_vocab * vocab, const std::vector<Token> & tokens, std::size_t n) {
    Utf8Stream text;
    std::size_t out = 0;
    for (std::size_t i = 0; i < n; ++i) {
        text.feed(detokenize(vocab, &tokens[i], 1, /* special = */ false));
        out = text.is_whole() ? i + 1 : out;
    }
    return out;
}

}  // namespace

std::string Utf8Stream::feed(std::string_view bytes) {
    held_ += bytes;
    std::string out;
    std::size_t at = 0;
    while (at < held_.size()) {
        Range range{};
        const std::size_t length = length_of(static_cast<std::uint8_t>(held_[at]), range);
        std::size_t n = 1;
        while (n < length && at + n < held_.size() && range.holds(static_cast<std::uint8_t>(held_[at + n]))) {
            range = {0x80, 0xBF};
            ++n;
        }
        if (n == length) {
            out.append(held_, at, n);
        } else if (length != 0 && at + n == held_.size()) {
            break;  // the rest may come with the next token
        } else {
            out += "\xEF\xBF\xBD";
        }
        at += n;
    }
    held_.erase(0, at);
    return out;
}

WrittenText::WrittenText(std::vector<std::string> stop_strings) : stop_strings_(std::move(stop_strings)) {
    for (std::size_t i = 0; i < stop_strings_.size(); ++i) {
        throw_if(stop_strings_[i].empty(), Status::argument, "stop_strings[", i, "]: empty");
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
