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
    const std::size_t n_left = capacity() - std::min(capacity(), n_start);
    WrittenText written(stop_strings);
    WrittenText::End end;
    const Stop stop = generate(max_tokens, temperature, top_p, on_step, [&](const Step & step, bool is_whole) {
        if (!written.add(step.text, is_whole)) {
            return true;
        }
        end = written.end(vocab(), std::min(static_cast<std::size_t>(max_tokens), n_left));
        sequence_->reserve(end.rest.size());
        return false;
    });
    if (stop != Stop::string) {
        return stop;
    }
    put(n_start + end.n_kept, end.rest);  // also where another branch has taken the room of what stood before
    stop_string = written.stop_string();
    return stats_.stop = end.is_cut ? Stop::max_tokens : Stop::string;
}

}  // namespace token_trie
