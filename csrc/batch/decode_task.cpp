#include "batch/decode_task.h"

#include "walk/reserve_more.h"

namespace token_trie {
namespace {

Decoder::Options options_of(const Request & request) { return {request.sampling, request.is_text()}; }

}  // namespace

DecodeTask::DecodeTask(const Request & request, const llama_vocab * vocab, const Origin & origin)
    : vocab_(vocab),
      origin_(origin),
      is_text_(request.is_text()),
      max_tokens_(request.max_tokens()),
      decoder_(vocab, options_of(request)),
      written_(request.text.stop_strings) {
    if (request.cursor != nullptr) {
        decoder_.set_trie(*request.cursor, request.mode == Query::Mode::greedy ? Mode::greedy : Mode::sampled);
    }
    decoder_.begin();
    if (request.text.grammar) {
        decoder_.set_grammar(request.text.grammar->c_str(), request.text.grammar_root.c_str());
    }
    stop_ = max_tokens_ == 0 ? Stop::max_tokens : Stop::none;
    DecodeTask::advance();
}

// The tokens since the last logits, behind which the next are wanted.
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
    stop_ = decoder_.step(*this, is_text_ ? &written_ : nullptr).stop;
    if (stop_ == Stop::string) {
        end_ = written_.end(vocab_, max_tokens_);
        stop_ = end_->is_cut ? Stop::max_tokens : Stop::string;
    } else if (stop_ == Stop::none && is_text_ && tokens_.size() == max_tokens_) {
        stop_ = Stop::max_tokens;
    }
}

void DecodeTask::reserve() { reserve_more(tokens_); }

void DecodeTask::answer(Answer & answer) const {
    answer.tokens = tokens_;
    answer.stop = stop_;
    if (stop_ == Stop::string) {
        answer.stop_string = static_cast<std::int32_t>(written_.stop_string());
    }
    if (end_) {
        answer.tokens.resize(end_->n_kept);
        answer.tokens.insert(answer.tokens.end(), end_->rest.begin(), end_->rest.end());
    }
    const Decoder::Counts & counts = decoder_.counts();
    if (!is_text_ && decoder_.cursor()) {
        answer.found = {{decoder_.cursor()->leaf(), counts.span_logprob}};
    }
    answer.n_branches = counts.n_branches;
    answer.n_forced = counts.n_forced;
    answer.n_free = counts.n_free;
    answer.n_evaluated = n_rows_;
}

TokenSpan DecodeTask::text() const noexcept {
    return is_text_ ? TokenSpan{tokens_.data(), static_cast<std::uint32_t>(tokens_.size())} : TokenSpan{};
}

// Of a choice nothing: nobody goes on behind it.
Task::Written DecodeTask::written() const noexcept {
    if (!is_text_) {
        return {};
    }
    const std::size_t n_answered = end_ ? end_->n_kept : tokens_.size();
    return {{tokens_.data(), static_cast<std::uint32_t>(n_rows_)}, std::min(n_rows_, n_answered)};
}

}  // namespace token_trie
