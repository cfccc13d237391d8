#include "fuzz.h"
#include "trie/lexicon.h"

#include <algorithm>
#include <map>
#include <set>

// The graph of all spellings of a few texts in a small vocabulary, against plain search in strings.
namespace token_trie::fuzz {
namespace {

constexpr std::uint32_t kLongest = 6;
constexpr std::uint32_t kNone = UINT32_MAX;

// One byte holds length and letters, of which 0xFF is none of UTF-8.
std::string read_string(Input & in, std::uint32_t longest) {
    std::string out(in.below(longest + 1), '\0');
    for (char & letter : out) {
        letter = "abc\xff"[in.below(4)];
    }
    return out;
}

bool begins(const std::string & text, const std::string & beginning) {
    return text.compare(0, beginning.size(), beginning) == 0;
}

// What the graph should be: the beginnings of texts that some tokens spell and others go on from, and the lengths of
// the ways there.
class Expected {
   public:
    struct Node {
        std::uint32_t leaf = kNone;
        std::uint32_t shortest = 0;
        std::uint32_t longest = 0;
        std::map<Token, std::string> next;
    };

    // A leaf is an index into distinct.
    Expected(const std::vector<std::string> & pieces, const std::vector<std::string> & distinct)
        : pieces_(pieces), texts_(distinct) {
        reach("", 0);
        for (const auto & [path, node] : reached_) {
            if (leads_to_text(path)) {
                nodes_[path] = node;
            }
        }
        for (auto & [path, node] : nodes_) {
            for (auto next = node.next.begin(); next != node.next.end();) {
                next = nodes_.count(next->second) > 0 ? std::next(next) : node.next.erase(next);
            }
            n_edges_ += node.next.size();
        }
    }

    const std::map<std::string, Node> & nodes() const { return nodes_; }
    std::size_t n_edges() const { return n_edges_; }
    // Those that lead nowhere counted.
    std::size_t n_edges_reached() const { return n_edges_reached_; }
    bool all_can_be_spelled() const {
        return std::all_of(texts_.begin(), texts_.end(), [&](const auto & text) { return reached_.count(text) > 0; });
    }

   private:
    void reach(const std::string & path, std::uint32_t n_tokens) {
        const auto [at, is_new] = reached_.try_emplace(path);
        Node & node = at->second;
        const bool is_shorter = is_new || n_tokens < node.shortest;
        const bool is_longer = n_tokens > node.longest;
        node.shortest = is_shorter ? n_tokens : node.shortest;
        node.longest = std::max(node.longest, n_tokens);
        if (is_new) {
            const auto text = std::find(texts_.begin(), texts_.end(), path);
            node.leaf = text == texts_.end() ? kNone : static_cast<std::uint32_t>(text - texts_.begin());
            for (std::size_t token = 0; token < pieces_.size(); ++token) {
                const std::string longer = path + pieces_[token];
                if (!pieces_[token].empty() && std::any_of(texts_.begin(), texts_.end(),
                                                           [&](const auto & text) { return begins(text, longer); })) {
                    node.next[static_cast<Token>(token)] = longer;
                    ++n_edges_reached_;
                }
            }
        }
        if (is_shorter || is_longer) {
            for (const auto & [token, longer] : node.next) {
                reach(longer, n_tokens + 1);
            }
        }
    }

    bool leads_to_text(const std::string & path) const {
        const Node & node = reached_.at(path);
        return node.leaf != kNone || std::any_of(node.next.begin(), node.next.end(),
                                                 [&](const auto & next) { return leads_to_text(next.second); });
    }

