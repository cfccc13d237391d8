#include "trie/payload.h"

#include "trie/error.h"
#include "trie/json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// Where the reader of a payload is: what is open around it, how far each array is, and which keys it has met.
//
//     {"modelId": "m", "descriptors": [{"path": "p", "leaves": [{"name": "a", "tokens": [7, 8]}]}]}
//      root                            descriptor              leaf                      |
//                                                                 descriptors[0].leaves[0].tokens[0]
class PayloadPlace {
   public:
    enum class At { document, root, descriptors, descriptor, leaves, leaf, tokens, skipped };
    enum class Key { model_id, vocab, descriptors, path, tokenization, leaves, name, tokens, text, unknown };

    At at() const noexcept { return stack_.back(); }
    // The key whose value is read; unknown in arrays, and where none of ours may be.
    Key key() const noexcept { return key_; }
    // Whether the object around has had this key.
    bool has(Key key) const noexcept { return (seen_.back() & bit_of(key)) != 0; }
    // Of the array around what is open, the element that this is.
    std::uint64_t index() const noexcept { return index_[index_.size() - 2]; }

    // What a value here has to be; nullptr if anything may be here.
    const char * expected() const noexcept;
    // What an array or an object opens here.
    At opens() const noexcept;
    // Such as descriptors[0].leaves[3].tokens[1] or descriptors[0].path.
    std::string name() const;
    // The same without the key.
    std::string name_of_open() const;

    // Throws Error (limit) where nesting is too deep.
    void open(At inner) {
        if (stack_.size() > kMaxPayloadDepth) {
            throw Error(Status::limit, name() + ": more than 64 levels of nesting");
        }
        stack_.push_back(inner);
        seen_.push_back(0);
        index_.push_back(0);
        forget_key();
    }
    void close() noexcept {
        stack_.pop_back();
        seen_.pop_back();
        index_.pop_back();
        forget_key();
        next();
    }
    // After a value: the array around, if it is one, moves on to its next element.
    void next() noexcept { ++index_.back(); }
    // At a key. Throws Error (payload) on one of ours that comes twice.
    void take_key(const std::string & name);

   private:
    static unsigned bit_of(Key key) noexcept { return 1U << static_cast<unsigned>(key); }
    void forget_key() noexcept {
        key_ = Key::unknown;
        key_text_.clear();
    }

    std::vector<At> stack_{At::document};
    std::vector<unsigned> seen_{0};        // one bit a known key, for each open object
    std::vector<std::uint64_t> index_{0};  // values seen, for each open array
    Key key_ = Key::unknown;
    std::string key_text_;
};

using At = PayloadPlace::At;
using Key = PayloadPlace::Key;

// Our keys, in the order of Key: where they are, and what their values open, if these are arrays and no strings.
struct KnownKey {
    At in;
    std::string_view name;
    At opens = At::skipped;
};
constexpr KnownKey kKnownKeys[] = {{At::root, "modelId"},
                                   {At::root, "vocab"},
                                   {At::root, "descriptors", At::descriptors},
                                   {At::descriptor, "path"},
                                   {At::descriptor, "tokenization"},
                                   {At::descriptor, "leaves", At::leaves},
                                   {At::leaf, "name"},
                                   {At::leaf, "tokens", At::tokens},
                                   {At::leaf, "text"}};

const char * PayloadPlace::expected() const noexcept {
    switch (at()) {
        case At::document:
        case At::descriptors:
        case At::leaves: return "an object";
        case At::tokens: return "a token id";
        default: break;
    }
    return key_ == Key::unknown ? nullptr : opens() == At::skipped ? "a string" : "an array";
}

PayloadPlace::At PayloadPlace::opens() const noexcept {
    switch (at()) {
        case At::document: return At::root;
        case At::descriptors: return At::descriptor;
        case At::leaves: return At::leaf;
        default: return key_ == Key::unknown ? At::skipped : kKnownKeys[static_cast<std::size_t>(key_)].opens;
    }
}

std::string PayloadPlace::name() const {
    std::string out = name_of_open();
    const bool in_object = at() == At::root || at() == At::descriptor || at() == At::leaf;
    if (in_object && !key_text_.empty()) {
        const std::string quoted = quote(key_text_);
        const std::string key = quoted.substr(1, quoted.size() - 2);
        out = out == "payload" ? key : out + "." + key;
    }
    return out;
}

std::string PayloadPlace::name_of_open() const {
    std::string out;
    for (std::size_t i = 1; i < stack_.size(); ++i) {
        const std::string index = "[" + std::to_string(index_[i]) + "]";
        switch (stack_[i]) {
            case At::descriptors: out = "descriptors" + index; break;
            case At::leaves: out += ".leaves" + index; break;
            case At::tokens: out += ".tokens" + index; break;
            default: break;
        }
    }
    return out.empty() ? "payload" : out;
}

void PayloadPlace::take_key(const std::string & name) {
    key_text_.assign(name, 0, 81);  // one byte more than quote() keeps, so that it marks the cut
    const auto * const known = std::find_if(std::begin(kKnownKeys), std::end(kKnownKeys),
                                            [&](const KnownKey & key) { return key.in == at() && key.name == name; });
    key_ = static_cast<Key>(known - std::begin(kKnownKeys));  // after the last: unknown
    if (key_ != Key::unknown) {
        if (has(key_)) {
            throw Error(Status::payload, this->name() + ": the key comes twice");
        }
        seen_.back() |= bit_of(key_);
    }
}

// One instance reads one payload.
class Reader : public JsonReader {
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

    bool number_integer(std::int64_t value) override {
        return place_.at() == At::tokens ? token(value, std::to_string(value)) : scalar("a number");
    }

    bool number_unsigned(std::uint64_t value) override {
        constexpr std::uint64_t max = std::numeric_limits<std::int64_t>::max();
        return place_.at() == At::tokens ? token(static_cast<std::int64_t>(std::min(value, max)), std::to_string(value))
                                         : scalar("a number");
    }

    bool string(std::string & value) override {
        if (place_.key() == Key::unknown || place_.opens() != At::skipped) {
            return scalar("a string");
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
        if (place_.at() == At::descriptors) {
            path_.clear();
            descriptor_is_any_ = false;
            without_tokens_ = without_text_ = kNone;
        }
        const bool is_ours = place_.at() == At::document || place_.at() == At::descriptors || place_.at() == At::leaves;
        return open(is_ours, "an object");
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
        seen_descriptors_ = seen_descriptors_ || place_.key() == Key::descriptors;
        return open(place_.key() != Key::unknown && place_.opens() != At::skipped, "an array");
    }

    bool end_array() override {
        if (place_.at() == At::tokens) {
            leaves_.end_leaf();
        }
        return close();
    }

   protected:
    std::string place() const override { return place_.name(); }
    const char * expected() const noexcept override { return place_.expected(); }

    bool scalar(const char * found) override {
        refuse_if_expecting(found);
        place_.next();
        return true;
    }

   private:
    [[noreturn]] static void fail(Status status, const std::string & message) { throw Error(status, message); }
    static bool is_fingerprint(std::string_view text) {
        constexpr std::string_view prefix = "sha256:";
        constexpr std::size_t n_digits = 64;
        return text.size() == prefix.size() + n_digits && text.substr(0, prefix.size()) == prefix &&
               text.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
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

    bool open(bool is_ours, const char * found) {
        if (!is_ours) {
            refuse_if_expecting(found);
        }
        place_.open(is_ours ? place_.opens() : At::skipped);
        return true;
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

    // What a leaf has to have is known at the end of its descriptor, where "tokenization" may come too.
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
