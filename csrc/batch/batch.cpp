#include "batch/batch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

namespace token_trie {

Batch::Batch(const ContextMaker & maker, const Scheduler::Options & options)
    : scheduler_(std::make_unique<Scheduler>(maker, options)),
      facts_(scheduler_->vocab()),
      capacity_(scheduler_->capacity()),
      n_parallel_(scheduler_->n_ids()) {}

Batch::~Batch() = default;

namespace {

void check_set(const Question & question) {
    const bool is_text = question.way == Question::Way::text;
    if (question.cursor == nullptr) {
        if (!is_text) {
            throw Error(Status::argument, "a set: none");
        }
        return;
    }
    const FollowSet & follow = question.cursor->follow();
    if (follow.on_complete() != OnComplete::end) {
        throw Error(Status::argument, "a question has one answer: no other on_complete than end");
    }
    if (question.is_thinking() && !question.is_walk()) {
        throw Error(Status::argument, "start_after: whole answers are found without a text before them");
    }
    if (is_text && !question.is_thinking()) {
        throw Error(Status::argument, "start_after: none; text ends there, or has no set");
    }
    if (question.is_thinking() && !is_text && follow.max_before() < 0) {
        throw Error(Status::argument, "max_before: no limit, where the answer needs its place in the context");
    }
    if (!question.is_walk() && (!question.cursor->trie().is_tree() || follow.left() != nullptr)) {
        throw Error(Status::argument,
                    "whole answers are scored in one spelling, and none left out: give the members' tokens");
    }
}

}  // namespace

void Batch::check(const Question & question) const {
    if (question.prompt.empty()) {
        throw Error(Status::argument, "tokens: none; a prompt needs at least one");
    }
    const std::int32_t n_vocab = facts_.size();
    for (std::size_t i = 0; i < question.prompt.size(); ++i) {
        if (question.prompt[i] < 0 || question.prompt[i] >= n_vocab) {
            throw Error(Status::vocab, "tokens[" + std::to_string(i) + "]: " + std::to_string(question.prompt[i]) +
                                           " is outside the vocabulary (" + std::to_string(n_vocab) + " tokens)");
        }
    }
    check_set(question);
    const std::size_t n_answer = question.max_tokens();
    if (question.prompt.size() + n_answer > capacity_) {
        throw Error(Status::context, std::to_string(question.prompt.size()) + " tokens and an answer of up to " +
                                         std::to_string(n_answer) + " do not fit the context of " +
                                         std::to_string(capacity_));
    }
    if (question.way == Question::Way::best && question.search.n_best == 0) {
        throw Error(Status::argument, "n_best: 0");
    }
    if (question.is_walk()) {
        static_cast<void>(Walk(facts_.get(), question));  // which checks its options
    }
}

Batch::Call::Call(std::shared_ptr<Batch> batch) : batch_(std::move(batch)) {
    const std::lock_guard<std::mutex> lock(batch_->mutex_);
    if (batch_->closed_) {
        throw Error(Status::argument, "batch: closed");
    }
    ++batch_->n_calls_;
}

Batch::Call::~Call() {
    const std::lock_guard<std::mutex> lock(batch_->mutex_);
    --batch_->n_calls_;
    batch_->changed_.notify_all();
}

Ticket Batch::Call::submit(Question question) const {
    Batch & batch = *batch_;
    batch.check(question);
    const std::lock_guard<std::mutex> lock(batch.mutex_);
    if (batch.closed_) {
        throw Error(Status::argument, "batch: closed");
    }
    const Ticket ticket = batch.last_ + 1;
    batch.submitted_.emplace_back(ticket, std::move(question));
    try {
        batch.out_.insert(ticket);
    } catch (...) {
        batch.submitted_.pop_back();
        throw;
    }
    batch.changed_.notify_all();
    return batch.last_ = ticket;
}

Batch::Found Batch::next(Ticket wanted, std::int32_t timeout_ms, Ticket & ticket, Answer & answer, const Fits & fits) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point until = Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) {
        throw Error(Status::argument, "batch: closed");
    }
    if (is_inside()) {
        throw Error(Status::busy, "batch: this thread is inside its pass, by a callback");
    }
    for (;;) {
        if (closed_) {
            throw Error(Status::cancelled, "the batch was closed");
        }
        const auto at = wanted != kAny   ? ready_.find(wanted)
                        : order_.empty() ? ready_.end()
                                         : ready_.find(order_.front());
        if (at != ready_.end()) {
            fits(at->second);
            ticket = at->first;
            answer = std::move(at->second);
            order_.erase(std::find(order_.begin(), order_.end(), ticket));
            ready_.erase(at);
            return Found::answer;
        }
        if (wanted != kAny && out_.count(wanted) == 0) {
            throw Error(Status::argument, "ticket: " + std::to_string(wanted) + " is not out");
        }
        if (out_.empty()) {
            return Found::none;
        }
        if (timeout_ms >= 0 && Clock::now() >= until) {
            return Found::not_yet;
        }
        if (worker_ == std::thread::id()) {
            work(lock);
        } else if (timeout_ms < 0) {
            changed_.wait(lock);
        } else {
            changed_.wait_until(lock, until);
        }
    }
}

