#pragma once

#include "trie/trie.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace token_trie {

// Structs that cross the ABI begin with their size, as the caller was compiled. Members that the caller does not know
// are zero. Members that this library does not know have to be, as it would leave out what they ask for.

inline void require_not_null(const void * pointer, const char * what) {
    throw_if(pointer == nullptr, Status::argument, what, ": null");
}

inline void check_not_negative(std::int32_t value, const char * what) {
    throw_if(value < 0, Status::argument, what, ": ", value, " is negative");
}

inline std::size_t to_count(std::int32_t value, const char * what) {
    check_not_negative(value, what);
    return static_cast<std::size_t>(value);
}

// A value of an enum of the header, which begins with 0.
inline void check_enum(std::int32_t value, std::int32_t last, const char * what) {
    throw_if(value < 0 || value > last, Status::argument, what, ": ", value, " is not in [0, ", last, "]");
}

// Null is an array of none.
inline void require_array(const void * pointer, std::size_t n, const char * what) {
    if (n > 0) {
        require_not_null(pointer, what);
    }
}

// A sane size: the first member at least, and no more than these structs could ever grow to.
inline void check_struct_size(std::size_t size, const char * what) {
    constexpr std::size_t max = 4096;
    throw_if(size < sizeof(std::size_t) || size > max, Status::argument, what, ".size: ", size, " is not sizeof(*",
             what, ")");
}

template <typename Struct>
Struct read_struct(const Struct * from, const char * what) {
    require_not_null(from, what);
    check_struct_size(from->size, what);
    Struct out{};
    std::memcpy(&out, from, std::min(from->size, sizeof out));
    const auto * bytes = reinterpret_cast<const unsigned char *>(from);
    for (std::size_t i = sizeof out; i < from->size; ++i) {
        throw_if(bytes[i] != 0, Status::argument, what,
                 ": sets a member that version " TOKEN_TRIE_VERSION " of the library does not know");
    }
    return out;
}

template <typename Struct>
void write_struct(Struct value, Struct * to, const char * what) {
    require_not_null(to, what);
    check_struct_size(to->size, what);
    value.size = to->size;
    std::memset(to, 0, value.size);
    std::memcpy(to, &value, std::min(value.size, sizeof value));
}

// Copies as many as there is capacity for; n: how many there are.
inline void write_tokens(const std::vector<Token> & from, Token * tokens, std::size_t capacity, std::size_t * n) {
    require_array(tokens, capacity, "tokens");
    require_not_null(n, "n");
    std::copy_n(from.begin(), std::min(capacity, from.size()), tokens);
    *n = from.size();
}

inline std::vector<std::string> to_names(const char * const * names, std::size_t n, const std::string & what) {
    throw_if(names == nullptr && n > 0, Status::argument, what, ": null, with n_", what, " = ", n);
    std::vector<std::string> out;
    for (std::size_t i = 0; i < n; ++i) {
        throw_if(names[i] == nullptr, Status::argument, what, "[", i, "]: null");
        out.emplace_back(names[i]);
    }
    return out;
}

}  // namespace token_trie
