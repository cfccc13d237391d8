#include "trie/compact_tree.h"

#include <limits>
#include <numeric>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

void refuse_if(bool is_broken, const char * what) { throw_if(is_broken, Status::payload, "not a sound trie: ", what); }

// One for the whole process, which grows; holders of an older one keep it.
std::shared_ptr<const std::vector<Token>> every_token(std::size_t n) {
    static std::mutex mutex;
    static std::shared_ptr<const std::vector<Token>> largest;
    const std::lock_guard lock(mutex);
    if (largest == nullptr || largest->size() < n) {
        auto made = std::make_shared<std::vector<Token>>(n);
        std::iota(made->begin(), made->end(), 0);
        largest = std::move(made);
    }
    return largest;
}

}  // namespace

CompactTree::CompactTree(const Shape & shape,
                         const Sections & sections,
                         std::shared_ptr<const void> owner,
                         bool trusted,
                         std::string vocab,
                         std::vector<Alias> aliases)
    : Trie({static_cast<std::uint32_t>(shape.n_inner + shape.n_tail_nodes), static_cast<LeafId>(shape.n_members),
            static_cast<LeafId>(shape.n_members), shape.n_tokens, shape.max_length, shape.max_token, std::move(vocab),
            std::move(aliases)}),
      shape_(shape),
      sections_(sections),
      owner_(std::move(owner)),
      tokens_(reinterpret_cast<const Token *>(sections[edge_tokens].data)),
      names_(reinterpret_cast<const char *>(sections[names].data)) {
    const std::array<std::uint64_t, n_sections> words = shape.words();
    for (std::uint32_t i = 0; i < n_sections; ++i) {
        refuse_if(sections[i].size != words[i], "a section of another size than its numbers");
    }
    const auto ascending = [&](Section low, std::uint64_t n, std::uint64_t most, const Bits & high) {
        const std::uint32_t width = Ascending::low_width(n, most);
        return Ascending(PackedNumbers(sections[low], n, width == 0 ? 1 : width), high, width);
    };
    inner_ = Bits(sections[inner], shape.n_edges, shape.n_inner - 1, sections[inner_hints]);
    last_ = Bits(sections[last], shape.n_edges, shape.n_inner, sections[last_hints]);
    ends_ = Bits(sections[ends], shape.n_inner, shape.n_ends);
    tail_ends_ = Bits(sections[tail_ends], shape.n_tail_nodes, shape.n_tails(), sections[tail_hints]);
    members_ = ascending(member_low, shape.n_edges, shape.n_members * (std::uint64_t{shape.max_length} + 1),
                         Bits(sections[member_high], shape.n_member_high, shape.n_edges, sections[member_hints]));
    tail_tokens_ = PackedNumbers(sections[tail_tokens], shape.n_tail_nodes - shape.n_tails(),
                                 width_of(static_cast<std::uint64_t>(shape.max_token)));
    order_ = PackedNumbers(sections[order], shape.n_members, width_of(shape.n_members - 1));
    if (has_names()) {
        names_at_ = ascending(name_low, shape.n_members + 1, shape.n_name_bytes,
                              Bits(sections[name_high], shape.n_name_high, shape.n_members + 1));
        refuse_if(names_[shape.n_name_bytes - 1] != '\0', "the names do not end");
    }
    if (shape.has_rows != 0) {
        rows_ = ascending(row_low, shape.n_members, shape.most_row,
                          Bits(sections[row_high], shape.n_row_high, shape.n_members));
    }
    if (!trusted) {
        check_shape();
        checked_ = std::vector<std::atomic<bool>>(shape.n_edges / kChecked + 1);
    }
    every_token_ = every_token(static_cast<std::size_t>(shape.max_token) + 1);
}

std::size_t CompactTree::structure_bytes() const noexcept {
    std::size_t bytes =
        sizeof(CompactTree) + member_of_.size() * sizeof(std::uint32_t) + to_ends_.size() * sizeof(std::uint16_t);
    for (const Words & words : sections_) {
        bytes += words.size * sizeof(std::uint64_t);
    }
    return bytes - shape_.n_name_bytes;
}

