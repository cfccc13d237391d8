#include "follow_options.h"
#include "fuzz.h"
#include "oracle.h"

#include <algorithm>
#include <array>

// The builder of trees and the cursor, against the sequences themselves.
namespace token_trie::fuzz {
namespace {

constexpr std::uint32_t kTokens = 6;
constexpr std::uint32_t kLongest = 4;
constexpr std::array<const char *, 4> kNames = {"", "a", "b", "ab"};

// A sequence that allocates nothing.
struct Word {
    std::array<Token, kLongest> tokens{};
    std::uint32_t size = 0;

    const Token * begin() const { return tokens.data(); }
    const Token * end() const { return tokens.data() + size; }
    void push_back(Token token) { tokens[size++] = token; }
    Word prefix(std::uint32_t n) const {
        Word out;
        std::copy(begin(), begin() + n, out.tokens.begin());
        out.size = n;
        return out;
    }
    bool operator==(const Word & other) const { return size == other.size && tokens == other.tokens; }
    // As a trie numbers its nodes.
    bool operator<(const Word & other) const { return size != other.size ? size < other.size : tokens < other.tokens; }
};

struct Member {
    Word word;
    std::uint32_t row;   // in the list
    std::uint32_t name;  // index into kNames

    bool operator<(const Member & other) const { return word == other.word ? row < other.row : word < other.word; }
};

struct List {
    std::vector<Member> members;  // without empty ones
    std::uint32_t n_rows = 0;
    bool is_named = false;
    bool has_bad_token = false;

    explicit List(Input & in) {
        is_named = in.below(2) == 1;
        n_rows = in.below(13);
        members.reserve(n_rows);
        for (std::uint32_t row = 0; row < n_rows; ++row) {
            const std::uint32_t size_and_name = in.byte();
            Member member{{}, row, size_and_name / 8 % 4};
            for (std::uint32_t n = size_and_name % (kLongest + 1); n > 0; --n) {
                member.word.push_back(token(in));
            }
            if (member.word.size > 0) {
                members.push_back(member);
            }
        }
    }

    Token token(Input & in) {
        const std::uint8_t byte = in.byte();
        has_bad_token = has_bad_token || byte == 255;
        return byte == 255 ? -1 : byte == 254 ? INT32_MAX : static_cast<Token>(byte % kTokens);
    }

