#include "batch/job.h"

#include "stream/output_head.h"
#include "stream/tree_evaluator.h"

#include <algorithm>

namespace token_trie {
namespace {

std::uint64_t ns_between(std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point end) {
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(end - start).count());
}

}  // namespace

void PassRows::add(Token token, llama_pos position, std::vector<llama_seq_id> & of, bool is_wanted) {
    tokens.push_back(token);
    positions.push_back(position);
    n_ids.push_back(static_cast<std::int32_t>(of.size()));
    ids.push_back(of.data());
    wanted.push_back(is_wanted ? 1 : 0);
    n_wanted += is_wanted ? 1 : 0;
}

void PassRows::fill_up(llama_seq_id empty, std::size_t max_more) {
    constexpr std::size_t n_group = TreeEvaluator::kRowGroup;
    if (n_wanted <= n_group) {
        return;
    }
    for (std::size_t i = wanted.size(); i-- > 0 && n_wanted % n_group != 0 && n_wanted < max_wanted;) {
        n_wanted += wanted[i] == 0 ? 1 : 0;
        wanted[i] = 1;
    }
    const std::size_t n_left = n_wanted % n_group;
    if (n_left < 2 || n_group - n_left > std::min(max_more, n_wanted_left())) {
        return;
    }
    filler = {empty};
    for (llama_pos pos = 0; n_wanted % n_group != 0; ++pos) {
        add(tokens.back(), pos, filler, true);
    }
}

Job::Job(Ticket ticket,
         Question question,
         const llama_vocab * vocab,
         llama_memory_t memory,
         llama_seq_id id,
         std::optional<llama_seq_id> path_id,
         std::size_t n_shared,
         std::size_t n_paths)
    : ticket_(ticket),
      question_(std::move(question)),
      n_vocab_(static_cast<std::size_t>(llama_vocab_n_tokens(vocab))),
      ids_{id},
      n_prompt_(n_shared) {
    answer_.n_shared = n_shared;
    if (question_.is_walk()) {
        walk_ = std::make_unique<Walk>(vocab, question_);
        is_decided_ = walk_->is_over();
        wants_root_ = walk_->lag().empty();
        catch_up_with_walk();
        return;
    }
    const Cursor & cursor = *question_.cursor;
    tree_ = std::make_unique<Tree>(
        Tree{nullptr, nullptr, TreePaths(memory, cursor.trie(), id, static_cast<llama_pos>(prompt().size())), {}});
    if (path_id) {
        lend(*path_id);
    } else {
        tree_->paths.add_id(id);
    }
    if (question_.way == Question::Way::best) {
        tree_->search = begin_search(cursor, question_.search, n_vocab_, n_paths, /* rows_are_cheap = */ false);
    } else {
        tree_->scoring = begin_scoring(cursor, question_.search, n_vocab_);
    }
    ask();
    wants_root_ = !tree_->asked.empty() && tree_->asked.front() == kRoot;
    tree_->n_placed = wants_root_ ? 1 : 0;
}

bool Job::needs_wave() const noexcept {
    return tree_ && n_prompt_left() == 0 && !has_rows() && tree_->n_placed < tree_->asked.size();
}

std::size_t Job::n_ids_wanted() const noexcept {
    if (!needs_wave()) {
        return 0;
    }
    const std::size_t n =
        std::min<std::size_t>(tree_->asked.size() - tree_->n_placed, question_.cursor->trie().n_leaves());
    return n - std::min(n, tree_->paths.n_ids());
}

void Job::lend(llama_seq_id id) {
    lent_.push_back(id);
    tree_->paths.add_id(id);
}

void Job::place_wave(std::size_t max_nodes, std::size_t max_cells) {
    TreePaths::Wave wave = tree_->paths.next_wave(
        tree_->asked.data() + tree_->n_placed, std::min(tree_->asked.size() - tree_->n_placed, max_nodes), max_cells);
    tree_->n_placed += wave.n_asked;
    answer_.n_evaluated += wave.rows.size();
    n_cells_ = wave.n_cells;
    rows_ = std::move(wave.rows);
    n_rows_done_ = 0;
}

