#include "trie/payload.h"

#include "trie/json.h"
#include "trie/payload_place.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

using At = PayloadPlace::At;
using Key = PayloadPlace::Key;

// One instance reads one payload; the parser calls it value by value, so no document is ever held in memory.
class Reader : public nlohmann::json_sax<Json> {
   public:
    Reader(const std::optional<std::string> & path, std::int32_t n_vocab, bool splits)
        : wanted_path_(path), n_vocab_(n_vocab), splits_(splits) {}

    // By path where it splits, else one.
    std::map<std::string, LeafList> take() {
        if (!seen_descriptors_) {
            fail(Status::payload, "payload: the key \"descriptors\" is missing");
        }
        if (wanted_path_ && sets_.empty()) {
            fail(Status::payload, "payload: no descriptor has the path " + quote(*wanted_path_) + paths_seen());
        }
        if (splits_ && sets_.empty()) {
            fail(Status::payload, "payload: no descriptor");
        }
        for (auto & [path, leaves] : sets_) {
            if (splits_ && leaves.tokens.empty()) {
                fail(Status::payload, "payload: the path " + quote(path) + " has no leaf with tokens");
            }
            leaves.vocab = vocab_;
        }
        return std::move(sets_);
    }

    bool null() override { return scalar("null"); }
    bool boolean(bool) override { return scalar("a boolean"); }
    bool number_float(double, const std::string &) override { return scalar("a fraction"); }
    bool binary(binary_t &) override { return scalar("binary data"); }

    bool number_integer(std::int64_t value) override {
        return place_.at() == At::tokens ? token(value, std::to_string(value)) : scalar("a number");
    }

    bool number_unsigned(std::uint64_t value) override {
        constexpr std::uint64_t max = std::numeric_limits<std::int64_t>::max();
        return place_.at() == At::tokens ? token(static_cast<std::int64_t>(std::min(value, max)), std::to_string(value))
                                         : scalar("a number");
    }

    bool string(std::string & value) override {
        switch (place_.key()) {
            case Key::model_id:
            case Key::vocab:
            case Key::path:
            case Key::tokenization:
            case Key::name:
            case Key::text: break;
            default: return scalar("a string");
        }
        if (value.size() > kMaxNameBytes) {
            fail(Status::limit,
                 place_.name() + ": a string of " + std::to_string(value.size()) + " bytes; at most 65535");
        }
        if (value.find('\0') != std::string::npos) {
            fail(Status::payload, place_.name() + ": holds a NUL character");
        }
        if (place_.key() == Key::vocab) {
            if (!is_fingerprint(value)) {
                fail(Status::payload, place_.name() + ": " + quote(value) + " is not \"sha256:\" and 64 hex digits");
            }
            vocab_ = std::move(value);
        } else if (place_.key() == Key::path) {
            path_ = std::move(value);
        } else if (place_.key() == Key::tokenization) {
            if (value != "any" && value != "canonical") {
                fail(Status::payload, place_.name() + ": " + quote(value) + R"( is neither "any" nor "canonical")");
            }
            descriptor_is_any_ = value == "any";
        } else if (place_.key() == Key::name) {
            leaves_.names.push_back(std::move(value));
        } else if (place_.key() == Key::text) {
            std::transform(value.begin(), value.end(), std::back_inserter(texts_.tokens),
                           [](char byte) { return static_cast<unsigned char>(byte); });
            texts_.end_leaf();
        }
        place_.next();
        return true;
    }

    bool key(std::string & name) override {
        place_.take_key(name);
        return true;
    }

    bool start_object(std::size_t) override {
        switch (place_.at()) {
            case At::document: return open(At::root);
            case At::descriptors:
                path_.clear();
                descriptor_is_any_ = false;
                without_tokens_ = without_text_ = kNone;
                return open(At::descriptor);
            case At::leaves: return open(At::leaf);
            default: return open_unknown("an object");
        }
    }

    bool end_object() override {
        if (place_.at() == At::leaf) {
            require(Key::name, "name");
            if (!place_.has(Key::text)) {
                require(Key::tokens, "tokens");
            }
            note_if_missing(Key::tokens, without_tokens_);
            note_if_missing(Key::text, without_text_);
        } else if (place_.at() == At::descriptor) {
            require(Key::leaves, "leaves");
            end_descriptor();
        }
        return close();
    }

    bool start_array(std::size_t) override {
        if (place_.at() == At::root && place_.key() == Key::descriptors) {
            seen_descriptors_ = true;
            return open(At::descriptors);
        }
        if (place_.at() == At::descriptor && place_.key() == Key::leaves) {
            return open(At::leaves);
        }
        if (place_.at() == At::leaf && place_.key() == Key::tokens) {
            return open(At::tokens);
        }
        return open_unknown("an array");
    }

    bool end_array() override {
        if (place_.at() == At::tokens) {
            leaves_.end_leaf();
        }
        return close();
    }

    bool parse_error(std::size_t byte, const std::string &, const Json::exception & error) override {
        // The parser's own clause alone: the place is ours to tell, and what it read last may be no UTF-8.
        std::string_view what = error.what();
        for (const char * mark : {"] ", ": "}) {
            const std::size_t at = what.find(mark);
            if (at != std::string_view::npos) {
                what.remove_prefix(at + 2);
            }
        }
        constexpr std::size_t max_bytes = 200;
        what = what.substr(0, std::min(what.find("; last read"), max_bytes));
        std::string message = place_.name() + ": broken JSON at byte " + std::to_string(byte) + ": ";
        fail(Status::payload, message.append(what));
    }

   private:
    [[noreturn]] static void fail(Status status, const std::string & message) { throw Error(status, message); }