std::uint64_t CompactTree::edges_begin(NodeId node) const noexcept {
    return node == kRoot ? 0 : last_.select(node - std::uint64_t{1}) + 1;
}

CompactTree::Edges CompactTree::edges_of(NodeId node) const noexcept {
    const std::uint64_t begin = edges_begin(node);
    return {begin, std::min(last_.next(begin) + 1, shape_.n_edges)};
}

bool CompactTree::check(std::uint64_t block) const noexcept {
    const Token * begin = tokens_ + block * kChecked;
    const Token * end = tokens_ + std::min(shape_.n_edges, (block + 1) * kChecked);
    const bool good = std::all_of(begin, end, [this](Token t) { return t >= 0 && t <= shape_.max_token; });
    checked_[block].store(good, std::memory_order_relaxed);
    return good;
}

bool CompactTree::are_checked(Edges edges) const noexcept {
    for (std::uint64_t block = edges.begin / kChecked; block <= (edges.end - 1) / kChecked; ++block) {
        if (!checked_[block].load(std::memory_order_relaxed) && !check(block)) {
            return false;
        }
    }
    return true;
}

Token CompactTree::next_in_tail(std::uint64_t at) const noexcept {
    if (tail_ends_[at]) {
        return -1;
    }
    const std::uint64_t i = at - std::min(at, tail_ends_.rank(at));
    const std::uint32_t token = i < tail_tokens_.size() ? tail_tokens_[i] : UINT32_MAX;
    // A tail that does not end, of a damaged file, does at the last node.
    return token <= static_cast<std::uint32_t>(shape_.max_token) && at + 1 < shape_.n_tail_nodes
               ? static_cast<Token>(token)
               : -1;
}

TokenSpan CompactTree::children(NodeId node) const noexcept {
    if (is_inner(node)) {
        const Edges edges = edges_of(node);
        inner_.prefetch(edges.begin);  // for where they lead
        if (!checked_.empty() && !are_checked(edges)) {
            return {};
        }
        return {tokens_ + edges.begin, static_cast<std::uint32_t>(edges.end - edges.begin)};
    }
    const Token token = next_in_tail(node - shape_.n_inner);
    return token < 0 ? TokenSpan{} : TokenSpan{every_token_->data() + token, 1};
}

NodeId CompactTree::child(NodeId node, Token token) const noexcept {
    if (!is_inner(node)) {
        return token >= 0 && next_in_tail(node - shape_.n_inner) == token ? node + 1 : kNoNode;
    }
    const TokenSpan span = children(node);
    const std::uint32_t at = span.find(token);
    return at == span.size ? kNoNode : target(static_cast<EdgeId>(span.data - tokens_) + at + 1);
}

std::uint64_t CompactTree::tail_begin(std::uint64_t tail) const noexcept {
    const std::uint64_t at = tail == 0 ? 0 : tail_ends_.select(tail - 1) + 1;
    return std::min(at, shape_.n_tail_nodes - 1);
}

NodeId CompactTree::target(EdgeId edge) const noexcept {
    const std::uint64_t n_inner_before = inner_.rank(edge - std::uint64_t{1});
    return inner_[edge - std::uint64_t{1}]
               ? static_cast<NodeId>(n_inner_before + 1)
               : static_cast<NodeId>(shape_.n_inner + tail_begin(edge - 1 - n_inner_before));
}

std::uint64_t CompactTree::edge_of_tail_at(std::uint64_t at) const noexcept {
    return std::min(inner_.select_zero(tail_ends_.rank(at)), shape_.n_edges - 1);
}

EdgeId CompactTree::edge_to(NodeId node) const noexcept {
    return static_cast<EdgeId>(
        1 + (is_inner(node) ? inner_.select(node - std::uint64_t{1}) : edge_of_tail_at(node - shape_.n_inner)));
}

