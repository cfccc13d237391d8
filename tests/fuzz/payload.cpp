#include "trie/payload.h"

#include "fuzz.h"
#include "payload_document.h"

#include <algorithm>
#include <array>

// The payload reader against a second reading of the same text, which has the whole document before it. The first byte
// of an input chooses path and vocabulary.
namespace token_trie::fuzz {
namespace {

struct Leaf {
    std::string name;
    std::vector<Token> tokens;

    bool operator==(const Leaf & other) const { return name == other.name && tokens == other.tokens; }
};

struct Payload {
    std::vector<Leaf> leaves;
    std::string vocab;
};

// Reads as token_trie.h tells; nullopt for what it refuses.
class Reading {
   public:
    Reading(std::string_view json, const std::optional<std::string> & path, std::int32_t n_vocab)
        : path_(path), n_vocab_(n_vocab) {
        const Document document = Document::parse(json, nullptr, /* allow_exceptions = */ false);
        ok_ = json.find('\0') == std::string_view::npos && !document.is_discarded() && depth(document) <= 64 &&
              read_root(document);
    }

    std::optional<Payload> take() {
        const bool has_tokens =
            std::any_of(out_.leaves.begin(), out_.leaves.end(), [](const Leaf & leaf) { return !leaf.tokens.empty(); });
        return ok_ && has_tokens ? std::optional<Payload>(std::move(out_)) : std::nullopt;
    }

   private:
    static std::size_t depth(const Document & value) {
        if (!value.is_structured()) {
            return 0;
        }
        std::size_t deepest = 0;
        for (const Document & item : value) {
            deepest = std::max(deepest, depth(item));
        }
        return deepest + 1;
    }

    // The value of a key that may stand once; *again is set where it stands twice.
    static const Document * find(const Document & object, const char * key, bool * again) {
        const Document * out = nullptr;
        for (auto at = object.begin(); at != object.end(); ++at) {
            if (at.key() == key) {
                *again = *again || out != nullptr;
                out = &*at;
            }
        }
        return out;
    }

    static bool is_text(const Document * value) {
        return value == nullptr ||
               (value->is_string() && value->get_ref<const std::string &>().find('\0') == std::string::npos);
    }

    bool read_root(const Document & root) {
        bool again = false;
        if (!root.is_object()) {
            return false;
        }
        const Document * model = find(root, "modelId", &again);
        const Document * vocab = find(root, "vocab", &again);
        const Document * descriptors = find(root, "descriptors", &again);
        if (again || !is_text(model) || !is_text(vocab) || descriptors == nullptr || !descriptors->is_array()) {
            return false;
        }
        if (vocab != nullptr) {
            out_.vocab = vocab->get<std::string>();
            constexpr std::size_t n_prefix = 7;
            if (out_.vocab.size() != n_prefix + 64 || out_.vocab.substr(0, n_prefix) != "sha256:" ||
                !std::all_of(out_.vocab.begin() + n_prefix, out_.vocab.end(),
                             [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); })) {
                return false;
            }
        }
        bool found_path = !path_;
        for (const Document & descriptor : *descriptors) {
            if (!read_descriptor(descriptor, &found_path)) {
                return false;
            }
        }
        return found_path;
    }

    bool read_descriptor(const Document & descriptor, bool * found_path) {
        bool again = false;
        if (!descriptor.is_object()) {
            return false;
        }
        const Document * path = find(descriptor, "path", &again);
        const Document * leaves = find(descriptor, "leaves", &again);
        if (again || !is_text(path) || leaves == nullptr || !leaves->is_array()) {
            return false;
        }
        const bool is_kept = !path_ || *path_ == (path == nullptr ? "" : path->get<std::string>());
        *found_path = *found_path || is_kept;
        return std::all_of(leaves->begin(), leaves->end(),
                           [&](const Document & leaf) { return read_leaf(leaf, is_kept); });
    }

    bool read_leaf(const Document & leaf, bool is_kept) {
        bool again = false;
        if (!leaf.is_object()) {
            return false;
        }
        const Document * name = find(leaf, "name", &again);
        const Document * tokens = find(leaf, "tokens", &again);
        if (again || name == nullptr || !is_text(name) || tokens == nullptr || !tokens->is_array()) {
            return false;
        }
        Leaf out{name->get<std::string>(), {}};
        for (const Document & token : *tokens) {
            constexpr std::uint64_t max = INT32_MAX;
            const bool is_id =
                token.is_number_integer() &&
                !(token.is_number_unsigned() ? token.get<std::uint64_t>() > max : token.get<std::int64_t>() != 0);
            if (!is_id || (n_vocab_ > 0 && token.get<std::int64_t>() >= n_vocab_)) {
                return false;
            }
            out.tokens.push_back(token.get<Token>());
        }
        if (is_kept) {
            out_.leaves.push_back(std::move(out));
        }
        return true;
    }

    const std::optional<std::string> & path_;
    const std::int32_t n_vocab_;
    bool ok_ = false;
    Payload out_;
};

void check_message(const Error & error) {
    const std::string message = error.what();
    require(error.status() == Status::payload || error.status() == Status::vocab || error.status() == Status::limit,
            "a payload is refused as one");
    const auto has = [&](const char * text) { return message.find(text) != std::string::npos; };
    require(has(": ") || has(" must be "), "a message begins with the place");
    require(message.size() < 1024, "a message stays short");
    require(std::none_of(message.begin(), message.end(), [](unsigned char c) { return c < 0x20; }), "on one line");
    require(!Document(message).dump(-1, ' ', false, Document::error_handler_t::strict).empty(), "in UTF-8");
}

void compare(std::uint8_t first, std::string_view json) {
    constexpr std::array<std::int32_t, 4> sizes = {0, 8, 300, INT32_MAX};
    constexpr std::array<const char *, 4> paths = {nullptr, "", "a", "b"};
    const std::int32_t n_vocab = sizes[first % 4];
    const char * chosen = paths[first / 4 % 4];
    const std::optional<std::string> path = chosen == nullptr ? std::nullopt : std::optional<std::string>(chosen);
    const std::optional<Payload> expected = Reading(json, path, n_vocab).take();
    LeafList leaves;
    try {
        leaves = read_payload(json, path, n_vocab);
    } catch (const Error & error) {
        check_message(error);
        require(!expected, "what the header describes is taken");
        return;
    }
    require(expected.has_value(), "what the header does not describe is refused");
    require(leaves.vocab == expected->vocab, "fingerprint");
    require(leaves.size() == expected->leaves.size() && leaves.names.size() == leaves.size(),
            "as many leaves as stand there");
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        const Leaf & leaf = expected->leaves[i];
        require(leaves.names[i] == leaf.name, "names");
        require(std::equal(leaf.tokens.begin(), leaf.tokens.end(),
                           leaves.tokens.begin() + static_cast<std::ptrdiff_t>(leaves.offsets[i]),
                           leaves.tokens.begin() + static_cast<std::ptrdiff_t>(leaves.offsets[i + 1])),
                "tokens");
    }
}

}  // namespace
}  // namespace token_trie::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t * data, std::size_t size) {
    if (size > 0) {
        token_trie::fuzz::compare(*data, {reinterpret_cast<const char *>(data + 1), size - 1});
    }
    return 0;
}
