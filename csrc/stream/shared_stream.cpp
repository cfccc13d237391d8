#include "stream/shared_stream.h"

namespace token_trie {

SharedStream::SharedStream(std::unique_ptr<Stream> stream) : stream_(std::move(stream)), vocab_(stream_->vocab()) {}

SharedStream::Call::Call(std::shared_ptr<SharedStream> shared) : shared_(std::move(shared)) {
    const std::lock_guard<std::mutex> lock(shared_->mutex_);
    shared_->require_free();
    shared_->inside_ = std::this_thread::get_id();
    shared_->stream_->resume();
}

SharedStream::Call::~Call() {
    std::unique_lock<std::mutex> lock(shared_->mutex_);
    shared_->free_and_leave(lock);
}

void SharedStream::require_free() const {
    if (closed_) {
        throw Error(Status::argument, "stream: closed");
    }
    if (inside_ != std::thread::id()) {
        throw Error(Status::busy, "the stream is in a call already, of another thread or of its own callback");
    }
}

Stream::Snapshot SharedStream::snapshot() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    require_free();
    return stream_->snapshot();
}

void SharedStream::cancel() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (inside_ != std::thread::id() && !closed_) {
        stream_->cancel();
    }
}

void SharedStream::close() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    if (inside_ != std::thread::id() && !closed_) {
        stream_->cancel();
    }
    closed_ = true;
    if (inside_ == std::this_thread::get_id()) {
        return;
    }
    left_.wait(lock, [this] { return inside_ == std::thread::id(); });
    inside_ = std::this_thread::get_id();
    free_and_leave(lock);
}

bool SharedStream::is_gone() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_ && inside_ == std::thread::id();
}

// Freeing a context may log, and who listens may ask something of this stream.
void SharedStream::free_and_leave(std::unique_lock<std::mutex> & lock) noexcept {
    if (closed_) {
        lock.unlock();
        stream_.reset();
        lock.lock();
    }
    inside_ = std::thread::id();
    left_.notify_all();
}

}  // namespace token_trie
