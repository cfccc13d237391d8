#include "trie/json.h"

#include <algorithm>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

using Kind = JsonShape::Kind;

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxKeyBytes = 81;  // one more than quote() keeps, so that it marks the cut

const char * called(Kind kind) {
    switch (kind) {
        case Kind::object: return "an object";
        case Kind::array: return "an array";
        case Kind::string: return "a string";
        default: return "a token id";
    }
}

void append_key(std::string & place, const std::string & key) {
    const std::string quoted = quote(key);
    place.append(place.empty() ? "" : ".").append(quoted, 1, quoted.size() - 2);
}

}  // namespace

std::string quote(std::string_view text, std::size_t max_bytes) {
    const bool whole = text.size() <= max_bytes;
    std::string out(text.substr(0, max_bytes));
    // A character cut in two is left out.
    const auto error_handler = whole ? Json::error_handler_t::replace : Json::error_handler_t::ignore;
    out = Json(std::move(out)).dump(-1, ' ', false, error_handler);
    return whole ? out : out.insert(out.size() - 1, "...");
}

std::string JsonReader::place_of_open() const {
    std::string out;
    for (std::size_t i = 1; i < open_.size() && open_[i].shape != nullptr; ++i) {
        const Open & around = open_[i - 1];
        if (around.shape->kind == Kind::array) {
            out += "[" + std::to_string(around.index) + "]";
        } else {
            append_key(out, open_[i].key);
        }
    }
    return out.empty() ? name_ : out;
}

std::string JsonReader::place() const {
    std::string out = place_of_open();
    const JsonShape * const shape = open_.empty() ? nullptr : open_.back().shape;
    if (shape != nullptr && shape->kind == Kind::array) {
        out += "[" + std::to_string(open_.back().index) + "]";
    } else if (shape != nullptr && !key_.empty()) {
        out = open_.size() == 1 ? "" : out;
        append_key(out, key_);
    }
    return out;
}

bool JsonReader::key(std::string & name) {
    key_.assign(name, 0, kMaxKeyBytes);
    next_ = nullptr;
    Open & object = open_.back();
    if (object.shape == nullptr) {
        return true;
    }
    const JsonShape * const end = object.shape->inner + object.shape->n_inner;
    const JsonShape * const known =
        std::find_if(object.shape->inner, end, [&](const JsonShape & each) { return each.key == name; });
    if (known != end) {
        refuse_if(has(known->id), Status::payload, "the key comes twice");
        object.seen |= std::uint32_t{1} << known->id;
        next_ = known;
    }
    return true;
}

bool JsonReader::string(std::string & value) {
    if (next_ == nullptr || next_->kind != Kind::string) {
        return scalar("a string");
    }
    on_string(next_->id, value);
    return advance();
}

bool JsonReader::number_integer(std::int64_t value) { return number(value, value); }

bool JsonReader::number_unsigned(std::uint64_t value) {
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    return number(static_cast<std::int64_t>(std::min(value, most)), value);
}

// An integer beyond 64 bits comes here too.
bool JsonReader::number_float(double /*value*/, const std::string & text) {
    const bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
    return is_integer ? number(-1, text) : scalar("a fraction");
}

template <typename Number>
bool JsonReader::number(std::int64_t value, const Number & shown) {
    if (next_ == nullptr || next_->kind != Kind::token) {
        return scalar("a number");
    }
    refuse_if(value < 0 || value > std::numeric_limits<Token>::max(), Status::payload, shown, " is not a token id");
    on_token(next_->id, static_cast<Token>(value));
    return advance();
}

bool JsonReader::scalar(const char * found) {
    refuse_if_expecting(found);
    return advance();
}

bool JsonReader::open(Kind kind, const char * found) {
    const JsonShape * const shape = next_;
    if (shape != nullptr && shape->kind != kind) {
        refuse_if_expecting(found);
    }
    refuse_if(open_.size() == kMaxDepth, Status::limit, "more than 64 levels of nesting");
    open_.push_back({shape, std::move(key_)});
    key_.clear();
    next_ = shape != nullptr && kind == Kind::array ? shape->inner : nullptr;
    if (shape != nullptr) {
        on_open(shape->id);
    }
    return true;
}

bool JsonReader::close() {
    if (const JsonShape * const shape = open_.back().shape; shape != nullptr) {
        for (std::size_t i = 0; i < shape->n_inner; ++i) {
            if (shape->inner[i].is_required && !has(shape->inner[i].id)) {
                throw Error(Status::payload, place_of_open(), ": the key ", quote(shape->inner[i].key), " is missing");
            }
        }
        on_close(shape->id);
    }
    open_.pop_back();
    key_.clear();
    const bool is_in_array = !open_.empty() && open_.back().shape != nullptr && open_.back().shape->kind == Kind::array;
    next_ = is_in_array ? open_.back().shape->inner : nullptr;
    return advance();
}

bool JsonReader::advance() {
    if (!open_.empty()) {
        ++open_.back().index;
    }
    return true;
}

void JsonReader::refuse_if_expecting(const char * found) const {
    if (next_ != nullptr) {
        throw Error(Status::payload, place(), ": ", found, " where ", called(next_->kind), " belongs");
    }
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
    throw Error(Status::payload, place(), ": broken JSON at byte ", byte, ": ", what);
}

}  // namespace token_trie
