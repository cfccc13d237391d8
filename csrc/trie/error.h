#pragma once

#include "token_trie.h"

#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
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

// Texts and numbers as one text.
template <typename... Parts>
std::string concat(const Parts &... parts) {
    std::string out;
    const auto append = [&out](const auto & part) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
            out += std::to_string(part);
        } else {
            out += std::string_view(part);
        }
    };
    (append(parts), ...);
    return out;
}

// An error whose message is the parts, one after the other.
class Error : public std::runtime_error {
   public:
    template <typename... Parts>
    explicit Error(Status status, const Parts &... parts) : std::runtime_error(concat(parts...)), status_(status) {}
    Status status() const noexcept { return status_; }

   private:
    Status status_;
};

// Throws Error where a rule is broken. Whatever its parts say is evaluated in any case.
template <typename... Parts>
void throw_if(bool is_broken, Status status, const Parts &... parts) {
    if (is_broken) {
        throw Error(status, parts...);
    }
}

// Throws Error (argument) for the first of some rules that is broken.
inline void check_rules(std::initializer_list<std::pair<bool, const char *>> broken) {
    for (const auto & [is_broken, message] : broken) {
        throw_if(is_broken, Status::argument, message);
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
