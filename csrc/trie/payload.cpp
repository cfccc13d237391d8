#include "trie/payload.h"

#include "trie/json.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

enum class Kind { object, array, string, token };

enum Value { root, model_id, vocab, descriptors, descriptor, path, leaves, leaf, name, tokens, token };

// A value that a payload has to hold; all other values are ignored.
struct Shape {
    Value id;
    Kind kind;
    // NOLINTNEXTLINE(readability-redundant-member-init): for shapes without one
    std::string_view key = {};      // in the object around it
    bool is_required = false;       // by that object
    const Shape * inner = nullptr;  // an object's keys; an array's element
    std::size_t n_inner = 0;
};

// The shapes of
//
//     {"modelId": "m", "descriptors": [{"path": "p", "leaves": [{"name": "a", "tokens": [7, 8]}]}]}
constexpr Shape kToken = {token, Kind::token};
constexpr Shape kOfLeaf[] = {{name, Kind::string, "name", true}, {tokens, Kind::array, "tokens", true, &kToken, 1}};
constexpr Shape kLeaf = {leaf, Kind::object, "", false, kOfLeaf, std::size(kOfLeaf)};
constexpr Shape kOfDescriptor[] = {{path, Kind::string, "path"}, {leaves, Kind::array, "leaves", true, &kLeaf, 1}};
constexpr Shape kDescriptor = {descriptor, Kind::object, "", false, kOfDescriptor, std::size(kOfDescriptor)};
constexpr Shape kOfRoot[] = {{model_id, Kind::string, "modelId"},
                             {vocab, Kind::string, "vocab"},
                             {descriptors, Kind::array, "descriptors", true, &kDescriptor, 1}};
constexpr Shape kRootShape = {root, Kind::object, "", false, kOfRoot, std::size(kOfRoot)};

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

// Reads a payload value by value, so that no document is held in memory. Throws Error (payload, vocab, limit) with a
// message that begins with the place of the value.
class Reader final : public nlohmann::json_sax<Json> {
   public:
    Reader(const std::optional<std::string> & path, std::int32_t n_vocab, bool splits)
        : wanted_path_(path), n_vocab_(n_vocab), splits_(splits) {}

    // The leaves by path where it splits, else all under "".
    std::map<std::string, LeafList> take() {
        if (wanted_path_ && sets_.empty()) {
            throw Error(Status::payload, "payload: no descriptor has the path ", quote(*wanted_path_), paths_seen());
        }
        throw_if(splits_ && sets_.empty(), Status::payload, "payload: no descriptor");
        for (auto & [path, leaves] : sets_) {
            throw_if(splits_ && leaves.tokens.empty(), Status::payload, "payload: the path ", quote(path),
                     " has no leaf with tokens");
            leaves.vocab = vocab_;
        }
        return std::move(sets_);
    }

    bool null() override { return scalar("null"); }
    bool boolean(bool) override { return scalar("a boolean"); }
    bool number_integer(std::int64_t value) override { return number(value, value); }
    bool number_unsigned(std::uint64_t value) override {
        constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
        return number(static_cast<std::int64_t>(std::min(value, most)), value);
    }
    // An integer beyond 64 bits comes here too.
    bool number_float(double, const std::string & text) override {
        const bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
        return is_integer ? number(-1, text) : scalar("a fraction");
    }
    bool binary(binary_t &) override { return scalar("binary data"); }
    bool string(std::string & value) override {
        if (next_ == nullptr || next_->kind != Kind::string) {
            return scalar("a string");
        }
        take_string(next_->id, value);
        return advance();
    }
    bool key(std::string & name) override {
        key_.assign(name, 0, kMaxKeyBytes);
        next_ = nullptr;
        Open & object = open_.back();
        if (object.shape == nullptr) {
            return true;
        }
        const Shape * const end = object.shape->inner + object.shape->n_inner;
        const Shape * const known =
            std::find_if(object.shape->inner, end, [&](const Shape & each) { return each.key == name; });
        if (known != end) {
            refuse_if(has(known->id), Status::payload, "the key comes twice");
            object.seen |= std::uint32_t{1} << known->id;
            next_ = known;
        }
        return true;
    }
    bool start_object(std::size_t) override { return open(Kind::object, "an object"); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(Kind::array, "an array"); }
    bool end_array() override { return close(); }
    // Reports the parser's own clause alone: the place is ours, and the text that it read last may be no UTF-8.
    bool parse_error(std::size_t byte, const std::string &, const Json::exception & error) override {
        std::string_view what = error.what();
        for (const char * mark : {"] ", ": "}) {
            const std::size_t at = what.find(mark);
            what.remove_prefix(at == std::string_view::npos ? 0 : at + 2);
        }
        constexpr std::size_t max_bytes = 200;
        what = what.substr(0, std::min(what.find("; last read"), max_bytes));
        throw Error(Status::payload, place(), ": broken JSON at byte ", byte, ": ", what);
    }

   private:
    struct Open {
        const Shape * shape;      // null: ignored
        std::string key;          // in the object around it, as messages name it
        std::uint64_t index = 0;  // values so far in an array
        std::uint32_t seen = 0;   // keys so far in an object, by id
    };

