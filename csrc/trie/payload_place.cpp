#include "trie/payload_place.h"

#include "trie/error.h"

namespace token_trie {

PayloadPlace::Key PayloadPlace::known(const std::string & name) const {
    switch (at()) {
        case At::root:
            return name == "modelId"       ? Key::model_id
                   : name == "vocab"       ? Key::vocab
                   : name == "descriptors" ? Key::descriptors
                                           : Key::unknown;
        case At::descriptor:
            return name == "path"           ? Key::path
                   : name == "tokenization" ? Key::tokenization
                   : name == "leaves"       ? Key::leaves
                                            : Key::unknown;
        case At::leaf:
            return name == "name"     ? Key::name
                   : name == "tokens" ? Key::tokens
                   : name == "text"   ? Key::text
                                      : Key::unknown;
        default: return Key::unknown;
    }
}

const char * PayloadPlace::expected() const noexcept {
    switch (at()) {
        case At::document:
        case At::descriptors:
        case At::leaves: return "an object";
        case At::tokens: return "a token id";
        case At::skipped: return nullptr;
        default: break;
    }
    switch (key_) {
        case Key::unknown: return nullptr;
        case Key::descriptors:
        case Key::leaves:
        case Key::tokens: return "an array";
        default: return "a string";
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

void PayloadPlace::fail_too_deep() const { throw Error(Status::limit, name() + ": more than 64 levels of nesting"); }

void PayloadPlace::take_key(const std::string & name) {
    key_text_.assign(name, 0, 81);  // one byte more than quote() keeps, so that it marks the cut
    key_ = at() == At::skipped ? Key::unknown : known(name);
    if (key_ != Key::unknown) {
        if (has(key_)) {
            throw Error(Status::payload, this->name() + ": the key stands twice");
        }
        seen_.back() |= bit_of(key_);
    }
}

}  // namespace token_trie
