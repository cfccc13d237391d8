#pragma once

#include <llama.h>

#include <cstdint>
#include <vector>

namespace token_trie {

// A copy of what a context's memory holds of one sequence.
class SavedState {
   public:
    // Reads the context and changes nothing in it. The sequence may not be empty there: llama.cpp may end the process
    // when that is put back.
    SavedState(llama_context * context, llama_seq_id id) : bytes_(llama_state_seq_get_size(context, id)) {
        if (llama_state_seq_get_data(context, bytes_.data(), bytes_.size(), id) != bytes_.size()) {
            bytes_.clear();
        }
    }

    // Whether it could be copied.
    explicit operator bool() const noexcept { return !bytes_.empty(); }

    // Puts it in the place of what a sequence holds, which is lost also where that fails: where it does not fit, or
    // the contexts differ in what their memory is made of.
    bool restore(llama_context * context, llama_seq_id id) const noexcept {
        llama_memory_seq_rm(llama_get_memory(context), id, -1, -1);
        try {
            return !bytes_.empty() &&
                   llama_state_seq_set_data(context, bytes_.data(), bytes_.size(), id) == bytes_.size();
        } catch (...) {  // memory that ran out in llama.cpp
            return false;
        }
    }

   private:
    std::vector<std::uint8_t> bytes_;
};

}  // namespace token_trie
