#pragma once

#include "batch/batch.h"

struct token_trie_batch;

namespace token_trie {

// The batches that are open, by handles as those of streams are.
class OpenBatches {
   public:
    static OpenBatches & shared();

    token_trie_batch * open(std::shared_ptr<Batch> batch);
    // Throws Error (argument) if it is not open.
    std::shared_ptr<Batch> find(const token_trie_batch * handle);
    // Does nothing if it is not here; waits where another thread closes it.
    void close(const token_trie_batch * handle);

   private:
    std::mutex mutex_;
    std::map<const token_trie_batch *, std::shared_ptr<Batch>> batches_;
    std::uintptr_t next_ = 1;
};

}  // namespace token_trie
