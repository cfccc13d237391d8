#pragma once

#include <atomic>
#include <mutex>

namespace [[gnu::visibility("default")]] token_trie {

// A value that is computed when it is first needed; who needs it meanwhile waits. What throws leaves it to the next, as
// std::call_once does not everywhere: where that is pthread_once, it may never return again (GCC's bug 66146).
template <typename Value>
class Lazy {
   public:
    template <typename Compute>
    const Value & get(Compute && compute) const {
        if (!is_there_.load(std::memory_order_acquire)) {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!is_there_.load(std::memory_order_relaxed)) {
                value_ = compute();
                is_there_.store(true, std::memory_order_release);
            }
        }
        return value_;
    }

   private:
    mutable std::mutex mutex_;
    mutable std::atomic<bool> is_there_{false};
    mutable Value value_{};
};

}  // namespace token_trie
