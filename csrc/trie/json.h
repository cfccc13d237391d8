#pragma once

// Broken input is reported through callbacks; nothing may end the process.
#define JSON_ASSERT(condition) static_cast<void>(0)
#include <nlohmann/json.hpp>

namespace token_trie {

using Json = nlohmann::json;

}  // namespace token_trie
