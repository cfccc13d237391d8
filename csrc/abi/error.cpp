#include "abi/guard.h"

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

}  // namespace token_trie