    const std::vector<std::string> & pieces_;
    const std::vector<std::string> & texts_;
    std::map<std::string, Node> reached_;
    std::map<std::string, Node> nodes_;
    std::size_t n_edges_ = 0;
    std::size_t n_edges_reached_ = 0;
};

void check(const Trie & graph,
           const Expected & expected,
           const std::vector<std::string> & pieces,
           const std::vector<std::string> & texts) {
    require(!graph.is_tree(), "texts make a graph");
    require(graph.n_leaves() == texts.size() && graph.n_nodes() == expected.nodes().size(), "counts");
    std::map<std::string, NodeId> ids{{"", kRoot}};
    std::uint64_t n_tokens = 0;
    std::uint32_t longest = 0;
    Token max_token = -1;
    // Beginnings come before what they begin.
    for (const auto & [path, node] : expected.nodes()) {
        require(ids.count(path) > 0, "every node has an edge to it");
        const NodeId id = ids[path];
        const TokenSpan children = graph.children(id);
        require(children.size == node.next.size() &&
                    std::equal(children.begin(), children.end(), node.next.begin(),
                               [](Token token, const auto & next) { return token == next.first; }),
                "the tokens that lead on, ascending");
        for (const auto & [token, longer] : node.next) {
            const NodeId target = graph.child(id, token);
            require(target > id && target < graph.n_nodes(), "edges lead forward");
            require(ids.try_emplace(longer, target).first->second == target, "one node for each beginning of a text");
            max_token = std::max(max_token, token);
        }
        require(graph.leaf(id) == node.leaf, "leaves end where their texts do");
        longest = std::max(longest, node.longest);
        if (node.leaf != kNone) {
            std::string spelled;
            const std::vector<Token> sequence = graph.sequence(node.leaf);
            for (const Token token : sequence) {
                spelled += pieces[static_cast<std::size_t>(token)];
            }
            require(spelled == path && graph.text(node.leaf) == path, "a leaf spells its text");
            require(sequence.size() == node.shortest, "in as few tokens as there can be");
            require(graph.leaf_node(node.leaf) == id, "the node of a leaf");
            n_tokens += node.shortest;
        }
    }
    std::set<NodeId> distinct;
    for (const auto & [path, id] : ids) {
        distinct.insert(id);
    }
    require(distinct.size() == ids.size(), "different beginnings are different nodes");
    require(graph.n_tokens() == n_tokens && graph.max_length() == longest && graph.max_token() == max_token, "lengths");
}

}  // namespace

void run(Input & in) {
    std::vector<std::string> pieces(1 + in.below(10));
    for (std::string & piece : pieces) {
        piece = read_string(in, 3);
    }
    LeafList leaves;
    std::vector<std::string> texts;  // in the order of their first appearance
    for (std::uint32_t n = 1 + in.below(5); n > 0; --n) {
        const std::string text = read_string(in, kLongest);
        for (const char byte : text) {
            leaves.tokens.push_back(static_cast<unsigned char>(byte));
        }
        leaves.end_leaf();
        if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) {
            texts.push_back(text);
        }
    }
    const bool is_limited = in.one_in(4);
    const std::size_t max_edges = is_limited ? in.below(40) : kMaxGraphEdges;
    const bool is_of_other = in.one_in(32);
    leaves.vocab = is_of_other ? "sha256:other" : in.below(2) == 0 ? "" : "sha256:this";

    std::shared_ptr<const Lexicon> lexicon;
    try {
        lexicon = std::make_shared<const Lexicon>(pieces, "sha256:this");
    } catch (const Error & error) {
        require(error.status() == Status::vocab, "status of a vocabulary that spells nothing");
        require(std::all_of(pieces.begin(), pieces.end(), [](const auto & piece) { return piece.empty(); }),
                "a vocabulary that spells something is taken");
        return;
    }
    const Expected expected(pieces, texts);
    std::shared_ptr<const Trie> graph;
    try {
        graph = Trie::build(leaves, *lexicon, max_edges);
    } catch (const Error & error) {
        switch (error.status()) {
            case Status::payload: require(texts.empty(), "a set of texts is taken"); return;
            case Status::limit: require(expected.n_edges_reached() > max_edges, "a graph within the limit is"); return;
            default:
                require(error.status() == Status::vocab && (is_of_other || !expected.all_can_be_spelled()),
                        "texts that can be spelled are taken");
                return;
        }
    }
    require(!is_of_other && !texts.empty() && expected.all_can_be_spelled(),
            "texts that cannot be spelled are refused");
    require(expected.n_edges() <= max_edges, "a graph beyond the limit is refused");
    require(graph->vocab() == "sha256:this", "a graph belongs to its vocabulary");
    check(*graph, expected, pieces, texts);
}

}  // namespace token_trie::fuzz