Token CompactTree::token_of(EdgeId edge) const noexcept { return std::clamp(tokens_[edge - 1], 0, shape_.max_token); }

NodeId CompactTree::parent(NodeId node) const noexcept {
    return is_inner(node) || begins_tail(node - shape_.n_inner)
               ? static_cast<NodeId>(last_.rank(edge_to(node) - std::uint64_t{1}))
               : node - 1;
}

Token CompactTree::token(NodeId node) const noexcept {
    return is_inner(node) || begins_tail(node - shape_.n_inner) ? token_of(edge_to(node))
                                                                : std::max(next_in_tail(node - shape_.n_inner - 1), 0);
}

std::uint64_t CompactTree::first_member(EdgeId edge) const noexcept {
    return members_[edge - std::uint64_t{1}] % shape_.n_members;
}

CompactTree::Range CompactTree::members(NodeId node) const noexcept {
    Range range{0, shape_.n_members};
    if (node != kRoot) {
        range.begin = first_member(edge_to(node));
    }
    for (; node != kRoot; node = parent(node)) {
        const EdgeId edge = edge_to(node);
        if (!last_[edge - std::uint64_t{1}]) {
            range.end = first_member(edge + 1);
            break;
        }
    }
    range.end = std::max(range.begin, range.end);
    return range;
}

std::uint64_t CompactTree::member_at(NodeId node) const noexcept {
    if (is_inner(node)) {
        return !ends_[node] ? shape_.n_members : node == kRoot ? 0 : first_member(edge_to(node));
    }
    const std::uint64_t at = node - shape_.n_inner;
    return !tail_ends_[at] ? shape_.n_members : first_member(static_cast<EdgeId>(edge_of_tail_at(at) + 1));
}

LeafId CompactTree::leaf(NodeId node) const noexcept {
    const std::uint64_t member = member_at(node);
    return member == shape_.n_members ? kNoLeaf : leaf_of(member);
}

std::uint64_t CompactTree::member_of(LeafId leaf) const {
    if (shape_.is_ordered != 0) {
        return leaf;
    }
    std::call_once(has_member_of_, [this] {
        member_of_.resize(shape_.n_members);
        for (std::uint64_t member = 0; member < shape_.n_members; ++member) {
            member_of_[leaf_of(member)] = static_cast<std::uint32_t>(member);
        }
    });
    return member_of_[leaf];
}

EdgeId CompactTree::edge_of_member(EdgeId begin, EdgeId end, std::uint64_t member) const noexcept {
    while (end - begin > 1) {
        const EdgeId middle = begin + (end - begin) / 2;
        (first_member(middle) <= member ? begin : end) = middle;
    }
    return begin;
}

// Goes to the inner node at which a member ends, or to the first node of its tail; visits the edges on the way.
template <typename Visit>
NodeId CompactTree::descend_to(std::uint64_t member, const Visit & visit) const {
    NodeId node = kRoot;
    std::uint64_t first = 0;
    while (is_inner(node) && (!ends_[node] || first != member)) {
        const Edges edges = edges_of(node);
        const EdgeId edge =
            edge_of_member(static_cast<EdgeId>(edges.begin + 1), static_cast<EdgeId>(edges.end + 1), member);
        visit(edge);
        first = first_member(edge);
        node = target(edge);
    }
    return node;
}

NodeId CompactTree::leaf_node(LeafId leaf) const {
    const NodeId node = descend_to(member_of(leaf), [](EdgeId) {});
    return is_inner(node)
               ? node
               : static_cast<NodeId>(std::min(tail_ends_.next(node - shape_.n_inner), shape_.n_tail_nodes - 1) +
                                     shape_.n_inner);
}

std::vector<Token> CompactTree::sequence(LeafId leaf) const {
    std::vector<Token> out;
    const NodeId node = descend_to(member_of(leaf), [&](EdgeId edge) { out.push_back(token_of(edge)); });
    std::size_t n = 0;
    for (std::uint64_t at = node - shape_.n_inner; !is_inner(node) && n < shape_.max_length; ++at, ++n) {
        const Token token = next_in_tail(at);
        if (token < 0) {
            break;
        }
        out.push_back(token);
    }
    return out;
}

