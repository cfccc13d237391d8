#include "trie/payload.h"

#include "trie/json.h"

#include <iterator>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// What our keys hold:
//
//     {"modelId": "m", "descriptors": [{"path": "p", "leaves": [{"name": "a", "tokens": [7, 8]}]}]}
enum Value { root, model_id, vocab, descriptors, descriptor, path, leaves, leaf, name, tokens, token };
using Kind = JsonShape::Kind;
constexpr JsonShape kToken = {token, Kind::token};
constexpr JsonShape kOfLeaf[] = {{name, Kind::string, "name", true}, {tokens, Kind::array, "tokens", true, &kToken, 1}};
constexpr JsonShape kLeaf = {leaf, Kind::object, "", false, kOfLeaf, std::size(kOfLeaf)};
constexpr JsonShape kOfDescriptor[] = {{path, Kind::string, "path"}, {leaves, Kind::array, "leaves", true, &kLeaf, 1}};
constexpr JsonShape kDescriptor = {descriptor, Kind::object, "", false, kOfDescriptor, std::size(kOfDescriptor)};
constexpr JsonShape kOfRoot[] = {{model_id, Kind::string, "modelId"},
                                 {vocab, Kind::string, "vocab"},
                                 {descriptors, Kind::array, "descriptors", true, &kDescriptor, 1}};
constexpr JsonShape kRootShape = {root, Kind::object, "", false, kOfRoot, std::size(kOfRoot)};

// One instance reads one payload.
class Reader final : public JsonReader {
   public:
    Reader(const std::optional<std::string> & path, std::int32_t n_vocab, bool splits)
        : JsonReader(kRootShape, "payload"), wanted_path_(path), n_vocab_(n_vocab), splits_(splits) {}

    // By path where it splits, else one.
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

   protected:
    void on_string(int id, std::string & value) override {
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

    void on_token(int /*id*/, Token token) override {
        refuse_if(n_vocab_ > 0 && token >= n_vocab_, Status::vocab, token, " is outside the vocabulary (", n_vocab_,
                  " tokens)");
        refuse_if(leaves_.tokens.size() - leaves_.offsets.back() == kMaxLeafTokens, Status::limit,
                  "more than 65535 tokens in a leaf");
        leaves_.tokens.push_back(token);
    }

    void on_open(int id) override {
        if (id == descriptor) {
            path_.clear();
        }
    }

    void on_close(int id) override {
        if (id == tokens) {
            leaves_.end_leaf();
        } else if (id == descriptor) {
            end_descriptor();
        }
    }

   private:
    static bool is_fingerprint(std::string_view text) {
        constexpr std::string_view prefix = "sha256:";
        constexpr std::size_t n_digits = 64;
        return text.size() == prefix.size() + n_digits && text.substr(0, prefix.size()) == prefix &&
               text.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
    }

    // Moves what the descriptor has to the others of its set.
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