    LeafList leaves() const {
        LeafList out;
        auto member = members.begin();
        for (std::uint32_t row = 0; row < n_rows; ++row) {
            const bool is_empty = member == members.end() || member->row != row;
            if (is_named) {
                out.names.emplace_back(is_empty ? "empty" : kNames[member->name]);
            }
            if (!is_empty) {
                out.tokens.insert(out.tokens.end(), member->word.begin(), member->word.end());
                ++member;
            }
            out.end_leaf();
        }
        return out;
    }
};

void check_nodes(const Trie & trie, Layout layout, const std::vector<Member> & members) {
    std::vector<Word> nodes;
    nodes.reserve(members.size() * kLongest + 1);
    nodes.emplace_back();
    for (const Member & member : members) {
        for (std::uint32_t n = 1; n <= member.word.size; ++n) {
            nodes.push_back(member.word.prefix(n));
        }
    }
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    require(trie.n_nodes() == nodes.size(), "a node for each beginning of a member");
    for (NodeId node = 0; node < nodes.size(); ++node) {
        const Word & path = nodes[node];
        const NodeId at_path = trie.descend(path.begin(), path.size);
        require(at_path == node || layout == Layout::compact, "nodes are numbered by depth, then by tokens");
        if (node != kRoot) {
            const NodeId parent = trie.descend(path.begin(), path.size - 1);
            require(trie.parent(at_path) == parent && trie.token(at_path) == path.tokens[path.size - 1],
                    "a node's parent");
            require(trie.children(parent).contains(trie.token(at_path)), "a node is its parent's child");
        }
        for (std::uint32_t t = 0; t < kTokens && path.size < kLongest; ++t) {
            Word longer = path;
            longer.push_back(static_cast<Token>(t));
            const auto at = std::lower_bound(nodes.begin(), nodes.end(), longer);
            const bool is_node = at != nodes.end() && *at == longer;
            require(trie.child(at_path, static_cast<Token>(t)) ==
                        (is_node ? trie.descend(longer.begin(), longer.size) : kNoNode),
                    "a child for each token that leads on, and for no other");
        }
    }
}

// members are sorted, so that equal ones are neighbours in the list's order.
void check_leaves(const Trie & trie, const List & list, const std::vector<Member> & members) {
    std::uint32_t n_leaves = 0;
    std::uint64_t n_tokens = 0;
    std::uint32_t max_length = 0;
    Token max_token = -1;
    std::vector<std::uint32_t> firsts;  // rows
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (i == 0 || !(members[i].word == members[i - 1].word)) {
            firsts.push_back(members[i].row);
        }
    }
    std::sort(firsts.begin(), firsts.end());
    for (std::size_t i = 0; i < members.size();) {
        const std::size_t first = i;
        const Word & word = members[first].word;
        std::string name = kNames[members[first].name];
        for (; i < members.size() && members[i].word == word; ++i) {
            name = std::min<std::string>(name, kNames[members[i].name]);
        }
        const NodeId node = trie.descend(word.begin(), word.size);
        const LeafId leaf = trie.leaf(node);
        require(leaf < trie.n_leaves() && trie.leaf_node(leaf) == node, "a leaf ends where its tokens lead");
        require(firsts[leaf] == members[first].row, "leaves stand in the order of the list");
        require(trie.sequence(leaf) == test::Tokens(word.begin(), word.end()), "a leaf's sequence");
        require(trie.name(leaf) == (list.is_named ? name : std::to_string(members[first].row)),
                "the smallest name, or the place in the list");
        for (std::size_t k = first; k < i && list.is_named; ++k) {
            const bool is_kept = kNames[members[k].name] == name;
            const bool is_alias = std::any_of(trie.aliases().begin(), trie.aliases().end(), [&](const auto & alias) {
                return alias.leaf == leaf && alias.name == kNames[members[k].name];
            });
            require(is_kept != is_alias, "a name is the leaf's or one that gave way");
        }
        ++n_leaves;
        n_tokens += word.size;
        max_length = std::max(max_length, word.size);
        max_token = std::max(max_token, *std::max_element(word.begin(), word.end()));
    }
    require(trie.n_leaves() == n_leaves && trie.n_tokens() == n_tokens && trie.max_length() == max_length &&
                trie.max_token() == max_token,
            "counts");
    for (const Alias & alias : trie.aliases()) {
        const std::vector<Token> tokens = trie.sequence(alias.leaf);
        require(std::any_of(members.begin(), members.end(),
                            [&](const Member & member) {
                                return alias.name == kNames[member.name] &&
                                       std::equal(member.word.begin(), member.word.end(), tokens.begin(), tokens.end());
                            }),
                "an alias was a name of its leaf");
    }
}

// Takes the members away that have one of the names; returns whether each name was one's.
bool drop(const List & list, const std::vector<std::string> & names, std::set<test::Tokens> & words) {
    std::vector<std::pair<std::string, test::Tokens>> named;
    std::set<test::Tokens> seen;
    for (const Member & member : list.members) {
        const test::Tokens word(member.word.begin(), member.word.end());
        if (list.is_named) {
            named.emplace_back(kNames[member.name], word);
        } else if (seen.insert(word).second) {
            named.emplace_back(std::to_string(member.row), word);
        }
    }
    bool all_known = true;
    for (const std::string & name : names) {
        bool is_known = false;
        for (const auto & [its, word] : named) {
            if (its == name) {
                is_known = true;
                words.erase(word);
            }
        }
        all_known = all_known && is_known;
    }
    return all_known;
}

// One that a member may have, by its name or its place, or hardly.
std::string name_of(std::uint32_t byte) { return byte % 2 == 0 ? kNames[byte / 2 % 4] : std::to_string(byte / 2 % 16); }

FollowSet::Options options_of(Input & in) {
    const auto tokens = [&](std::uint32_t n) {
        std::vector<Token> out;
        for (; n > 0; --n) {
            const std::uint8_t byte = in.byte();
            out.push_back(byte == 255 ? -1 : static_cast<Token>(byte % (kTokens + 2)));
        }
        return out;
    };
    FollowSet::Options options;
    options.on_complete = static_cast<OnComplete>(in.below(3));
    const std::uint32_t sizes = in.byte();
    options.end_tokens = tokens(sizes % 4);
    options.separator = tokens(sizes / 4 % 4);
    options.max_items = static_cast<std::int32_t>(sizes / 16 % 5) - (sizes == 255 ? 5 : 0);
    const std::uint32_t list = in.byte();
    options.unique = list % 2 == 1;
    options.min_items = static_cast<std::int32_t>(list / 2 % 4) - (list == 255 ? 4 : 0);
    for (std::uint32_t n = list / 8 % 4; n > 0; --n) {
        options.exclude.push_back(name_of(in.byte()));
    }
    return options;
}

test::Tokens tokens_of(const AllowedSet & allowed) {
    test::Tokens out;
    allowed.for_each([&](Token token) {
        out.push_back(token);
        return true;
    });
    return out;
}

void decode(Input & in, Cursor cursor, const test::Oracle & beginning) {
    test::Oracle oracle = beginning;
    LeafId last = kNoLeaf;
    for (int n = 0; n < 16 && !in.empty(); ++n) {
        const AllowedSet allowed = cursor.allowed();
        const std::optional<std::set<Token>> expected = oracle.allowed();
        require(allowed.everything == !expected, "everything is allowed where anything may follow");
        test::Tokens tokens;
        if (expected) {
            tokens = tokens_of(allowed);
            require(std::equal(tokens.begin(), tokens.end(), expected->begin(), expected->end()), "the allowed set");
            require(!tokens.empty(), "an allowed set is never empty");
        }
        const std::uint8_t byte = in.byte();
        if (byte == 255) {
            cursor.reset();
            oracle = beginning;
            last = kNoLeaf;
        } else {
            // Mostly a token that is allowed.
            const bool follows = byte < 224 && expected;
            const Token token = follows ? tokens[byte % tokens.size()] : static_cast<Token>(byte % (kTokens + 2));
            require(allowed.contains(token) == (!expected || expected->count(token) > 0), "whether a token is allowed");
            Cursor copy = cursor;
            const bool accepted = cursor.accept(token);
            require(accepted == oracle.accept(token) && accepted == allowed.contains(token), "accept");
            require(copy.accept(token) == accepted && copy.node() == cursor.node(), "a copy goes the same way");
        }
        require(cursor.state() == oracle.state(), "state");
        require(cursor.n_items() == oracle.n_items(), "items");
        const test::Tokens & item = oracle.item();
        const LeafId leaf = cursor.trie().leaf(cursor.trie().descend(item.data(), item.size()));
        last = item.empty() ? last : oracle.is_finished() ? leaf : kNoLeaf;
        require(cursor.leaf() == last, "the leaf finished last");
    }
}

}  // namespace