llama_seq_id Job::give_back() noexcept {
    const llama_seq_id id = tree_->paths.take_idle_id();
    if (id >= 0) {
        lent_.erase(std::find(lent_.begin(), lent_.end(), id));
    }
    return id;
}

void Job::plan(PassRows & rows, std::size_t max_prompt) {
    for (; n_planned_ < std::min(n_prompt_left(), max_prompt); ++n_planned_) {
        const std::size_t at = n_prompt_ + n_planned_;
        const bool is_wanted = wants_root_ && at + 1 == prompt().size();
        if (!rows.has_room(is_wanted)) {
            return;
        }
        if (is_wanted) {
            want(kRoot, rows);
        }
        rows.add(prompt()[at], static_cast<llama_pos>(at), ids_, is_wanted);
    }
    if (n_planned_ < n_prompt_left()) {
        return;
    }
    for (; has_rows(); ++n_rows_done_) {
        TreePaths::Row & row = rows_[n_rows_done_];
        if (!rows.has_room(row.visited)) {
            return;
        }
        if (row.visited) {
            want(row.node, rows);
        }
        rows.add(row.token, row.pos, row.ids, row.visited);
        is_in_pass_ = true;
    }
}

// Of the row that is added next.
void Job::want(NodeId node, PassRows & rows) {
    wanted_.push_back({node, static_cast<std::int32_t>(rows.tokens.size()), rows.n_wanted});
    rows.are_few = rows.are_few && walk_ && OutputHead::are_few(walk_->allowed(), n_vocab_);
}

void Job::end_pass() {
    if (n_planned_ > 0 && n_planned_ == n_prompt_left()) {
        prompt_ended_ = std::chrono::steady_clock::now();
    }
    n_prompt_ += std::exchange(n_planned_, 0);
    answer_.n_passes += std::exchange(is_in_pass_, false) ? 1 : 0;
}

void Job::see(NodeId node, const float * logits) {
    if (walk_) {
        walk_->see(logits);
    } else {
        tree_->inquiry().see(node, logits);
    }
}

void Job::go_on() {
    if (n_prompt_left() > 0 || has_rows()) {
        return;
    }
    if (walk_) {
        is_decided_ = walk_->is_over();
        catch_up_with_walk();
    } else if (tree_->n_placed == tree_->asked.size()) {
        ask();
    }
}

void Job::ask() {
    tree_->asked = tree_->inquiry().ask(answer_.n_evaluated);
    tree_->n_placed = 0;
    is_decided_ = tree_->asked.empty();
}

// What the walk has taken since the last logits goes into the cache, for the next.
void Job::catch_up_with_walk() {
    rows_.clear();
    n_rows_done_ = 0;
    if (is_decided_) {
        return;
    }
    for (const Token token : walk_->lag()) {
        const auto position = static_cast<llama_pos>(prompt().size() + n_walked_);
        rows_.push_back({kRoot, token, position, false, ids_});
        ++n_walked_;
    }
    if (!rows_.empty()) {
        rows_.back().visited = true;
    }
    answer_.n_evaluated += rows_.size();
    n_cells_ = n_walked_;
}

Answer Job::answer() const {
    Answer out = answer_;
    if (walk_) {
        walk_->write(out);
    } else if (tree_->search != nullptr) {
        SearchResult result = tree_->search->result();
        out.found = std::move(result.found);
        out.gap = result.gap;
        out.rival_min = result.rival_min;
        out.rival_max = result.rival_max;
        out.mass_max = result.mass_max;
    } else {
        out.scores = tree_->scoring->result().leaves;
    }
    out.prompt_ns = ns_between(started_, prompt_ended_);
    out.decide_ns = ns_between(prompt_ended_, std::chrono::steady_clock::now());
    return out;
}

void Job::keep_text(HeldTokens & held) {
    if (question_.way == Question::Way::text) {
        held.append(id(), walk_->tokens().data(), n_walked_);
        n_kept_ = n_walked_;
    }
}

void Job::clear_cache(llama_memory_t memory) noexcept {
    if (tree_) {
        tree_->paths.clear();
    }
    llama_memory_seq_rm(memory, id(), static_cast<llama_pos>(n_prompt_ + n_kept_), -1);
}

}  // namespace token_trie
