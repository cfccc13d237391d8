#pragma once

#include "stream/shared_stream.h"

struct token_trie_stream;

namespace token_trie {

// The streams that are open. A handle is a number in a pointer's clothes, given once in a process and looked up on each
// call, so that a closed one is refused, also when another stream has been opened since.
class OpenStreams {
   public:
    static OpenStreams & shared();

    // Makes a stream, on a context of the caller's or, with null, one of its own. Throws what make throws, and Error
    // (busy) if a stream is open on that context, before make may touch it.
    token_trie_stream * open(const llama_context * context, const std::function<std::unique_ptr<Stream>()> & make);

    // Makes one that goes on as another would. Throws Error as a call does.
    token_trie_stream * fork(const token_trie_stream * handle);

    // Throws Error (argument) if it is not open.
    std::shared_ptr<SharedStream> find(const token_trie_stream * handle);

    // Does nothing if it is not here; waits where another thread closes it.
    void close(const token_trie_stream * handle);

   private:
    struct Entry {
        token_trie_stream * handle;
        const llama_context * context;
        std::shared_ptr<SharedStream> stream;  // null while it is being made
        bool closed;                           // but not yet gone, where its own call closed it
    };

    using Make = std::function<std::shared_ptr<SharedStream>()>;
    token_trie_stream * enlist(const llama_context * context, bool is_fork, const Make & make);
    std::vector<Entry>::iterator position_of(const token_trie_stream * handle);
    void forget_gone();

    std::mutex mutex_;  // never held while a stream is made, called or freed
    std::vector<Entry> streams_;
    std::uintptr_t next_ = 1;
};

}  // namespace token_trie