// Gives each inner node a value from its edges, which join(value, next) folds from none on; at_tail(edge) is the value
// of an edge to a tail, at_node(node, value) the node's own. Goes backwards, as edges lead forward.
template <typename Value, typename AtTail, typename Join, typename AtNode>
std::vector<Value> CompactTree::from_below(Value none,
                                           const AtTail & at_tail,
                                           const Join & join,
                                           const AtNode & at_node) const {
    std::vector<Value> out(shape_.n_inner);
    std::uint64_t node = shape_.n_inner - 1;
    std::uint64_t below = node;
    Value value = none;
    for (std::uint64_t edge = shape_.n_edges; edge-- > 0;) {
        value = join(value, inner_[edge] ? out[below--] : at_tail(static_cast<EdgeId>(edge + 1)));
        if (edge == 0 || last_[edge - 1]) {
            out[node] = at_node(static_cast<NodeId>(node), value);
            --node;
            value = none;
        }
    }
    return out;
}

std::vector<std::uint16_t> CompactTree::count_to_ends() const {
    constexpr std::uint64_t most = std::numeric_limits<std::uint16_t>::max() - 1;
    std::vector<std::uint16_t> of_tails;  // from their first nodes
    of_tails.reserve(shape_.n_tails());
    for (std::uint64_t begin = 0; of_tails.size() < shape_.n_tails();) {
        const std::uint64_t end = std::min(tail_ends_.next(begin), shape_.n_tail_nodes - 1);
        of_tails.push_back(static_cast<std::uint16_t>(std::min(end - std::min(begin, end), most)));
        begin = end + 1;
    }
    auto tail = of_tails.end();
    return from_below(
        static_cast<std::uint16_t>(most), [&](EdgeId) { return *--tail; },
        [](std::uint16_t a, std::uint16_t b) { return std::min(a, b); },
        [&](NodeId node, std::uint16_t least) {
            return static_cast<std::uint16_t>(ends_[node] ? 0 : std::min(least + std::uint64_t{1}, most));
        });
}

std::vector<double> CompactTree::greatest_below(const std::vector<double> & of_leaves) const {
    const auto greater = [](double a, double b) { return std::max(a, b); };
    return from_below(
        -std::numeric_limits<double>::infinity(), [&](EdgeId edge) { return of_leaves[leaf_of(first_member(edge))]; },
        greater,
        [&](NodeId node, double value) { return ends_[node] ? greater(value, of_leaves[leaf(node)]) : value; });
}

std::uint16_t CompactTree::tokens_to_end(NodeId node) const {
    if (!is_inner(node)) {
        const std::uint64_t at = node - shape_.n_inner;
        return static_cast<std::uint16_t>(
            std::min<std::uint64_t>(tail_ends_.next(at) - at, std::numeric_limits<std::uint16_t>::max()));
    }
    std::call_once(has_to_ends_, [this] { to_ends_ = count_to_ends(); });
    return to_ends_[node];
}

const char * CompactTree::stored_name(LeafId leaf) const noexcept {
    return has_names() ? names_ + std::min(names_at_[leaf], shape_.n_name_bytes - 1) : nullptr;
}