void run(Input & in) {
    const List list(in);
    const Layout layout = list.n_rows % 2 == 0 ? Layout::flat : Layout::compact;
    std::shared_ptr<const Trie> trie;
    try {
        trie = Trie::build(list.leaves(), layout);
    } catch (const Error & error) {
        require(error.status() == Status::payload, "a set is refused for its content");
        require(list.members.empty() || list.has_bad_token, "a set with leaves of tokens is built");
        return;
    }
    require(!list.members.empty() && !list.has_bad_token, "an empty set and token ids below 0 are refused");
    std::vector<Member> members = list.members;
    std::sort(members.begin(), members.end());
    check_nodes(*trie, layout, members);
    check_leaves(*trie, list, members);

    const FollowSet::Options options = options_of(in);
    std::set<test::Tokens> words;
    for (const Member & member : members) {
        words.emplace(member.word.begin(), member.word.end());
    }
    const bool are_names = drop(list, options.exclude, words);
    const bool is_valid = are_names && are_valid(options, words.size());
    std::shared_ptr<const FollowSet> follow;
    try {
        follow = std::make_shared<const FollowSet>(*trie, options);
    } catch (const Error & error) {
        require(error.status() == Status::argument && !is_valid, "options that leave a way to end are taken");
        return;
    }
    require(is_valid, "options that leave no way to end are refused");
    decode(in, Cursor(trie, follow), test::Oracle(std::move(words), options));
}

}  // namespace token_trie::fuzz
