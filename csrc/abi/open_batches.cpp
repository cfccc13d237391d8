#include "abi/open_batches.h"

namespace token_trie {

OpenBatches & OpenBatches::shared() {
    // Never destroyed, as open streams are not.
    static auto * const batches = std::make_unique<OpenBatches>().release();
    return *batches;
}

token_trie_batch * OpenBatches::open(std::shared_ptr<Batch> batch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto * const handle = reinterpret_cast<token_trie_batch *>(next_);  // NOLINT(performance-no-int-to-ptr)
    batches_.emplace(handle, std::move(batch));
    next_ += 2;
    return handle;
}

std::shared_ptr<Batch> OpenBatches::find(const token_trie_batch * handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = batches_.find(handle);
    if (at == batches_.end()) {
        throw Error(Status::argument, handle == nullptr ? "batch: null" : "batch: closed, or never opened");
    }
    return at->second;
}

void OpenBatches::close(const token_trie_batch * handle) {
    std::shared_ptr<Batch> batch;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto at = batches_.find(handle);
        if (at == batches_.end()) {
            return;
        }
        batch = at->second;
    }
    batch->close();
    const std::lock_guard<std::mutex> lock(mutex_);
    batches_.erase(handle);
}

}  // namespace token_trie