// Checks what keeps every call within the sections.
std::array<std::uint64_t, CompactTree::n_sections> CompactTree::Shape::words() const {
    constexpr std::uint64_t most = kNoNode;
    for (const std::uint64_t n : {n_members, n_inner, n_edges, n_tail_nodes, n_ends}) {
        refuse_if(n >= most, "more nodes or members than there are numbers for");
    }
    refuse_if(n_members == 0 || n_inner == 0 || n_inner > n_edges || n_ends > n_inner || n_tails() > n_tail_nodes ||
                  n_inner + n_tail_nodes >= most || n_edges + n_tail_nodes >= most || n_members != n_tails() + n_ends,
              "the numbers of members, nodes and edges contradict each other");
    refuse_if(n_tokens < n_members || n_tokens > n_members * max_length,
              "the numbers of tokens and members contradict each other");
    refuse_if(max_token < 0 || max_token >= kMaxCompactToken || max_length == 0 || max_length > kMaxLeafTokens ||
                  most_row >= most,
              "max_token, max_length or the last row is out of range");
    constexpr std::uint64_t most_bits = std::uint64_t{1} << 40U;
    refuse_if(
        n_member_high > most_bits || n_name_high > most_bits || n_row_high > most_bits || n_name_bytes > most_bits,
        "a section of more than 2^40 bits");
    const auto low = [](std::uint64_t n, std::uint64_t most_value) {
        const std::uint32_t width = Ascending::low_width(n, most_value);
        return width == 0 ? 0 : PackedNumbers::n_words(n, width);
    };
    std::array<std::uint64_t, n_sections> out{};
    out[edge_tokens] = (n_edges + 1) / 2;
    out[inner] = out[last] = Bits::n_words(n_edges);
    out[member_low] = low(n_edges, n_members * (std::uint64_t{max_length} + 1));
    out[member_high] = Bits::n_words(n_member_high);
    out[ends] = Bits::n_words(n_inner);
    out[tail_ends] = Bits::n_words(n_tail_nodes);
    out[tail_tokens] =
        PackedNumbers::n_words(n_tail_nodes - n_tails(), width_of(static_cast<std::uint64_t>(max_token)));
    out[order] = is_ordered != 0 ? 0 : PackedNumbers::n_words(n_members, width_of(n_members - 1));
    out[inner_hints] = Bits::n_hint_words(n_inner - 1);
    out[last_hints] = Bits::n_hint_words(n_inner);
    out[member_hints] = Bits::n_hint_words(n_edges);
    out[tail_hints] = Bits::n_hint_words(n_tails());
    if (n_name_bytes > 0) {
        out[name_low] = low(n_members + 1, n_name_bytes);
        out[name_high] = Bits::n_words(n_name_high);
        out[names] = n_name_bytes / 8 + 1;
    }
    if (has_rows != 0) {
        out[row_low] = low(n_members, most_row);
        out[row_high] = Bits::n_words(n_row_high);
    }
    return out;
}

// Checks that the inner nodes are a tree, numbered level by level: then every edge leads forward and no two to the same
// inner node, whatever the other sections hold.
void CompactTree::check_shape() const {
    refuse_if(!inner_.is_consistent() || !last_.is_consistent() || !last_[shape_.n_edges - 1],
              "the edges are not those of its nodes");
    // The kth inner node has its edges after the kth last one, and an earlier edge leads to it: among the first edges,
    // however many, at least as many lead to inner nodes as are the last of a node.
    std::uint64_t open = 0;
    for (std::uint64_t begin = 0; begin < shape_.n_edges; begin += 64) {
        std::uint64_t leads_on = inner_.word(begin / 64);
        std::uint64_t closes = last_.word(begin / 64);
        if (shape_.n_edges - begin <= 64) {
            closes &= ~(std::uint64_t{1} << (shape_.n_edges - 1 - begin));  // nothing is after the last node
        }
        const auto n_closed = static_cast<std::uint64_t>(__builtin_popcountll(closes));
        if (open >= n_closed) {
            open += static_cast<std::uint64_t>(__builtin_popcountll(leads_on)) - n_closed;
            continue;
        }
        for (; (leads_on | closes) != 0; leads_on >>= 1U, closes >>= 1U) {
            open += leads_on & 1U;
            refuse_if((closes & 1U) != 0 && open-- == 0, "a node that is not led to");
        }
    }
}

CompactBuilder::CompactBuilder(Token max_token) : width_(width_of(static_cast<std::uint64_t>(max_token))) {
    shape_.max_token = max_token;
    piece(0).ends.push(false);
}

