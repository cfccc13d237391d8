#include "trie/error.h"

#include "trie/json.h"

namespace [[gnu::visibility("default")]] token_trie {

std::string quote(std::string_view text, std::size_t max_bytes) {
    const bool whole = text.size() <= max_bytes;
    std::string out(text.substr(0, max_bytes));
    // A character cut in two is left out.
    const auto error_handler = whole ? Json::error_handler_t::replace : Json::error_handler_t::ignore;
    out = Json(std::move(out)).dump(-1, ' ', false, error_handler);
    return whole ? out : out.insert(out.size() - 1, "...");
}

}  // namespace token_trie
