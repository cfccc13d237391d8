#include "trie/prefix_dict.h"

#include "trie/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr std::size_t kKeysNamed = 5;
constexpr std::array<std::string_view, 4> kSettings = {"start_token_id", "end_token_id", "sep", "prefix_dict"};

[[noreturn]] void fail(const std::string & message) { throw Error(Status::payload, message); }

std::string place_of(const std::string & key) { return "prefix_dict[" + quote(key) + "]"; }

// The tokens of a key, the start token included; empty if no beginning is spelled like this.
std::vector<Token> tokens_of(std::string_view key, std::string_view sep) {
    std::vector<Token> tokens;
    for (;;) {
        Token token = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
        const auto n = static_cast<std::size_t>(end - key.data());
        const bool is_plain = error == std::errc() && token >= 0 && key[0] != '-' && (key[0] != '0' || n == 1);
        if (!is_plain) {
            return {};
        }
        tokens.push_back(token);
        key.remove_prefix(n);
        if (key.empty()) {
            return tokens;
        }
        if (key.substr(0, sep.size()) != sep) {
            return {};
        }
        key.remove_prefix(sep.size());
        if (key.empty()) {
            return {};
        }
    }
}

std::string key_of(const Token * tokens, std::size_t n, const std::string & sep) {
    std::string key;
    for (std::size_t i = 0; i < n; ++i) {
        key.append(i == 0 ? "" : sep).append(std::to_string(tokens[i]));
    }
    return key;
}

class Reader : public JsonReader {
   public:
    // sep: which keys are taken apart with, if no other comes before them.
    explicit Reader(std::string sep) : sep_(std::move(sep)) { out_.sep = "_"; }

    // Of the keys, one leaf each; list i has next()[list_ends()[i - 1] .. list_ends()[i]).
    LeafList take_keys() { return std::move(keys_); }
    const std::string & sep() const { return sep_; }
    const std::vector<Token> & next() const { return next_; }
    const std::vector<std::uint64_t> & list_ends() const { return list_ends_; }
    PrefixDict & out() { return out_; }

    void check() const {
        if (!has_dict_) {
            fail("prefix_dict: missing");
        }
        if (out_.start == out_.end) {
            fail("end_token_id: " + std::to_string(out_.end) + " is the start token too");
        }
        if (out_.sep.empty() || out_.sep.find_first_of("-0123456789") != std::string::npos) {
            fail("sep: " + quote(out_.sep) + ": token ids cannot be told apart with it");
        }
    }

    bool number_integer(std::int64_t value) override { return integer(value); }
    bool number_unsigned(std::uint64_t value) override {
        return integer(static_cast<std::int64_t>(std::min<std::uint64_t>(value, INT64_MAX)));
    }
    bool number_float(double, const std::string & text) override {
        // An integer beyond 64 bits comes here too.
        const bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
        return is_integer ? integer(text[0] == '-' ? INT64_MIN : INT64_MAX) : scalar("a fraction");
    }

    bool string(std::string & value) override {
        if (depth_ == 1 && key_ == "sep") {
            out_.sep = std::move(value);
            sep_ = has_dict_ ? sep_ : out_.sep;
            return true;
        }
        return scalar("a string");
    }

    bool key(std::string & name) override {
        key_.swap(name);
        if (at_ == At::dict) {
            n_in_list_ = 0;
        }
        if (depth_ == 1) {
            expect_once(key_);
        }
        return true;
    }

    bool start_object(std::size_t) override {
        if (depth_ == 1 && key_ == "prefix_dict") {
            at_ = At::dict;
            has_dict_ = true;
        } else if (depth_ > 0) {
            refuse_if_expecting("an object");
        }
        ++depth_;
        return true;
    }
    bool end_object() override { return close(); }

    bool start_array(std::size_t) override {
        if (at_ == At::dict && depth_ == 2) {
            at_ = At::list;
        } else {
            refuse_if_expecting("an array");
        }
        ++depth_;
        return true;
    }
    bool end_array() override {
        if (at_ == At::list && depth_ == 3) {
            end_list();
        }
        return close();
    }

   protected:
    std::string place() const override {
        switch (at_) {
            case At::list: return place_of(key_) + "[" + std::to_string(n_in_list_) + "]";
            case At::dict: return depth_ == 2 ? place_of(key_) : "prefix_dict";
            default: return depth_ == 0 ? "configuration" : is_setting() ? key_ : quote(key_);
        }
    }

    const char * expected() const noexcept override {
        if (at_ != At::outside) {
            return at_ == At::list ? "a token id" : "a list of token ids";
        }
        if (depth_ == 0) {
            return "an object";
        }
        return !is_setting()           ? nullptr
               : key_ == "prefix_dict" ? "an object"
               : key_ == "sep"         ? "a string"
                                       : "a token id";
    }

   private:
    enum class At { outside, dict, list };

    bool is_setting() const {
        return depth_ == 1 && std::find(kSettings.begin(), kSettings.end(), key_) != kSettings.end();
    }

    // Of what means something here: which of two counts is anyone's guess.
    void expect_once(const std::string & key) {
        for (std::size_t i = 0; i < kSettings.size(); ++i) {
            if (key == kSettings[i] && std::exchange(has_[i], true)) {
                fail(key + ": the key comes twice");
            }
        }
    }

    bool integer(std::int64_t value) {
        const bool is_token = value >= 0 && value <= std::numeric_limits<Token>::max();
        if (at_ == At::list) {
            ++n_in_list_;
            if (is_token) {
                next_.push_back(static_cast<Token>(value));
            } else {
                ++out_.n_ids_skipped;
            }
            return true;
        }
        if (at_ == At::outside && is_setting() && key_ != "sep" && key_ != "prefix_dict") {
            if (!is_token) {
                fail(key_ + ": " + std::to_string(value) + " is not a token id");
            }
            (key_ == "start_token_id" ? out_.start : out_.end) = static_cast<Token>(value);
            return true;
        }
        return scalar("a number");
    }