void CompactBuilder::add(const Token * tokens, std::size_t n) {
    std::size_t shared = 0;
    if (shape_.n_members > 0) {
        const Token * end = tokens + n;
        shared = static_cast<std::size_t>(std::mismatch(tokens, end, member_.begin(), member_.end()).first - tokens);
        put(shared);
    }
    member_.assign(tokens, tokens + n);
    shared_ = shared;
    ++shape_.n_members;
    shape_.n_tokens += n;
    shape_.max_length = std::max(shape_.max_length, static_cast<std::uint32_t>(n));
}

CompactBuilder::Piece & CompactBuilder::piece(std::size_t depth) {
    if (depth == levels_.size()) {
        levels_.emplace_back();
    }
    std::vector<Piece> & pieces = levels_[depth].pieces;
    if (pieces.empty() || pieces.back().tokens.size() == kPiece) {
        if (!pieces.empty()) {
            pieces.back().tail_ends.shrink_to_fit();
            pieces.back().tail_tokens.shrink_to_fit();
        }
        pieces.emplace_back(width_);
    }
    return pieces.back();
}

// Writes the newest member, but for the tokens that it shares with the one before. The tokens that it shares with the
// next one are inner nodes; one edge leads on from the last of these, to its tail.
void CompactBuilder::put(std::size_t shared_with_next) {
    const std::size_t n_edges = std::min(member_.size(), std::max(shared_, shared_with_next) + 1);
    for (std::size_t depth = shared_; depth < n_edges; ++depth) {
        const bool is_inner = depth < shared_with_next;
        if (is_inner) {
            piece(depth + 1).ends.push(depth + 1 == member_.size());
        }
        Piece & at = piece(depth);
        if (levels_[depth].is_open) {
            at.last.push(false);
        }
        levels_[depth].is_open = true;
        at.inner.push(is_inner);
        at.tokens.push_back(static_cast<std::uint32_t>(member_[depth]));
        at.members.push_back(static_cast<std::uint32_t>(shape_.n_members - 1));
    }
    if (shared_with_next < member_.size()) {
        Piece & at = levels_[n_edges - 1].pieces.back();
        for (std::size_t i = n_edges; i < member_.size(); ++i) {
            at.tail_ends.push(false);
            at.tail_tokens.push(static_cast<std::uint32_t>(member_[i]));
        }
        at.tail_ends.push(true);
    }
    for (std::size_t depth = shared_with_next + 1; depth < n_edges; ++depth) {
        levels_[depth].pieces.back().last.push(true);
        levels_[depth].is_open = false;
    }
}

void CompactBuilder::join() {
    put(0);
    levels_[0].pieces.back().last.push(true);
    std::uint64_t n_tail_nodes = 0;
    for (const Level & level : levels_) {
        for (const Piece & piece : level.pieces) {
            shape_.n_edges += piece.tokens.size();
            n_tail_nodes += piece.tail_ends.size();
        }
    }
    BitsBuilder inner;
    BitsBuilder last;
    BitsBuilder ends;
    BitsBuilder tail_ends;
    PackedBuilder tail_tokens(width_);
    tail_ends.reserve(n_tail_nodes);
    tail_tokens.reserve(n_tail_nodes);
    AscendingBuilder members(shape_.n_edges, shape_.n_members * (std::uint64_t{shape_.max_length} + 1));
    Owned & owned = *owned_;
    std::vector<std::uint64_t> & tokens = owned[CompactTree::edge_tokens];
    tokens.reserve((shape_.n_edges + 1) / 2);
    std::uint64_t edge = 0;
    for (std::size_t depth = 0; depth < levels_.size(); ++depth) {
        for (Piece & kept : levels_[depth].pieces) {
            const Piece piece = std::move(kept);
            tokens.resize((edge + piece.tokens.size() + 1) / 2);
            for (std::size_t i = 0; i < piece.tokens.size(); ++i, ++edge) {
                tokens[edge / 2] |= std::uint64_t{piece.tokens[i]} << edge % 2 * 32;
                members.push(shape_.n_members * depth + piece.members[i]);
            }
            inner.append(piece.inner);
            last.append(piece.last);
            ends.append(piece.ends);
            tail_ends.append(piece.tail_ends);
            tail_tokens.append(piece.tail_tokens);
        }
    }
    levels_.clear();
    shape_.n_inner = ends.size();
    shape_.n_ends = ends.n_ones();
    shape_.n_tail_nodes = tail_ends.size();
    shape_.n_member_high = members.n_high();
    owned[CompactTree::inner_hints] = inner.hints();
    owned[CompactTree::last_hints] = last.hints();
    owned[CompactTree::tail_hints] = tail_ends.hints();
    owned[CompactTree::member_hints] = members.hints();
    owned[CompactTree::inner] = inner.take();
    owned[CompactTree::last] = last.take();
    owned[CompactTree::ends] = ends.take();
    owned[CompactTree::tail_ends] = tail_ends.take();
    owned[CompactTree::tail_tokens] = tail_tokens.take();
    put_ascending(members, CompactTree::member_low, CompactTree::member_high);
}

