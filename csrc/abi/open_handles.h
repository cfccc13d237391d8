#pragma once

#include "batch/batch.h"
#include "stream/shared_stream.h"

#include <algorithm>

struct token_trie_batch;
struct token_trie_stream;

namespace token_trie {

// What is open of one kind. A handle is a number in a pointer's clothes, given once in a process and looked up on each
// call, so that a closed one is refused, also when another has been opened since.
template <typename Handle, typename Object>
class OpenHandles {
   public:
    explicit OpenHandles(const char * kind) noexcept : kind_(kind) {}

    // Opens what make() returns, on a context of the caller's or, with null, one of its own. Throws what make throws,
    // and Error (busy) if another is open on that context, before make may touch it.
    template <typename Make>
    Handle * open(const llama_context * context, const Make & make) {
        std::unique_lock<std::mutex> lock(mutex_);
        forget_gone();
        const auto is_on_it = [&](const Entry & other) { return other.context == context; };
        throw_if(context != nullptr && std::any_of(open_.begin(), open_.end(), is_on_it), Status::busy, "ctx: another ",
                 kind_, " is open on it");
        return add(lock, context, make);
    }

    // Opens what make(object) returns, on the same context as that object. Throws what find and make throw.
    template <typename Make>
    Handle * fork(const Handle * handle, const Make & make) {
        const std::shared_ptr<Object> object = find(handle);
        std::unique_lock<std::mutex> lock(mutex_);
        const auto at = position_of(handle);
        return add(lock, at == open_.end() ? nullptr : at->context, [&] { return make(object); });
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
        const llama_context * context;
        std::shared_ptr<Object> object;  // null while it is being made
        bool is_closed;                  // but not yet gone, where its own call closed it
    };

    template <typename Make>
    Handle * add(std::unique_lock<std::mutex> & lock, const llama_context * context, const Make & make) {
        // Odd numbers: no object's address.
        auto * const handle = reinterpret_cast<Handle *>(next_);  // NOLINT(performance-no-int-to-ptr)
        open_.push_back({handle, context, nullptr, false});
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
