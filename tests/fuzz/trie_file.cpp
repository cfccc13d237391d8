#include "trie/trie_file.h"

#include "fuzz.h"
#include "trie/compact_tree.h"
#include "trie/tensors.h"

#include <algorithm>
#include <cstring>

// Files of small sets with bytes changed, and sealed again so that the header's checksum holds: they are refused, or
// every call on what is opened stays within them and comes to an end.
namespace token_trie::fuzz {
namespace {

constexpr std::size_t kMostVisits = 4096;

std::vector<std::uint64_t> image_of(Input & in) {
    LeafList leaves;
    const bool is_named = in.one_in(2);
    for (std::uint32_t n = 1 + in.below(24); n > 0; --n) {
        for (std::uint32_t k = 1 + in.below(6); k > 0; --k) {
            leaves.tokens.push_back(static_cast<Token>(in.below(5)));
        }
        leaves.end_leaf();
        if (is_named) {
            leaves.names.emplace_back(n % 7, 'a');
        }
    }
    const TrieImage image(Trie::build(std::move(leaves), Layout::compact));
    std::string bytes;
    for (const std::string_view piece : image.pieces()) {
        bytes.append(piece);
    }
    std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
}

void use(const Trie & trie) {
    std::vector<NodeId> open{kRoot};
    std::size_t n = 0;
    for (; !open.empty() && n < kMostVisits; ++n) {
        const NodeId node = open.back();
        open.pop_back();
        const TokenSpan children = trie.children(node);
        for (std::uint32_t i = 0; i < children.size; ++i) {
            const Token token = children.data[i];
            require(token >= 0 && token <= trie.max_token(), "children are tokens");
            const NodeId child = trie.child_at(node, i);
            require(child > node && child < trie.n_nodes(), "children come after their parents");
            require(trie.token(child) <= trie.max_token(), "nodes have tokens");
            trie.child(node, token);
            trie.parent(child);
            open.push_back(child);
        }
        const LeafId leaf = trie.leaf(node);
        require(leaf == kNoLeaf || leaf < trie.n_leaves(), "leaves are numbered");
    }
    for (LeafId leaf = 0; leaf < std::min(trie.n_leaves(), 64U); ++leaf) {
        require(trie.name(leaf).size() <= trie.total_bytes(), "names are within");
        require(trie.leaf_node(leaf) < trie.n_nodes(), "leaves have nodes");
        trie.sequence(leaf);
    }
    if (const auto * const tree = dynamic_cast<const CompactTree *>(&trie)) {
        for (NodeId node = 0; node < std::min(tree->n_inner(), 64U); ++node) {
            const CompactTree::Range range = tree->members(node);
            require(range.begin <= range.end && range.end <= trie.n_leaves(), "ranges are within");
        }
    }
    require(trie.greatest_below(std::vector<double>(trie.n_leaves())).size() == trie.n_inner(),
            "inner nodes have values");
}

// Uses views of it, too.
void use_views(const std::shared_ptr<const Trie> & trie) {
    try {
        const Tensors tensors = to_tensors(trie);
        require(tensors.tails.size() <= trie->n_nodes(), "tails are as many as nodes");
    } catch (const Error & error) {
        require(error.status() == Status::payload, "damage is told as such");
    }
    std::vector<std::uint8_t> keep(trie->n_leaves(), 1);
    keep[0] = 0;
    try {
        use(*Trie::filtered(trie, keep.data()));
    } catch (const Error & error) {
        require(error.status() == Status::argument, "a damaged set may have only the member that is taken out");
    }
}

}  // namespace

void run(Input & in) {
    const auto words = std::make_shared<std::vector<std::uint64_t>>(image_of(in));
    std::size_t n = words->size() * sizeof(std::uint64_t);
    char * bytes = reinterpret_cast<char *>(words->data());
    const bool is_changed = !in.empty();
    while (!in.empty()) {
        const std::size_t at = (std::size_t{in.byte()} << 8U | in.byte()) % n;
        bytes[at] = static_cast<char>(in.byte());
    }
    if (is_changed && in.one_in(8)) {
        n = n / 2;
    }
    seal_trie_image(bytes, n);
    std::shared_ptr<const Trie> trie;
    try {
        trie = open_trie_image({bytes, n}, words, "it");
    } catch (const Error & error) {
        require(is_changed && error.status() == Status::payload, "what was written is opened");
        return;
    }
    use(*trie);
    use_views(trie);
}

}  // namespace token_trie::fuzz
