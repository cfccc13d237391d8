#include "stream/shared_stream.h"

namespace token_trie {

SharedStream::SharedStream(std::unique_ptr<Stream> stream, std::shared_ptr<Turn> turn)
    : turn_(std::move(turn)), stream_(std::move(stream)), vocab_(stream_->vocab()) {
    const std::lock_guard<std::mutex> lock(turn_->mutex);
    turn_->leaving.reserve(++turn_->n_streams);
}

SharedStream::Call::Call(std::shared_ptr<SharedStream> shared) : shared_(std::move(shared)) {
    {
        std::unique_lock<std::mutex> lock(shared_->turn_->mutex);
        shared_->require_free(lock);
        shared_->enter();
        shared_->stream_->resume();
    }
    try {
        shared_->stream_->take_turn();
    } catch (...) {
        std::unique_lock<std::mutex> lock(shared_->turn_->mutex);
        shared_->free_and_leave(lock);
        throw;
    }
}

SharedStream::Call::~Call() {
    std::unique_lock<std::mutex> lock(shared_->turn_->mutex);
    shared_->free_and_leave(lock);
}

std::shared_ptr<SharedStream> SharedStream::fork(const std::shared_ptr<SharedStream> & shared) {
    const Call call(shared);
    // Not make_shared, to which the constructor is closed.
    return std::shared_ptr<SharedStream>(new SharedStream(call->fork(), shared->turn_));
}

void SharedStream::require_free(std::unique_lock<std::mutex> & lock) const {
    const std::thread::id self = std::this_thread::get_id();
    turn_->left.wait(lock, [&] { return !turn_->is_freeing || turn_->inside == self; });
    throw_if(closed_, Status::argument, "stream: closed");
    throw_if(turn_->inside != std::thread::id(), Status::busy,
             turn_->whose == this ? "the stream is in a call already, of another thread or of its own callback"
                                  : "another stream on this context, which was forked, is in a call");
}

void SharedStream::enter() noexcept {
    turn_->inside = std::this_thread::get_id();
    turn_->whose = this;
}

token_trie_stream_state SharedStream::state() const {
    std::unique_lock<std::mutex> lock(turn_->mutex);
    require_free(lock);
    return stream_->state();
}

void SharedStream::cancel() noexcept {
    const std::lock_guard<std::mutex> lock(turn_->mutex);
    if (turn_->inside != std::thread::id() && turn_->whose == this && !closed_) {
        stream_->cancel();
    }
}

void SharedStream::close() noexcept {
    std::unique_lock<std::mutex> lock(turn_->mutex);
    if (turn_->inside != std::thread::id() && turn_->whose == this && !closed_) {
        stream_->cancel();
    }
    closed_ = true;
    if (turn_->inside == std::this_thread::get_id()) {
        if (turn_->whose != this && stream_ != nullptr) {
            turn_->leaving.push_back(std::move(stream_));
        }
        return;
    }
    turn_->left.wait(lock, [this] { return turn_->inside == std::thread::id(); });
    enter();
    turn_->is_freeing = true;
    free_and_leave(lock);
}

bool SharedStream::is_gone() const noexcept {
    const std::lock_guard<std::mutex> lock(turn_->mutex);
    return turn_->inside == std::thread::id() && stream_ == nullptr;
}

// Freeing a context may log, and a listener may call this stream.
void SharedStream::free_and_leave(std::unique_lock<std::mutex> & lock) noexcept {
    while (!turn_->leaving.empty()) {
        std::unique_ptr<Stream> other = std::move(turn_->leaving.back());
        turn_->leaving.pop_back();
        lock.unlock();
        other.reset();
        lock.lock();
    }
    if (closed_) {
        lock.unlock();
        stream_.reset();
        lock.lock();
    }
    turn_->inside = std::thread::id();
    turn_->whose = nullptr;
    turn_->is_freeing = false;
    turn_->left.notify_all();
}

}  // namespace token_trie
