// Both examples do this with texts: their tokens, and a set of actions as a payload.

#pragma once

#include <llama.h>

#include <cstdio>
#include <string>
#include <vector>

using Tokens = std::vector<llama_token>;

inline Tokens tokenize(const llama_vocab * vocab, const std::string & text, bool add_special) {
    Tokens tokens(text.size() + 8);
    const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                                 static_cast<int>(tokens.size()), add_special, false);
    tokens.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return tokens;
}

// The answers follow "Action:", so they begin with a space.
inline std::string make_payload(const llama_vocab * vocab, const std::vector<std::string> & names) {
    std::string leaves;
    for (const std::string & name : names) {
        std::string tokens;
        for (const llama_token token : tokenize(vocab, " " + name, false)) {
            tokens += (tokens.empty() ? "" : ",") + std::to_string(token);
        }
        leaves += (leaves.empty() ? "" : ",") + ("{\"name\":\"" + name) + "\",\"tokens\":[" + tokens + "]}";
    }
    return "{\"descriptors\":[{\"leaves\":[" + leaves + "]}]}";
}

inline int fail(const char * what) {
    std::fprintf(stderr, "%s\n", what);
    return 1;
}