void CompactBuilder::put_ascending(AscendingBuilder & from, CompactTree::Section low, CompactTree::Section high) {
    (*owned_)[high] = from.take_high();
    if (from.width() > 0) {
        (*owned_)[low] = from.take_low();
    }
}

void CompactBuilder::set_order(const std::vector<std::uint32_t> & leaves) {
    std::uint64_t member = 0;
    const auto is_its_own = [&](std::uint32_t leaf) { return leaf == member++; };
    if (std::all_of(leaves.begin(), leaves.end(), is_its_own)) {
        return;
    }
    shape_.is_ordered = 0;
    PackedBuilder order(width_of(leaves.size() - 1));
    std::for_each(leaves.begin(), leaves.end(), [&](std::uint32_t leaf) { order.push(leaf); });
    (*owned_)[CompactTree::order] = order.take();
}

void CompactBuilder::set_names(const std::string & names, const std::vector<std::uint64_t> & offsets) {
    shape_.n_name_bytes = names.size();
    AscendingBuilder at(offsets.size(), names.size());
    std::for_each(offsets.begin(), offsets.end(), [&](std::uint64_t offset) { at.push(offset); });
    shape_.n_name_high = at.n_high();
    put_ascending(at, CompactTree::name_low, CompactTree::name_high);
    std::vector<std::uint64_t> & words = (*owned_)[CompactTree::names];
    words.resize(names.size() / 8 + 1);
    std::copy(names.begin(), names.end(), reinterpret_cast<char *>(words.data()));
}

void CompactBuilder::set_rows(const std::vector<std::uint32_t> & rows) {
    shape_.has_rows = 1;
    shape_.most_row = rows.back();
    AscendingBuilder at(rows.size(), rows.back());
    std::for_each(rows.begin(), rows.end(), [&](std::uint32_t row) { at.push(row); });
    shape_.n_row_high = at.n_high();
    put_ascending(at, CompactTree::row_low, CompactTree::row_high);
}

std::shared_ptr<const CompactTree> compacted(const std::shared_ptr<const Trie> & trie) {
    return std::dynamic_pointer_cast<const CompactTree>(Trie::laid_out(trie, Layout::compact));
}

std::shared_ptr<const CompactTree> CompactBuilder::take(std::string vocab, std::vector<Alias> aliases) {
    join();
    CompactTree::Sections sections;
    for (std::uint32_t i = 0; i < CompactTree::n_sections; ++i) {
        (*owned_)[i].shrink_to_fit();
        sections[i] = {(*owned_)[i].data(), (*owned_)[i].size()};
    }
    return std::make_shared<const CompactTree>(shape_, sections, owned_, /* trusted = */ true, std::move(vocab),
                                               std::move(aliases));
}

}  // namespace token_trie
