#include "abi/guard.h"

#include <algorithm>
#include <cstring>

namespace token_trie {
namespace {

// Fixed, so that "out of memory" can still be said.
thread_local char last_message[1024] = "";
thread_local Status last_code = Status::ok;

}  // namespace

void set_last_error(Status status, const char * message) noexcept {
    last_code = status;
    std::size_t n = std::strlen(message);
    if (n >= sizeof last_message) {
        n = sizeof last_message - 1;
        while (n > 0 && (static_cast<unsigned char>(message[n]) & 0xC0U) == 0x80U) {  // whole characters
            --n;
        }
    }
    std::memmove(last_message, message, n);
    last_message[n] = '\0';
}

const char * last_error() noexcept { return last_message; }

Status last_status() noexcept { return last_code; }

static_assert(static_cast<int>(Status::ok) == TOKEN_TRIE_OK, "one enum, two spellings");
static_assert(static_cast<int>(Status::argument) == TOKEN_TRIE_ERROR_ARGUMENT, "one enum, two spellings");
static_assert(static_cast<int>(Status::payload) == TOKEN_TRIE_ERROR_PAYLOAD, "one enum, two spellings");
static_assert(static_cast<int>(Status::vocab) == TOKEN_TRIE_ERROR_VOCAB, "one enum, two spellings");
static_assert(static_cast<int>(Status::limit) == TOKEN_TRIE_ERROR_LIMIT, "one enum, two spellings");
static_assert(static_cast<int>(Status::llama) == TOKEN_TRIE_ERROR_LLAMA, "one enum, two spellings");
static_assert(static_cast<int>(Status::memory) == TOKEN_TRIE_ERROR_MEMORY, "one enum, two spellings");
static_assert(static_cast<int>(Status::internal) == TOKEN_TRIE_ERROR_INTERNAL, "one enum, two spellings");
static_assert(static_cast<int>(Status::context) == TOKEN_TRIE_ERROR_CONTEXT, "one enum, two spellings");
static_assert(static_cast<int>(Status::cancelled) == TOKEN_TRIE_ERROR_CANCELLED, "one enum, two spellings");
static_assert(static_cast<int>(Status::grammar) == TOKEN_TRIE_ERROR_GRAMMAR, "one enum, two spellings");
static_assert(static_cast<int>(Status::busy) == TOKEN_TRIE_ERROR_BUSY, "one enum, two spellings");

}  // namespace token_trie
