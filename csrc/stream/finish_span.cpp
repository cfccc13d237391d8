#include "stream/finish_span.h"

#include <llama.h>

namespace token_trie {

bool finish_span(Cursor & cursor, const llama_vocab * vocab) {
    const bool released = cursor.follow().on_complete() == OnComplete::release;
    if (cursor.state() == State::walking && !released) {
        const AllowedSet next = cursor.allowed();
        Token end = -1;
        if (!next.everything && next.for_each([&](Token token) {
                end = token;
                return llama_vocab_is_eog(vocab, token) && cursor.ends_with(token);
            })) {
            cursor.accept(end);
        }
    }
    return cursor.state() == State::complete && !released;
}

}  // namespace token_trie