// One pass, with what came in since the last.
void Batch::work(std::unique_lock<std::mutex> & lock) {
    worker_ = std::this_thread::get_id();
    std::vector<std::pair<Ticket, Question>> submitted = std::exchange(submitted_, {});
    const std::vector<Ticket> cancelled = std::exchange(cancelled_, {});
    lock.unlock();
    Scheduler::Answers answers;
    Status failed = Status::ok;
    std::array<char, 256> why{};
    try {
        for (auto & [ticket, question] : submitted) {
            scheduler_->add(ticket, std::move(question));
        }
        for (const Ticket each : cancelled) {
            scheduler_->cancel(each, answers);
        }
        scheduler_->pass(answers);
    } catch (const std::bad_alloc &) {
        failed = Status::memory;
    } catch (const Error & error) {
        failed = error.status();
        std::snprintf(why.data(), why.size(), "%s", error.what());
    } catch (const std::exception & error) {  // of llama.cpp's
        failed = Status::internal;
        std::snprintf(why.data(), why.size(), "%s", error.what());
    }
    if (failed != Status::ok) {
        scheduler_->clear();
    }
    lock.lock();
    for (auto & [ticket, answer] : answers) {
        if (out_.erase(ticket) > 0) {
            ready_.emplace(ticket, std::move(answer));
            order_.push_back(ticket);
        }
    }
    if (failed != Status::ok) {
        // Those that came in meanwhile, too.
        submitted_.clear();
        while (!out_.empty()) {
            Answer & answer = ready_[*out_.begin()];
            answer.status = failed;
            answer.message = why.data();
            order_.push_back(*out_.begin());
            out_.erase(out_.begin());
        }
    }
    leave(lock);
}

void Batch::cancel(Ticket ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_ && out_.count(ticket) > 0) {
        cancelled_.push_back(ticket);
    }
}

void Batch::close() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    if (is_inside()) {
        return;  // it goes when the pass ends
    }
    changed_.wait(lock, [this] { return worker_ == std::thread::id() && n_calls_ == 0; });
    if (scheduler_ != nullptr) {
        worker_ = std::this_thread::get_id();
        leave(lock);
    }
}

// Nobody is in a pass from here on. Freeing a context may log, and who listens may ask something of this batch.
void Batch::leave(std::unique_lock<std::mutex> & lock) noexcept {
    if (closed_) {
        lock.unlock();
        scheduler_.reset();
        lock.lock();
    }
    worker_ = std::thread::id();
    changed_.notify_all();
}

}  // namespace token_trie
