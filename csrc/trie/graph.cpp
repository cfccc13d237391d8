#include "trie/lexicon.h"

#include <algorithm>

namespace token_trie {

// Turns the trie of the texts' bytes into the graph. Nodes keep their order, in which every edge leads forward; those
// that no spelling passes through are left out.
class Trie::GraphBuilder {
   public:
    GraphBuilder(std::shared_ptr<Trie> bytes, const Lexicon & lexicon, std::size_t max_edges)
        : trie_(std::move(bytes)), lexicon_(lexicon), max_edges_(max_edges), n_(trie_->n_nodes_) {}

    std::shared_ptr<const Trie> run() {
        find_edges();
        keep_what_leads_to_a_leaf();
        measure();
        trie_->vocab_ = lexicon_.vocab();
        trie_->lexicon_ = lexicon_.identity();
        return trie_;
    }

   private:
    static constexpr std::uint64_t kTokenShift = 32;

    void find_edges() {
        firsts_.reserve(n_ + 1);
        kept_.assign(n_, 0);
        kept_[kRoot] = 1;
        for (NodeId node = 0; node < n_; ++node) {
            firsts_.push_back(tokens_.size());
            if (kept_[node] != 0) {
                find_edges_of(node);
            }
        }
        firsts_.push_back(tokens_.size());
    }

    // Descends in the texts and the vocabulary at the same time.
    void find_edges_of(NodeId node) {
        found_.clear();
        below_.assign(1, {node, kRoot});
        while (!below_.empty()) {
            const Place at = below_.back();
            below_.pop_back();
            const TokenSpan bytes = trie_->children(at.text);
            NodeId text = trie_->nodes_[at.text].first;
            for (const Token byte : bytes) {
                const NodeId piece = lexicon_.next(at.piece, byte);
                if (piece != kNoNode) {
                    for (const Token token : lexicon_.tokens(piece)) {
                        found_.push_back(static_cast<std::uint64_t>(token) << kTokenShift | text);
                        kept_[text] = 1;
                    }
                    below_.push_back({text, piece});
                }
                ++text;
            }
        }
        std::sort(found_.begin(), found_.end());
        for (const std::uint64_t edge : found_) {
            tokens_.push_back(static_cast<Token>(edge >> kTokenShift));
            targets_.push_back(static_cast<NodeId>(edge));
        }
        if (tokens_.size() > max_edges_) {
            throw Error(Status::limit, "the texts have too many spellings: a graph of more than " +
                                           std::to_string(max_edges_) + " edges");
        }
    }

    // Of the nodes reached, drops those that lead nowhere, as where no token spells a byte, and closes the gaps.
    void keep_what_leads_to_a_leaf() {
        for (LeafId leaf = 0; leaf < trie_->n_leaves(); ++leaf) {
            if (kept_[trie_->leaf_nodes_[leaf]] == 0) {
                throw Error(Status::vocab,
                            "leaf " + quote(trie_->name(leaf)) + ": cannot be spelled in this vocabulary");
            }
        }
        for (NodeId node = n_; node-- > 0;) {
            const auto begin = targets_.begin() + static_cast<std::ptrdiff_t>(firsts_[node]);
            const auto end = targets_.begin() + static_cast<std::ptrdiff_t>(firsts_[node + 1]);
            if (trie_->nodes_[node].leaf == kNoLeaf) {
                kept_[node] = std::any_of(begin, end, [this](NodeId target) { return kept_[target] != 0; }) ? 1 : 0;
            }
        }
        std::vector<NodeId> renumbered(n_);
        NodeId next = 0;
        for (NodeId node = 0; node < n_; ++node) {
            renumbered[node] = next;
            next += kept_[node];
        }
        std::vector<Node> nodes;
        nodes.reserve(next + std::size_t{1});
        std::uint32_t n_edges = 0;
        for (NodeId node = 0; node < n_; ++node) {
            if (kept_[node] == 0) {
                continue;
            }
            nodes.push_back({n_edges + 1, trie_->nodes_[node].leaf});
            for (std::size_t edge = firsts_[node]; edge < firsts_[node + 1]; ++edge) {
                if (kept_[targets_[edge]] != 0) {
                    tokens_[n_edges] = tokens_[edge];
                    targets_[n_edges++] = renumbered[targets_[edge]];
                }
            }
        }
        nodes.push_back({n_edges + 1, kNoLeaf});
        tokens_.resize(n_edges);
        targets_.resize(n_edges);
        for (NodeId & node : trie_->leaf_nodes_) {
            node = renumbered[node];
        }
        trie_->nodes_ = std::move(nodes);
        trie_->n_nodes_ = next;
        trie_->tokens_.assign(tokens_.begin(), tokens_.end());
        trie_->targets_.assign(targets_.begin(), targets_.end());
    }

    // Entries, and the lengths of the shortest and the longest spellings.
    void measure() {
        const NodeId n = trie_->n_nodes();
        std::vector<std::uint32_t> & entries = trie_->entries_;
        entries.assign(n, 0);
        std::vector<std::uint32_t> shortest(n, UINT32_MAX);
        std::vector<std::uint32_t> longest(n, 0);
        shortest[kRoot] = 0;
        for (NodeId node = 0; node < n; ++node) {
            for (std::uint32_t edge = trie_->nodes_[node].first; edge < trie_->nodes_[node + 1].first; ++edge) {
                const NodeId target = trie_->targets_[edge - 1];
                longest[target] = std::max(longest[target], longest[node] + 1);
                if (shortest[node] + 1 < shortest[target]) {
                    shortest[target] = shortest[node] + 1;
                    entries[target] = edge;
                }
            }
        }
        trie_->n_tokens_ = 0;
        for (const NodeId node : trie_->leaf_nodes_) {
            trie_->n_tokens_ += shortest[node];
        }
        trie_->max_length_ = *std::max_element(longest.begin(), longest.end());
        trie_->max_token_ = *std::max_element(trie_->tokens_.begin(), trie_->tokens_.end());
    }

    struct Place {
        NodeId text;
        NodeId piece;
    };

    std::shared_ptr<Trie> trie_;  // of bytes, until keep_what_leads_to_a_leaf
    const Lexicon & lexicon_;
    const std::size_t max_edges_;
    const NodeId n_;
    std::vector<unsigned char> kept_;
    std::vector<std::size_t> firsts_;  // n + 1
    std::vector<Token> tokens_;
    std::vector<NodeId> targets_;
    std::vector<Place> below_;
    std::vector<std::uint64_t> found_;  // edges of one node, token above target
};

std::shared_ptr<const Trie> Trie::build(LeafList texts, const Lexicon & lexicon, std::size_t max_edges) {
    if (!texts.vocab.empty() && texts.vocab != lexicon.vocab()) {
        throw Error(Status::vocab, "vocab: the set was made for another vocabulary (" + texts.vocab +
                                       ") than this model's (" + lexicon.vocab() + ")");
    }
    if (texts.tokens.size() > kMaxGraphBytes) {
        throw Error(Status::limit, "texts of more than 268435456 bytes together");
    }
    texts.texts = true;
    return GraphBuilder(std::const_pointer_cast<Trie>(build(std::move(texts), Layout::flat)), lexicon, max_edges).run();
}

}  // namespace token_trie
