#pragma once

#include "token_trie.h"
#include "trie/error.h"

#include <cstdint>

namespace token_trie {

// Keeps a failure for token_trie_last_error() of this thread. Allocates nothing.
void set_last_error(Status status, const char * message) noexcept;
const char * last_error() noexcept;
Status last_status() noexcept;

// Every extern "C" function runs its work through guard(): what it throws becomes a message and the failure value.
template <typename Result, typename Work>
Result guard_as(Result (*failure)(Status), Work && work) noexcept {
    const auto fail = [&](Status status, const char * message) {
        set_last_error(status, message);
        return failure(status);
    };
    try {
        return work();
    } catch (...) {
        return with_failure(fail);
    }
}

// For functions that return a status, and TOKEN_TRIE_OK when work returns.
template <typename Work>
std::int32_t guard(Work && work) noexcept {
    return guard_as<std::int32_t>([](Status status) { return static_cast<std::int32_t>(status); },
                                  [&] {
                                      work();
                                      return static_cast<std::int32_t>(TOKEN_TRIE_OK);
                                  });
}

// For functions that return a pointer, and null on failure.
template <typename Pointer, typename Work>
Pointer guard_pointer(Work && work) noexcept {
    return guard_as<Pointer>([](Status) -> Pointer { return nullptr; }, work);
}

}  // namespace token_trie
