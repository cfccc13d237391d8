#pragma once

#include "token_trie.h"

#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

// Everything in the namespace is visible outside the library: the Python bindings are a second library on the same
// engine. Only include/token_trie.h is public. Where a function is defined this is said again, as clang looks there.
namespace [[gnu::visibility("default")]] token_trie {

enum class Status {
    ok = TOKEN_TRIE_OK,
    argument = TOKEN_TRIE_ERROR_ARGUMENT,
    payload = TOKEN_TRIE_ERROR_PAYLOAD,
    vocab = TOKEN_TRIE_ERROR_VOCAB,
    limit = TOKEN_TRIE_ERROR_LIMIT,
    llama = TOKEN_TRIE_ERROR_LLAMA,
    memory = TOKEN_TRIE_ERROR_MEMORY,
    internal = TOKEN_TRIE_ERROR_INTERNAL,
    context = TOKEN_TRIE_ERROR_CONTEXT,
    cancelled = TOKEN_TRIE_ERROR_CANCELLED,
    grammar = TOKEN_TRIE_ERROR_GRAMMAR,
    busy = TOKEN_TRIE_ERROR_BUSY
};

class Error : public std::runtime_error {
   public:
    Error(Status status, const std::string & message) : std::runtime_error(message), status_(status) {}
    Status status() const noexcept { return status_; }

   private:
    Status status_;
};

// Throws Error (argument) for the first of some rules that is broken.
inline void check_rules(std::initializer_list<std::pair<bool, const char *>> broken) {
    for (const auto & [is_broken, message] : broken) {
        if (is_broken) {
            throw Error(Status::argument, message);
        }
    }
}

// Inside a handler: fail(status, message) of what it handles. Allocates nothing.
template <typename Fail>
auto with_failure(Fail && fail) {
    try {
        throw;
    } catch (const Error & error) {
        return fail(error.status(), error.what());
    } catch (const std::bad_alloc &) {
        return fail(Status::memory, "out of memory");
    } catch (const std::length_error &) {
        return fail(Status::memory, "out of memory");
    } catch (const std::exception & error) {
        return fail(Status::internal, error.what());
    } catch (...) {
        return fail(Status::internal, "unknown exception");
    }
}

// text as a JSON string, cut to a length that fits a message: whatever it holds, what comes back is one line of UTF-8.
std::string quote(std::string_view text, std::size_t max_bytes = 80);
// The length for paths: the name of the file is at the end.
constexpr std::size_t kMaxPathBytes = 4096;

}  // namespace token_trie
