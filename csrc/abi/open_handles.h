#pragma once

#include "batch/batch.h"
#include "stream/shared_stream.h"

#include <algorithm>

struct token_trie_batch;
struct token_trie_stream;

namespace token_trie {

// The open objects of one kind. A handle is a number in a pointer's clothes, given once in a process and looked up on
// each call, so that a closed one is refused, also when another has been opened since.
template <typename Handle, typename Object>
class OpenHandles {
   public:
    explicit OpenHandles(const char * kind) noexcept : kind_(kind) {}

    // Opens what make() returns. Throws what make throws.
    template <typename Make>
    Handle * open(const Make & make) {
        std::unique_lock<std::mutex> lock(mutex_);
        forget_gone();
        // Odd numbers: no object's address.
        auto * const handle = reinterpret_cast<Handle *>(next_);  // NOLINT(performance-no-int-to-ptr)
        open_.push_back({handle, nullptr, false});
        next_ += 2;
        lock.unlock();
        std::shared_ptr<Object> object;
        try {
            object = make();
        } catch (...) {
            lock.lock();
            open_.erase(position_of(handle));
            throw;
        }
        lock.lock();
        position_of(handle)->object = std::move(object);
        return handle;
    }

    // Throws Error (argument) if it is not open.
    std::shared_ptr<Object> find(const Handle * handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto at = position_of(handle);
        throw_if(at == open_.end() || at->object == nullptr || at->is_closed, Status::argument, kind_,
                 handle == nullptr ? ": null" : ": closed, or never opened");
        return at->object;
    }

    // Does nothing if it is not here; waits where another thread closes it.
    void close(const Handle * handle) {
        std::shared_ptr<Object> object;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            const auto at = position_of(handle);
            if (at == open_.end() || at->object == nullptr) {
                return;
            }
            object = at->object;
            at->is_closed = true;
        }
        object->close();
        const std::lock_guard<std::mutex> lock(mutex_);
        forget_gone();
    }

   private:
    struct Entry {
        Handle * handle;
        std::shared_ptr<Object> object;  // null while it is being made
        bool is_closed;                  // but not yet gone, where its own call closed it
    };

    typename std::vector<Entry>::iterator position_of(const Handle * handle) {
        return std::find_if(open_.begin(), open_.end(), [&](const Entry & each) { return each.handle == handle; });
    }

    // One that was closed from within its own call is still on its context until that call returns.
    void forget_gone() {
        open_.erase(std::remove_if(open_.begin(), open_.end(),
                                   [](const Entry & each) { return each.object != nullptr && each.object->is_gone(); }),
                    open_.end());
    }

    const char * const kind_;  // as messages name it
    std::mutex mutex_;         // never held while an object is made, called or freed
    std::vector<Entry> open_;
    std::uintptr_t next_ = 1;
};

// Never destroyed: what is open at the end of the process goes with it, and not after what it depends on.
inline OpenHandles<token_trie_stream, SharedStream> & open_streams() {
    static auto & streams = *std::make_unique<OpenHandles<token_trie_stream, SharedStream>>("stream").release();
    return streams;
}

inline OpenHandles<token_trie_batch, Batch> & open_batches() {
    static auto & batches = *std::make_unique<OpenHandles<token_trie_batch, Batch>>("batch").release();
    return batches;
}

}  // namespace token_trie
