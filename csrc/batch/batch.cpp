#include "batch/batch.h"

#include "batch/tasks.h"

#include <algorithm>
#include <chrono>

namespace token_trie {

Batch::Batch(ContextMaker maker, const Scheduler::Options & options)
    : scheduler_(std::make_unique<Scheduler>(
          std::move(maker), options, [this](Ticket ticket, Answer answer) { keep(ticket, std::move(answer)); })),
      facts_(scheduler_->vocab()),
      n_ctx_max_(scheduler_->n_ctx_max()) {}

namespace {

// The calls that this thread is in, of any batches.
thread_local const Batch::Call * innermost = nullptr;

}  // namespace

void Batch::check(const Request & request) const {
    check_rules({{request.prompt.empty(), "tokens: none; a prompt needs at least one"}});
    check_tokens(request.prompt, facts_.size(), "tokens");
    request.check();
    check_rules({
        {request.sampling.seed == TOKEN_TRIE_SEED_KEEP, "query.sampling.seed: a batch has no draws to go on with"},
        {request.is_thinking() && !request.is_text() && request.cursor->follow().max_before() < 0,
         "max_before: no limit, where the answer needs its cells in the context"},
    });
    const std::size_t n_answer = request.max_tokens();
    throw_if(request.prompt.size() + n_answer > n_ctx_max_, Status::context, request.prompt.size(),
             " tokens and an answer of up to ", n_answer, " do not fit the context of ", n_ctx_max_);
    if (request.is_decoded()) {
        static_cast<void>(Decoding(request, facts_.get(), 0));  // which checks its options
    }
}

bool Batch::is_calling() const noexcept {
    const Call * call = innermost;
    while (call != nullptr && call->batch_.get() != this) {
        call = call->outer_;
    }
    return call != nullptr;
}

Batch::Call::Call(std::shared_ptr<Batch> batch) : batch_(std::move(batch)) {
    const std::lock_guard<std::mutex> lock(batch_->mutex_);
    throw_if(batch_->closed_, Status::argument, "batch: closed");
    ++batch_->n_calls_;
    outer_ = std::exchange(innermost, this);
}

Batch::Call::~Call() {
    innermost = outer_;
    std::unique_lock<std::mutex> lock(batch_->mutex_);
    --batch_->n_calls_;
    if (batch_->closed_ && batch_->worker_ == std::thread::id()) {
        const Turn last(*batch_, lock);  // where the call itself has closed it
    }
    batch_->changed_.notify_all();
}

// First what may fail.
Ticket Batch::Call::submit(Request request) const {
    Batch & batch = *batch_;
    if (request.is_text() || request.is_list()) {
        // A prompt that leaves room for none is refused.
        const std::size_t n_left = batch.n_ctx_max_ - std::min(batch.n_ctx_max_, request.prompt.size());
        request.text.max_tokens = std::min(request.text.max_tokens, std::max<std::size_t>(n_left, 1));
    }
    batch.check(request);
    const std::lock_guard<std::mutex> lock(batch.mutex_);
    throw_if(batch.closed_, Status::argument, "batch: closed");
    const Ticket ticket = batch.last_ + 1;
    Scheduler::Requests requests;
    requests.emplace(ticket, std::move(request));
    std::list<Entry> entry(1);
    entry.front().answer.info.ticket = ticket;
    if (batch.cancelled_.capacity() <= batch.out_.size()) {
        batch.cancelled_.reserve(2 * batch.out_.size() + 1);
    }
    batch.tickets_.emplace(ticket, entry.begin());
    batch.out_.splice(batch.out_.end(), entry);
    batch.submitted_.merge(requests);
    batch.changed_.notify_all();
    return batch.last_ = ticket;
}

Batch::Found Batch::next(Ticket wanted, std::int32_t timeout_ms, Answer & answer) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point until = Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
    std::unique_lock<std::mutex> lock(mutex_);
    throw_if(closed_, Status::argument, "batch: closed");
    throw_if(is_working(), Status::busy, "batch: this thread is inside its pass, by a callback");
    for (;;) {
        throw_if(closed_, Status::cancelled, "the batch was closed");
        auto at = ready_.begin();
        if (wanted != kAny) {
            const auto known = tickets_.find(wanted);
            throw_if(known == tickets_.end(), Status::argument, "ticket: ", wanted, " is not out");
            at = known->second->is_ready ? known->second : ready_.end();
        }
        if (at != ready_.end()) {
            answer = std::move(at->answer);
            tickets_.erase(answer.info.ticket);
            ready_.erase(at);
            return Found::answer;
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
    const Turn turn(*this, lock);
    const std::vector<Ticket> cancelled = cancelled_;  // which may fail, and then the next one looks again
    cancelled_.clear();
    Scheduler::Requests submitted;
    submitted.swap(submitted_);
    lock.unlock();
    scheduler_->add(submitted);
    for (const Ticket each : cancelled) {
        scheduler_->cancel(each);
    }
    scheduler_->pass();
    keep_texts();
}

void Batch::keep_texts() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    scheduler_->for_each_text([this](Ticket ticket, TokenSpan text) {
        const auto known = tickets_.find(ticket);
        if (known == tickets_.end()) {
            return;
        }
        std::vector<Token> & kept = known->second->text;
        if (text.size <= kept.size()) {
            return;  // it is decided again
        }
        try {
            kept.insert(kept.end(), text.data + kept.size(), text.data + text.size);
        } catch (const std::bad_alloc &) {
            return;  // after a later pass
        }
    });
}

void Batch::keep(Ticket ticket, Answer answer) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = tickets_.find(ticket);
    if (known == tickets_.end() || known->second->is_ready) {
        return;
    }
    const auto at = known->second;
    at->answer = std::move(answer);
    at->answer.info.ticket = ticket;
    at->is_ready = true;
    ready_.splice(ready_.end(), out_, at);
}

std::size_t Batch::copy_text(Ticket ticket, std::size_t from, Token * tokens, std::size_t max_tokens) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = tickets_.find(ticket);
    throw_if(known == tickets_.end(), Status::argument, "ticket: ", ticket, " is not out");
    const std::vector<Token> & text = known->second->text;
    const std::size_t begin = std::min(from, text.size());
    const std::size_t n = std::min(text.size() - begin, max_tokens);
    std::copy_n(text.data() + begin, n, tokens);
    return n;
}

void Batch::cancel(Ticket ticket) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = tickets_.find(ticket);
    if (!closed_ && known != tickets_.end() && !known->second->is_ready &&
        !std::exchange(known->second->is_cancelled, true)) {
        cancelled_.push_back(ticket);
    }
}

void Batch::close() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    if (is_working() || is_calling()) {
        return;
    }
    changed_.wait(lock, [this] { return worker_ == std::thread::id() && n_calls_ == 0; });
    const Turn last(*this, lock);
}

bool Batch::is_gone() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return worker_ == std::thread::id() && n_calls_ == 0 && scheduler_ == nullptr;
}

Batch::Turn::Turn(Batch & batch, std::unique_lock<std::mutex> & lock) noexcept : batch_(batch), lock_(lock) {
    batch.worker_ = std::this_thread::get_id();
}

// Nobody is in a pass from here on. Freeing a context may log, and a listener may call this batch.
Batch::Turn::~Turn() {
    if (!lock_.owns_lock()) {
        lock_.lock();
    }
    if (batch_.closed_) {
        lock_.unlock();
        batch_.scheduler_.reset();
        lock_.lock();
    }
    batch_.worker_ = std::thread::id();
    batch_.changed_.notify_all();
}

}  // namespace token_trie