    template <typename... Parts>
    void refuse_if(bool is_broken, Status status, const Parts &... parts) const {
        if (is_broken) {
            throw Error(status, place(), ": ", parts...);
        }
    }
    // The place of the value that is read, such as descriptors[0].leaves[3].tokens[1].
    std::string place() const {
        std::string out = place_of_open();
        const Shape * const shape = open_.empty() ? nullptr : open_.back().shape;
        if (shape != nullptr && shape->kind == Kind::array) {
            out += "[" + std::to_string(open_.back().index) + "]";
        } else if (shape != nullptr && !key_.empty()) {
            out = open_.size() == 1 ? "" : out;
            append_key(out, key_);
        }
        return out;
    }
    std::string place_of_open() const {
        std::string out;
        for (std::size_t i = 1; i < open_.size() && open_[i].shape != nullptr; ++i) {
            const Open & around = open_[i - 1];
            if (around.shape->kind == Kind::array) {
                out += "[" + std::to_string(around.index) + "]";
            } else {
                append_key(out, open_[i].key);
            }
        }
        return out.empty() ? "payload" : out;
    }
    // Whether the object that is open has had this key.
    bool has(Value id) const noexcept { return (open_.back().seen >> id & 1U) != 0; }

    template <typename Number>
    bool number(std::int64_t value, const Number & shown) {
        if (next_ == nullptr || next_->kind != Kind::token) {
            return scalar("a number");
        }
        refuse_if(value < 0 || value > std::numeric_limits<Token>::max(), Status::payload, shown, " is not a token id");
        take_token(static_cast<Token>(value));
        return advance();
    }
    bool scalar(const char * found) {
        refuse_if_expecting(found);
        return advance();
    }
    bool open(Kind kind, const char * found) {
        const Shape * const shape = next_;
        if (shape != nullptr && shape->kind != kind) {
            refuse_if_expecting(found);
        }
        refuse_if(open_.size() == kMaxDepth, Status::limit, "more than 64 levels of nesting");
        open_.push_back({shape, std::move(key_)});
        key_.clear();
        next_ = shape != nullptr && kind == Kind::array ? shape->inner : nullptr;
        if (shape != nullptr && shape->id == descriptor) {
            path_.clear();
        }
        return true;
    }
    bool close() {
        if (const Shape * const shape = open_.back().shape; shape != nullptr) {
            for (std::size_t i = 0; i < shape->n_inner; ++i) {
                if (shape->inner[i].is_required && !has(shape->inner[i].id)) {
                    throw Error(Status::payload, place_of_open(), ": the key ", quote(shape->inner[i].key),
                                " is missing");
                }
            }
            if (shape->id == tokens) {
                leaves_.end_leaf();
            } else if (shape->id == descriptor) {
                end_descriptor();
            }
        }
        open_.pop_back();
        key_.clear();
        const bool is_in_array =
            !open_.empty() && open_.back().shape != nullptr && open_.back().shape->kind == Kind::array;
        next_ = is_in_array ? open_.back().shape->inner : nullptr;
        return advance();
    }
    bool advance() {
        if (!open_.empty()) {
            ++open_.back().index;
        }
        return true;
    }
    // Throws if a value of another kind must be here.
    void refuse_if_expecting(const char * found) const {
        if (next_ != nullptr) {
            throw Error(Status::payload, place(), " must be ", called(next_->kind), ", not ", found);
        }
    }

    void take_string(Value id, std::string & value) {
        refuse_if(value.size() > kMaxNameBytes, Status::limit, "a string of ", value.size(), " bytes; at most 65535");
        refuse_if(value.find('\0') != std::string::npos, Status::payload, "holds a NUL character");
        switch (id) {
            case vocab:
                refuse_if(!is_fingerprint(value), Status::payload, quote(value),
                          " is not \"sha256:\" and 64 hex digits");
                vocab_ = std::move(value);
                break;
            case path: path_ = std::move(value); break;
            case name: leaves_.names.push_back(std::move(value)); break;
            default: break;
        }
    }

    void take_token(Token token) {
        refuse_if(n_vocab_ > 0 && token >= n_vocab_, Status::vocab, token, " is outside the vocabulary (", n_vocab_,
                  " tokens)");
        refuse_if(leaves_.tokens.size() - leaves_.offsets.back() == kMaxLeafTokens, Status::limit,
                  "more than 65535 tokens in a leaf");
        leaves_.tokens.push_back(token);
    }

    static bool is_fingerprint(std::string_view text) {
        constexpr std::string_view prefix = "sha256:";
        constexpr std::size_t n_digits = 64;
        return text.size() == prefix.size() + n_digits && text.substr(0, prefix.size()) == prefix &&
               text.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
    }

    // Moves the descriptor's leaves to its set.
    void end_descriptor() {
        if (!wanted_path_ || path_ == *wanted_path_) {
            LeafList & set = sets_[splits_ ? path_ : ""];
            if (set.size() == 0) {
                set = std::move(leaves_);
            } else {
                set.append(std::move(leaves_));
            }
        } else if (paths_.size() < 5) {
            paths_.push_back(quote(path_));
        }
        leaves_ = {};
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

    std::map<std::string, LeafList> sets_;
    std::string vocab_;
    std::vector<std::string> paths_;  // that were not wanted
    // The descriptor under way:
    std::string path_;
    LeafList leaves_;

    std::vector<Open> open_;
    const Shape * next_ = &kRootShape;  // for the value that comes next; null: any
    std::string key_;                   // that value's key
};

void check_bytes(std::string_view json) {
    throw_if(json.size() > kMaxPayloadBytes, Status::limit, "payload: ", json.size(), " bytes; at most 1073741824");
    const std::size_t nul = json.find('\0');
    throw_if(nul != std::string_view::npos, Status::payload, "payload: a NUL at byte ", nul + 1);
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
    throw_if(leaves.tokens.empty(), Status::payload, "payload: no leaf with tokens: a set needs at least one");
    return leaves;
}

std::map<std::string, LeafList> read_paths(std::string_view json, std::int32_t n_vocab) {
    return read(json, std::nullopt, n_vocab, /* splits = */ true);
}

}  // namespace token_trie