    static bool is_fingerprint(std::string_view text) {
        constexpr std::string_view prefix = "sha256:";
        constexpr std::size_t n_digits = 64;
        return text.size() == prefix.size() + n_digits && text.substr(0, prefix.size()) == prefix &&
               text.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
    }

    // Refuses a value of a kind that no place with an expectation takes.
    void refuse_if_expecting(const char * found) const {
        const char * wanted = place_.expected();
        if (wanted != nullptr) {
            fail(Status::payload, place_.name() + ": " + found + " where " + wanted + " belongs");
        }
    }

    bool scalar(const char * found) {
        refuse_if_expecting(found);
        place_.next();
        return true;
    }

    bool token(std::int64_t id, const std::string & text) {
        if (id < 0 || id > std::numeric_limits<Token>::max()) {
            fail(Status::payload, place_.name() + ": " + text + " is not a token id");
        }
        if (n_vocab_ > 0 && id >= n_vocab_) {
            fail(Status::vocab,
                 place_.name() + ": " + text + " is outside the vocabulary (" + std::to_string(n_vocab_) + " tokens)");
        }
        if (leaves_.tokens.size() - leaves_.offsets.back() == kMaxLeafTokens) {
            fail(Status::limit, place_.name() + ": more than 65535 tokens in a leaf");
        }
        leaves_.tokens.push_back(static_cast<Token>(id));
        place_.next();
        return true;
    }

    bool open(At inner) {
        place_.open(inner);
        return true;
    }

    bool open_unknown(const char * found) {
        refuse_if_expecting(found);
        return open(At::skipped);
    }

    bool close() {
        place_.close();
        return true;
    }

    void require(Key key, const char * name) const {
        if (!place_.has(key)) {
            fail_missing(place_.name_of_open(), name);
        }
    }

    [[noreturn]] static void fail_missing(const std::string & where, const char * name) {
        fail(Status::payload, where + ": the key \"" + name + "\" is missing");
    }

    // What a leaf has to have is known at the end of its descriptor, where "tokenization" may stand too.
    void note_if_missing(Key key, std::uint64_t & leaf) const {
        if (!place_.has(key) && leaf == kNone) {
            leaf = place_.index();
        }
    }

    // Moves what the descriptor has to the others of its set.
    void put(LeafList & set) {
        if (descriptor_is_any_) {
            texts_.names = std::move(leaves_.names);
            texts_.texts = true;
        }
        LeafList & given = descriptor_is_any_ ? texts_ : leaves_;
        if (set.size() == 0) {
            set = std::move(given);
        } else if (given.size() > 0) {
            if (set.texts != given.texts) {
                fail(Status::payload, place_.name_of_open() + R"(.tokenization: "any" and "canonical" in one set; )" +
                                          (splits_ ? "its path is another's too" : "choose one by its path"));
            }
            set.append(std::move(given));
        }
    }

    void end_descriptor() {
        const std::uint64_t lacking = descriptor_is_any_ ? without_text_ : without_tokens_;
        if (lacking != kNone) {
            fail_missing(place_.name_of_open() + ".leaves[" + std::to_string(lacking) + "]",
                         descriptor_is_any_ ? "text" : "tokens");
        }
        if (!wanted_path_ || path_ == *wanted_path_) {
            put(sets_[splits_ ? path_ : ""]);
        } else if (paths_.size() < 5) {
            paths_.push_back(quote(path_));
        }
        leaves_ = {};
        texts_ = {};
    }

    std::string paths_seen() const {
        std::string out;
        for (const std::string & path : paths_) {
            out += (out.empty() ? "; there is " : ", ") + path;
        }
        return out;
    }

    const std::optional<std::string> & wanted_path_;
    const std::int32_t n_vocab_;
    const bool splits_;
    static constexpr std::uint64_t kNone = UINT64_MAX;

    std::map<std::string, LeafList> sets_;
    std::string vocab_;
    bool seen_descriptors_ = false;
    std::vector<std::string> paths_;  // that were not wanted
    // Of the descriptor under way, in which "tokenization" may come last: what it has, and the first leaf that lacks a
    // key.
    std::string path_;
    bool descriptor_is_any_ = false;
    LeafList leaves_;
    LeafList texts_;  // unnamed
    std::uint64_t without_tokens_ = kNone;
    std::uint64_t without_text_ = kNone;

    PayloadPlace place_;
};

void check_bytes(std::string_view json) {
    if (json.size() > kMaxPayloadBytes) {
        throw Error(Status::limit, "payload: " + std::to_string(json.size()) + " bytes; at most 1073741824");
    }
    const std::size_t nul = json.find('\0');
    if (nul != std::string_view::npos) {
        throw Error(Status::payload, "payload: a NUL at byte " + std::to_string(nul + 1));
    }
}

std::map<std::string, LeafList> read(std::string_view json,
                                     const std::optional<std::string> & path,
                                     std::int32_t n_vocab,
                                     bool splits) {
    check_bytes(json);
    Reader reader(path, n_vocab, splits);
    Json::sax_parse(json.begin(), json.end(), &reader);
    return reader.take();
}

}  // namespace

LeafList read_payload(std::string_view json, const std::optional<std::string> & path, std::int32_t n_vocab) {
    LeafList leaves = std::move(read(json, path, n_vocab, /* splits = */ false)[""]);
    if (leaves.tokens.empty()) {
        throw Error(Status::payload, "payload: no leaf with tokens: a set needs at least one");
    }
    return leaves;
}

std::map<std::string, LeafList> read_paths(std::string_view json, std::int32_t n_vocab) {
    return read(json, std::nullopt, n_vocab, /* splits = */ true);
}

}  // namespace token_trie
