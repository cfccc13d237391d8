#include "abi/open_streams.h"

#include <algorithm>

namespace token_trie {

OpenStreams & OpenStreams::shared() {
    // Never destroyed: what is open at the end of the process goes with it, and not after what it stands on.
    static auto * const streams = std::make_unique<OpenStreams>().release();
    return *streams;
}

token_trie_stream * OpenStreams::open(const llama_context * context,
                                      const std::function<std::unique_ptr<Stream>()> & make) {
    return enlist(context, false, [&] { return std::make_shared<SharedStream>(make()); });
}

token_trie_stream * OpenStreams::fork(const token_trie_stream * handle) {
    const std::shared_ptr<SharedStream> stream = find(handle);
    const llama_context * context = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto at = position_of(handle);
        context = at == streams_.end() ? nullptr : at->context;
    }
    return enlist(context, true, [&] { return SharedStream::fork(stream); });
}

token_trie_stream * OpenStreams::enlist(const llama_context * context, bool is_fork, const Make & make) {
    token_trie_stream * handle = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        forget_gone();
        if (context != nullptr && !is_fork && std::any_of(streams_.begin(), streams_.end(), [&](const Entry & open) {
                return open.context == context;
            })) {
            throw Error(Status::busy, "ctx: another stream is open on it");
        }
        // Odd numbers: no object's address.
        handle = reinterpret_cast<token_trie_stream *>(next_);  // NOLINT(performance-no-int-to-ptr)
        streams_.push_back({handle, context, nullptr, false});
        next_ += 2;
    }
    std::shared_ptr<SharedStream> stream;
    try {
        stream = make();
    } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        streams_.erase(position_of(handle));
        throw;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    position_of(handle)->stream = std::move(stream);
    return handle;
}

std::shared_ptr<SharedStream> OpenStreams::find(const token_trie_stream * handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = position_of(handle);
    if (at == streams_.end() || at->stream == nullptr || at->closed) {
        throw Error(Status::argument, handle == nullptr ? "stream: null" : "stream: closed, or never opened");
    }
    return at->stream;
}

void OpenStreams::close(const token_trie_stream * handle) {
    std::shared_ptr<SharedStream> stream;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto at = position_of(handle);
        if (at == streams_.end() || at->stream == nullptr) {
            return;
        }
        stream = at->stream;
        at->closed = true;
    }
    stream->close();
    const std::lock_guard<std::mutex> lock(mutex_);
    forget_gone();
}

std::vector<OpenStreams::Entry>::iterator OpenStreams::position_of(const token_trie_stream * handle) {
    return std::find_if(streams_.begin(), streams_.end(), [&](const Entry & open) { return open.handle == handle; });
}

// One that was closed from within its own call is still on its context until that call returns.
void OpenStreams::forget_gone() {
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                  [](const Entry & open) { return open.stream != nullptr && open.stream->is_gone(); }),
                   streams_.end());
}

}  // namespace token_trie
