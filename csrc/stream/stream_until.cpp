#include "stream/stream.h"

#include <algorithm>

namespace token_trie {
namespace {

// What was written, and where each token's text ends in it.
struct Written {
    std::string text;
    std::vector<std::size_t> ends;

    void add(const std::string & more) {
        text += more;
        ends.push_back(text.size());
    }
    // Where the first of some texts begins, looked for in what was added last; npos if it is none.
    std::size_t find_first(const std::vector<std::string> & texts, std::size_t & which) const {
        const std::size_t before = ends.size() > 1 ? ends[ends.size() - 2] : 0;
        std::size_t first = std::string::npos;
        for (std::size_t i = 0; i < texts.size(); ++i) {
            const std::size_t at = text.find(texts[i], before - std::min(before, texts[i].size() - 1));
            if (at < first) {
                first = at;
                which = i;
            }
        }
        return first;
    }
    // Tokens whose text lies whole before a place; not those that end inside the character there.
    std::size_t n_before(std::size_t place) const {
        auto n = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), place) - ends.begin());
        const auto end_of = [this](std::size_t i) { return i == 0 ? 0 : ends[i - 1]; };
        while (n > 0 && n < ends.size() && end_of(n) == end_of(n - 1)) {
            --n;
        }
        return n;
    }
};

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

}  // namespace

Stream::Stop Stream::generate_until(std::int32_t max_tokens,
                                    float temperature,
                                    float top_p,
                                    const std::vector<std::string> & stop_strings,
                                    const OnStep & on_step,
                                    std::size_t & stop_string) {
    for (std::size_t i = 0; i < stop_strings.size(); ++i) {
        if (stop_strings[i].empty()) {
            throw Error(Status::argument, "stop_strings[" + std::to_string(i) + "]: empty");
        }
    }
    const std::size_t n_start = tokens().size();
    Written written;
    std::size_t place = std::string::npos;
    const Stop stop = generate(max_tokens, temperature, top_p, [&](const Step & step) {
        written.add(step.text);
        place = written.find_first(stop_strings, stop_string);
        return place == std::string::npos && on_step(step);
    });
    if (place == std::string::npos) {
        return stop;
    }
    const std::size_t n_kept = written.n_before(place);
    const std::size_t begin = n_kept == 0 ? 0 : written.ends[n_kept - 1];
    append(n_start + n_kept, tokens_inside(vocab(), written.text.substr(begin, place - begin)));
    return stats_.stop = Stop::string;
}

}  // namespace token_trie
