#pragma once

#include "batch/scheduler.h"
#include "llama/vocab.h"
#include "trie/non_copyable.h"

#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>

namespace [[gnu::visibility("default")]] token_trie {

// Requests and answers of any threads, in one context. Threads that wait for an answer do the work: one of them makes
// the passes, and the others take their answers; when it has its own, another goes on.
//
//     submit ---> out --pass--> ready ---> next
//     submit --->  '---- cancel --'
//
// Whatever needs memory to be answered has it once it is submitted: where memory runs out later, the answer may be
// that. After close has returned, nothing here touches the context.
class Batch {
   public:
    // Throws as Scheduler does.
    Batch(ContextMaker maker, const Scheduler::Options & options);

    std::size_t n_ctx_max() const noexcept { return n_ctx_max_; }

    // RAII: this thread is in a call that touches the model, the reading of a payload included. close waits for it.
    class Call : NonCopyable {
       public:
        // Throws Error (argument) if closed.
        explicit Call(std::shared_ptr<Batch> batch);
        ~Call();

        const Vocab & facts() const noexcept { return batch_->facts_; }
        std::size_t n_ctx_max() const noexcept { return batch_->n_ctx_max_; }
        // Throws Error: argument if closed, or for a request that cannot be decided; vocab; context.
        Ticket submit(Request request) const;

       private:
        friend class Batch;
        std::shared_ptr<Batch> batch_;
        const Call * outer_ = nullptr;  // this thread's call around it, as it may come back from a log callback
    };

    enum class Found { answer, none, not_yet };
    static constexpr Ticket kAny = 0;
    // Waits for the answer to a ticket, or to any, and takes it. none: there is nothing to wait
    // for. not_yet: not within so many milliseconds, and the pass under way; negative: no limit. Throws Error:
    // cancelled if closed meanwhile, argument if it was before or the ticket is not out, busy from within a pass;
    // std::bad_alloc, when all that was to be had still is.
    Found next(Ticket wanted, std::int32_t timeout_ms, Answer & answer);

    // Copies what a text has so far, from a position on, so many tokens at most; returns how many.
    // Throws Error: argument for a ticket that is not out.
    std::size_t copy_text(Ticket ticket, std::size_t from, Token * tokens, std::size_t max_tokens) const;
    // Makes the answer that it was cancelled, unless it has one already.
    void cancel(Ticket ticket) noexcept;
    // Returns at once from within a call or a pass on the same thread; the context then goes when that ends.
    void close() noexcept;
    bool is_gone() const noexcept;

   private:
    // A request, and the place for its answer.
    struct Entry {
        bool is_cancelled = false;
        bool is_ready = false;
        std::vector<Token> text;  // until now
        Answer answer{};
    };
    // RAII: this thread is the worker. Takes the lock again when destroyed.
    class Turn : NonCopyable {
       public:
        Turn(Batch & batch, std::unique_lock<std::mutex> & lock) noexcept;
        ~Turn();

       private:
        Batch & batch_;
        std::unique_lock<std::mutex> & lock_;
    };

    void check(const Request & request) const;
    bool is_working() const noexcept { return worker_ == std::this_thread::get_id(); }
    bool is_calling() const noexcept;
    void work(std::unique_lock<std::mutex> & lock);
    void keep(Ticket ticket, Answer answer) noexcept;
    void keep_texts() noexcept;

    mutable std::mutex mutex_;  // guards what follows, but not the scheduler; never held in a pass
    std::condition_variable changed_;
    std::unique_ptr<Scheduler> scheduler_;  // the worker's or, with none, the lock holder's
    std::thread::id worker_;                // none: nobody is in a pass
    bool closed_ = false;
    std::size_t n_calls_ = 0;
    const Vocab facts_;
    const std::size_t n_ctx_max_;
    Ticket last_ = 0;
    Scheduler::Requests submitted_;  // since the last pass began
    std::vector<Ticket> cancelled_;  // likewise; reserved for all that are out
    std::list<Entry> out_;
    std::list<Entry> ready_;  // in the order in which they came to be
    std::map<Ticket, std::list<Entry>::iterator> tickets_;
};

}  // namespace token_trie
