#pragma once

#include "walk/cursor.h"

struct llama_vocab;

namespace token_trie {

// Whether the span is over, which it is too where only end-of-generation tokens are left: no need to ask the model
// which. The cursor then takes one.
bool finish_span(Cursor & cursor, const llama_vocab * vocab);

}  // namespace token_trie