    void end_list() {
        at_ = At::dict;
        const auto begin = next_.begin() + static_cast<std::ptrdiff_t>(list_ends_.empty() ? 0 : list_ends_.back());
        const std::vector<Token> tokens = tokens_of(key_, sep_);
        if (tokens.empty()) {
            note_unreached(key_);
            next_.erase(begin, next_.end());
            return;
        }
        if (tokens.size() > kMaxLeafTokens) {
            throw Error(Status::limit, place_of(key_) + ": more than 65535 tokens");
        }
        std::sort(begin, next_.end());
        next_.erase(std::unique(begin, next_.end()), next_.end());
        list_ends_.push_back(next_.size());
        keys_.tokens.insert(keys_.tokens.end(), tokens.begin(), tokens.end());
        keys_.end_leaf();
    }

    void note_unreached(const std::string & key) {
        ++out_.n_keys_unreached;
        if (out_.keys_unreached.size() < kKeysNamed) {
            out_.keys_unreached.push_back(key);
        }
    }

    bool close() {
        --depth_;
        if (at_ == At::dict && depth_ == 1) {
            at_ = At::outside;
        }
        return true;
    }

    std::string sep_;  // what the keys were taken apart with
    PrefixDict out_;
    LeafList keys_;
    std::vector<Token> next_;
    std::vector<std::uint64_t> list_ends_;
    At at_ = At::outside;
    std::size_t depth_ = 0;
    std::string key_;
    std::uint64_t n_in_list_ = 0;
    bool has_dict_ = false;
    std::array<bool, kSettings.size()> has_{};
};

// Follows the lists from the start token, and writes down the members.
class Members {
   public:
    Members(Reader & reader, LeafList keys) : reader_(reader) {
        const std::size_t n = keys.size();
        trie_ = Trie::build(std::move(keys));
        if (trie_->n_leaves() != n) {
            fail("prefix_dict: " + std::to_string(n - trie_->n_leaves()) + " of its keys come twice");
        }
    }

    void run() {
        PrefixDict & out = reader_.out();
        const NodeId start = trie_->child(kRoot, out.start);
        if (start == kNoNode || trie_->leaf(start) == kNoLeaf) {
            fail("prefix_dict: no key " + quote(std::to_string(out.start)) + ", which start_token_id begins with");
        }
        reached_.resize(trie_->n_leaves());
        enter(start);
        while (!open_.empty()) {
            Open & top = open_.back();
            if (top.at == top.end) {
                open_.pop_back();
                if (!path_.empty()) {
                    path_.pop_back();
                }
                continue;
            }
            const Token token = reader_.next()[top.at++];
            if (token != out.end) {
                path_.push_back(token);
                enter(top.node == kNoNode ? kNoNode : trie_->child(top.node, token));
            }
        }
        for (LeafId key = 0; key < reached_.size(); ++key) {
            if (!reached_[key]) {
                ++out.n_keys_unreached;
                if (out.keys_unreached.size() < kKeysNamed) {
                    out.keys_unreached.push_back(text_of(key));
                }
            }
        }
        if (out.members.size() == 0) {
            fail("prefix_dict: leads to no member");
        }
    }

   private:
    struct Open {
        NodeId node;
        std::uint64_t at;
        std::uint64_t end;
    };

    // Opens the list of the node that path_ leads to, or ends a member there.
    void enter(NodeId node) {
        const LeafId key = node == kNoNode ? kNoLeaf : trie_->leaf(node);
        Open open{node, 0, 0};
        bool is_member = true;
        if (key != kNoLeaf) {
            reached_[key] = true;
            open.at = key == 0 ? 0 : reader_.list_ends()[key - 1];
            open.end = reader_.list_ends()[key];
            const auto first = reader_.next().begin();
            is_member = open.at == open.end ||
                        std::binary_search(first + static_cast<std::ptrdiff_t>(open.at),
                                           first + static_cast<std::ptrdiff_t>(open.end), reader_.out().end);
        }
        if (is_member) {
            if (path_.empty()) {
                fail(place_of(text_of(key)) + ": may end at once; an empty answer is no member of a set");
            }
            LeafList & members = reader_.out().members;
            members.tokens.insert(members.tokens.end(), path_.begin(), path_.end());
            members.end_leaf();
        }
        open_.push_back(open);
    }

    std::string text_of(LeafId key) const {
        const std::vector<Token> tokens = trie_->sequence(key);
        return key_of(tokens.data(), tokens.size(), reader_.out().sep);
    }

    Reader & reader_;
    std::shared_ptr<const Trie> trie_;  // leaf i is key i
    std::vector<bool> reached_;
    std::vector<Token> path_;
    std::vector<Open> open_;
};

}  // namespace

PrefixDict read_prefix_dict(std::istream & json) {
    const auto read = [&json](const std::string & sep) {
        Reader reader(sep);
        Json::sax_parse(json, &reader);
        reader.check();
        return reader;
    };
    Reader reader = read("_");
    if (const std::string sep = reader.out().sep; sep != reader.sep()) {
        json.clear();
        if (!json.seekg(0)) {
            fail("sep: comes after the keys, in what can be read only once");
        }
        reader = read(sep);
        if (reader.out().sep != sep) {
            fail("sep: has changed while it was read");
        }
    }
    LeafList keys = reader.take_keys();
    if (keys.size() == 0) {
        fail("prefix_dict: no key");
    }
    Members(reader, std::move(keys)).run();
    return std::move(reader.out());
}

}  // namespace token_trie
