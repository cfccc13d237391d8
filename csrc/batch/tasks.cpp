#include "batch/tasks.h"
#include "cursor/reserve_more.h"

#include <algorithm>

namespace token_trie {

std::unique_ptr<Task> make_task(const Request & request,
                                const llama_vocab * vocab,
                                const Task::Origin & origin,
                                std::size_t n_paths) {
    if (request.is_decoded()) {
        return std::make_unique<DecodeTask>(request, vocab, origin);
    }
    if (request.mode == Query::Mode::state) {
        return std::make_unique<StateTask>();
    }
    const Cursor & cursor = *request.cursor;
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(vocab));
    if (request.mode == Query::Mode::best) {
        return std::make_unique<SearchTask>(
            begin_search(cursor, request.search, n_vocab, n_paths, /* rows_are_cheap = */ false), cursor.trie(),
            origin);
    }
    return std::make_unique<ScoreTask>(begin_scoring(cursor, request.search, n_vocab), cursor.trie(), origin);
}

TreeTask::TreeTask(TreeQuery & query, const Trie & trie, const Origin & origin)
    : query_(query),
      trie_(trie),
      paths_(origin.memory, trie, origin.id, static_cast<llama_pos>(origin.n_before)),
      nodes_(query.next(0)),
      wants_root_(!nodes_.empty() && nodes_.front() == kRoot) {
    n_placed_ = wants_root_ ? 1 : 0;
}

std::size_t TreeTask::n_ids_wanted() const noexcept {
    const std::size_t n = std::min<std::size_t>(nodes_.size() - n_placed_, trie_.n_leaves());
    return n - std::min(n, paths_.n_ids());
}

std::vector<Row> TreeTask::next_rows(std::size_t max_nodes, std::size_t max_cells) {
    if (!needs_cells()) {
        return {};
    }
    TreePaths::Wave wave =
        paths_.next_wave(nodes_.data() + n_placed_, std::min(nodes_.size() - n_placed_, max_nodes), max_cells);
    n_placed_ += wave.n_queried;
    n_evaluated_ += wave.rows.size();
    n_cells_ = wave.n_cells;
    return std::move(wave.rows);
}

void TreeTask::advance() {
    if (!needs_cells()) {
        nodes_ = query_.next(n_evaluated_);
        n_placed_ = 0;
    }
}

void write(Ranking result, Answer & answer) { static_cast<Ranking &>(answer) = std::move(result); }

void write(std::vector<double> result, Answer & answer) { answer.scores = std::move(result); }

DecodeTask::DecodeTask(const Request & request, const llama_vocab * vocab, const Origin & origin)
    : request_(request),
      vocab_(vocab),
      origin_(origin),
      is_text_(request.is_text()),
      max_tokens_(request.max_tokens()),
      decoder_(request.decoder(vocab)),
      written_(request.text.stop_strings) {
    stop_ = max_tokens_ == 0 ? Stop::max_tokens : Stop::none;
    DecodeTask::advance();
}

// The tokens since the last logits, after which the next are wanted.
std::vector<Row> DecodeTask::next_rows(std::size_t /*max_nodes*/, std::size_t /*max_cells*/) {
    std::vector<Row> rows;
    rows.reserve(tokens_.size() - n_rows_);
    for (; n_rows_ < tokens_.size(); ++n_rows_) {
        const auto position = static_cast<llama_pos>(origin_.n_before + n_rows_);
        rows.push_back({kRoot, tokens_[n_rows_], position, n_rows_ + 1 == tokens_.size(), {origin_.id}});
    }
    return rows;
}

void DecodeTask::observe(NodeId /*node*/, const float * logits) {
    logits_ = logits;
    step();
}

// As far as no choice is left.
void DecodeTask::advance() {
    while (!is_done() && decoder_.allowed().only() >= 0) {
        step();
    }
}

void DecodeTask::step() {
    stop_ = request_.step(decoder_, *this, written_);
    if (stop_ == Stop::string) {
        end_ = written_.end(vocab_, max_tokens_);
        stop_ = end_->is_cut ? Stop::max_tokens : Stop::string;
    } else if (stop_ == Stop::none && (is_text_ || request_.is_list()) && tokens_.size() == max_tokens_) {
        stop_ = Stop::max_tokens;
    }
}

void DecodeTask::reserve() { reserve_more(tokens_); }

void DecodeTask::answer(Answer & answer) const {
    const auto n_answered =
        static_cast<std::ptrdiff_t>(request_.read(decoder_, tokens_.size(), tokens_.size(), answer));
    answer.tokens.assign(tokens_.begin(), tokens_.begin() + n_answered);
    answer.stop = stop_;
    if (stop_ == Stop::string) {
        answer.stop_string = static_cast<std::int32_t>(written_.stop_string());
    }
    if (end_) {
        answer.tokens.resize(end_->n_kept);
        answer.tokens.insert(answer.tokens.end(), end_->rest.begin(), end_->rest.end());
    }
    const Decoder::Counts & counts = decoder_.counts();
    answer.n_branches = counts.n_branches;
    answer.n_forced = counts.n_forced;
    answer.n_free = counts.n_free;
    answer.n_evaluated = n_rows_;
}

TokenSpan DecodeTask::text() const noexcept {
    return is_text_ ? TokenSpan{tokens_.data(), static_cast<std::uint32_t>(tokens_.size())} : TokenSpan{};
}

Task::Written DecodeTask::written() const noexcept {
    if (!is_text_ && !request_.goes_on) {
        return {};
    }
    const std::size_t n_answered = end_ ? end_->n_kept : tokens_.size();
    return {{tokens_.data(), static_cast<std::uint32_t>(n_rows_)}, std::min(n_rows_, n_answered)};
}

}  // namespace token_trie
