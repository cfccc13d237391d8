#include "trie/prefix_dict.h"

#include "trie/json.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr std::size_t kKeysNamed = 5;

enum Value { root, start_token, end_token, sep, dict, list, token };
using Kind = JsonShape::Kind;
constexpr JsonShape kToken = {token, Kind::token};
constexpr JsonShape kList = {list, Kind::array, "", false, &kToken, 1};
constexpr JsonShape kOfRoot[] = {{start_token, Kind::token, "start_token_id"},
                                 {end_token, Kind::token, "end_token_id"},
                                 {sep, Kind::string, "sep"},
                                 {dict, Kind::object, "prefix_dict", true, &kList, 1}};
constexpr JsonShape kRootShape = {root, Kind::object, "", false, kOfRoot, std::size(kOfRoot)};

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

class Reader final : public JsonReader {
   public:
    // sep: which keys are taken apart with, if no other comes before them.
    explicit Reader(std::string sep) : JsonReader(kRootShape, "configuration"), sep_(std::move(sep)) {}

    // Of the keys, one leaf each; list i has next()[list_ends()[i - 1] .. list_ends()[i]).
    LeafList take_keys() { return std::move(keys_); }
    const std::string & sep() const { return sep_; }
    const std::vector<Token> & next() const { return next_; }
    const std::vector<std::uint64_t> & list_ends() const { return list_ends_; }
    PrefixDict & out() { return out_; }

    void check() const {
        throw_if(out_.start == out_.end, Status::payload, "end_token_id: ", out_.end, " is the start token too");
        throw_if(out_.sep.empty() || out_.sep.find_first_of("-0123456789") != std::string::npos, Status::payload,
                 "sep: ", quote(out_.sep), ": it does not separate token ids");
    }

   protected:
    void on_string(int /*id*/, std::string & value) override {
        out_.sep = std::move(value);
        sep_ = has(dict) ? sep_ : out_.sep;
    }

    void on_token(int id, Token value) override {
        if (id == token) {
            next_.push_back(value);
        } else {
            (id == start_token ? out_.start : out_.end) = value;
        }
    }

    void on_no_token(int id, const std::string & text) override {
        if (id != token) {
            JsonReader::on_no_token(id, text);
        }
        ++out_.n_ids_skipped;
    }

    void on_key(int object, const std::string & name) override {
        if (object != dict) {
            return;
        }
        key_tokens_ = tokens_of(name, sep_);
        if (key_tokens_.empty()) {
            out_.add_unreached(name);
        }
        refuse_if(key_tokens_.size() > kMaxLeafTokens, Status::limit, "more than 65535 tokens");
    }

    void on_close(int id) override {
        if (id != list) {
            return;
        }
        const auto begin = next_.begin() + static_cast<std::ptrdiff_t>(list_ends_.empty() ? 0 : list_ends_.back());
        if (key_tokens_.empty()) {
            next_.erase(begin, next_.end());
            return;
        }
        std::sort(begin, next_.end());
        next_.erase(std::unique(begin, next_.end()), next_.end());
        list_ends_.push_back(next_.size());
        keys_.tokens.insert(keys_.tokens.end(), key_tokens_.begin(), key_tokens_.end());
        keys_.end_leaf();
    }

   private:
    std::string sep_;  // what the keys are taken apart with
    PrefixDict out_;
    LeafList keys_;
    std::vector<Token> key_tokens_;  // of the key whose list comes next
    std::vector<Token> next_;
    std::vector<std::uint64_t> list_ends_;
};

// Follows the lists from the start token, and writes down the members.
class Members {
   public:
    Members(Reader & reader, LeafList keys) : reader_(reader) {
        const std::size_t n = keys.size();
        trie_ = Trie::build(std::move(keys));
        throw_if(trie_->n_leaves() != n, Status::payload, "prefix_dict: ", n - trie_->n_leaves(),
                 " of its keys come twice");
    }

    void run() {
        PrefixDict & out = reader_.out();
        const NodeId start = trie_->child(kRoot, out.start);
        throw_if(start == kNoNode || trie_->leaf(start) == kNoLeaf, Status::payload, "prefix_dict: no key \"",
                 out.start, "\", which start_token_id begins with");
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
                out.add_unreached(text_of(key));
            }
        }
        throw_if(out.members.size() == 0, Status::payload, "prefix_dict: leads to no member");
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
                throw Error(Status::payload, "prefix_dict[", quote(text_of(key)),
                            "]: may end at once; an empty answer is no member of a set");
            }
            LeafList & members = reader_.out().members;
            members.tokens.insert(members.tokens.end(), path_.begin(), path_.end());
            members.end_leaf();
        }
        open_.push_back(open);
    }

    std::string text_of(LeafId key) const {
        std::string text;
        for (const Token token : trie_->sequence(key)) {
            text.append(text.empty() ? "" : reader_.out().sep).append(std::to_string(token));
        }
        return text;
    }

    Reader & reader_;
    std::shared_ptr<const Trie> trie_;  // leaf i is key i
    std::vector<bool> reached_;
    std::vector<Token> path_;
    std::vector<Open> open_;
};

}  // namespace

void PrefixDict::add_unreached(const std::string & key) {
    ++n_keys_unreached;
    if (keys_unreached.size() < kKeysNamed) {
        keys_unreached.push_back(key);
    }
}

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
        throw_if(!json.seekg(0), Status::payload, "sep: comes after the keys, in what can be read only once");
        reader = read(sep);
        throw_if(reader.out().sep != sep, Status::payload, "sep: has changed while it was read");
    }
    LeafList keys = reader.take_keys();
    throw_if(keys.size() == 0, Status::payload, "prefix_dict: no key");
    Members(reader, std::move(keys)).run();
    return std::move(reader.out());
}

}  // namespace token_trie
