#include "batch/task.h"

#include "batch/decode_task.h"
#include "batch/state_task.h"
#include "batch/tree_task.h"

namespace token_trie {

std::unique_ptr<Task> make_task(const Request & request,
                                const llama_vocab * vocab,
                                const Task::Origin & origin,
                                std::size_t n_paths) {
    if (request.is_decoded()) {
        return std::make_unique<DecodeTask>(request, vocab, origin);
    }
    if (request.mode == Query::Mode::state) {
        return std::make_unique<StateTask>();
    }
    const Cursor & cursor = *request.cursor;
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(vocab));
    if (request.mode == Query::Mode::best) {
        return std::make_unique<SearchTask>(
            begin_search(cursor, request.search, n_vocab, n_paths, /* rows_are_cheap = */ false), cursor.trie(),
            origin);
    }
    return std::make_unique<ScoreTask>(begin_scoring(cursor, request.search, n_vocab), cursor.trie(), origin);
}

}  // namespace token_trie
