#include "batch/task.h"

#include "batch/decode_task.h"
#include "batch/tree_task.h"

namespace token_trie {

std::unique_ptr<Task> make_task(const Question & question,
                                const llama_vocab * vocab,
                                const Task::Place & place,
                                std::size_t n_paths) {
    if (question.is_walk()) {
        return std::make_unique<DecodeTask>(question, vocab, place);
    }
    const Cursor & cursor = *question.cursor;
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(vocab));
    if (question.way == Question::Way::best) {
        return std::make_unique<SearchTask>(
            begin_search(cursor, question.search, n_vocab, n_paths, /* rows_are_cheap = */ false), cursor.trie(),
            place);
    }
    return std::make_unique<ScoreTask>(begin_scoring(cursor, question.search, n_vocab), cursor.trie(), place);
}

}  // namespace token_trie
