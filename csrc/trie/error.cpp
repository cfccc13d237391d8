#include "trie/error.h"

#include "trie/json.h"

#include <algorithm>

namespace [[gnu::visibility("default")]] token_trie {

std::string quote(std::string_view text, std::size_t max_bytes) {
    const bool whole = text.size() <= max_bytes;
    std::string out(text.substr(0, max_bytes));
    // A character cut in two is left out.
    const auto error_handler = whole ? Json::error_handler_t::replace : Json::error_handler_t::ignore;
    out = Json(std::move(out)).dump(-1, ' ', false, error_handler);
    return whole ? out : out.insert(out.size() - 1, "...");
}

// The parser's own clause alone: the place is ours to report, and what it read last may be no UTF-8.
bool JsonReader::parse_error(std::size_t byte, const std::string & /*last*/, const Json::exception & error) {
    std::string_view what = error.what();
    for (const char * mark : {"] ", ": "}) {
        const std::size_t at = what.find(mark);
        what.remove_prefix(at == std::string_view::npos ? 0 : at + 2);
    }
    constexpr std::size_t max_bytes = 200;
    what = what.substr(0, std::min(what.find("; last read"), max_bytes));
    std::string message = place() + ": broken JSON at byte " + std::to_string(byte) + ": ";
    fail(message.append(what));
}

void JsonReader::refuse_if_expecting(const char * found) const {
    if (const char * wanted = expected(); wanted != nullptr) {
        fail(place() + ": " + found + " where " + wanted + " belongs");
    }
}

}  // namespace token_trie
