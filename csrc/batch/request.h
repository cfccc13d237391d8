#pragma once

#include "stream/query.h"

namespace [[gnu::visibility("default")]] token_trie {

// A query after a prompt.
struct Request : Query {
    std::vector<Token> prompt;
};

}  // namespace token_trie

namespace token_trie {

// The answer of a query that failed.
inline Answer failure(Status status, const char * message) noexcept {
    Answer answer;
    try {
        answer.message = message;
        answer.status = status;
    } catch (const std::exception &) {
        answer.message = "out of memory";  // which takes none
        answer.status = Status::memory;
    }
    return answer;
}

// The same, from the exception that is being handled.
inline Answer failure() noexcept {
    return with_failure([](Status status, const char * message) { return failure(status, message); });
}

}  // namespace token_trie
