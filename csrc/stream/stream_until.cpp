#include "stream/stream.h"
#include "stream/written_text.h"

namespace token_trie {

Stop Stream::generate_until(std::int32_t max_tokens,
                            float temperature,
                            float top_p,
                            const std::vector<std::string> & stop_strings,
                            const OnStep & on_step,
                            std::size_t & stop_string) {
    const std::size_t n_start = tokens().size();
    WrittenText written(stop_strings);
    bool found = false;
    const Stop stop = generate(max_tokens, temperature, top_p, [&](const Step & step) {
        try {
            found = written.add(step.text, text_.is_whole());
        } catch (...) {
            on_step(step);  // which is part of the sequence
            throw;
        }
        return !found && on_step(step);
    });
    if (!found) {
        return stop;
    }
    stop_string = written.stop_string();
    append(n_start + written.n_kept(), written.rest(vocab()));
    return stats_.stop = Stop::string;
}

}  // namespace token_trie
