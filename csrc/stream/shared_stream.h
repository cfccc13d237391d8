#pragma once

#include "stream/stream.h"
#include "trie/non_copyable.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A stream that any thread may call: one call at a time, others are refused, and close waits for the one under way.
// After close has returned, nothing here touches the context.
//
//     free --enter--> in a call --leave--> free --close--> gone
//                         |--close: cancels, waits--'
//
// The thread that is in a call may come back, from a callback of the call's or from llama.cpp's log callback. What it
// then calls is refused as busy, and a close only takes note: the stream goes when that call leaves.
//
// A stream and its forks work on one context, and so take turns: all of this goes for them together. While one that no
// call is in is freed, the others wait, as that is no call of anybody's.
class SharedStream {
   public:
    explicit SharedStream(std::unique_ptr<Stream> stream) : SharedStream(std::move(stream), std::make_shared<Turn>()) {}

    // RAII: this thread is in a call, for all that a caller does in one entry, the reading of a payload included.
    class Call : NonCopyable {
       public:
        // Throws Error: busy if another call is under way, argument if closed.
        explicit Call(std::shared_ptr<SharedStream> shared);
        ~Call();

        Stream & operator*() const noexcept { return *shared_->stream_; }
        Stream * operator->() const noexcept { return shared_->stream_.get(); }

       private:
        std::shared_ptr<SharedStream> shared_;
    };

    // Makes a stream that goes on as this one would. Throws Error as a call does, and what Stream::fork throws.
    static std::shared_ptr<SharedStream> fork(const std::shared_ptr<SharedStream> & shared);

    // Refused as a call is, but none itself: other callers wait the moment it takes.
    token_trie_stream_state state() const;

    // Ends the call under way within one forward pass; without one, does nothing.
    void cancel() noexcept;

    // Refuses all calls from here on, cancels the one under way, waits for it and frees the stream.
    void close() noexcept;
    // Whether the stream is freed: not before the call under way has left.
    bool is_gone() const noexcept;

    // The stream's, while it is there.
    const llama_vocab * vocab() const noexcept { return vocab_; }

   private:
    // Whose turn it is, of all on one context.
    struct Turn {
        std::mutex mutex;  // guards what follows; never held in a call
        std::condition_variable left;
        std::thread::id inside;  // the thread in a call, if any,
        const SharedStream * whose = nullptr;
        bool is_freeing = false;                       // and in none: it frees a stream
        std::size_t n_streams = 0;                     // made so far
        std::vector<std::unique_ptr<Stream>> leaving;  // closed from within another's call; reserved for all
    };

    SharedStream(std::unique_ptr<Stream> stream, std::shared_ptr<Turn> turn);
    void require_free(std::unique_lock<std::mutex> & lock) const;
    void enter() noexcept;
    void free_and_leave(std::unique_lock<std::mutex> & lock) noexcept;

    const std::shared_ptr<Turn> turn_;
    bool closed_ = false;
    std::unique_ptr<Stream> stream_;
    const llama_vocab * const vocab_;
};

}  // namespace token_trie
