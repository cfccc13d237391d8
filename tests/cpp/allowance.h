#pragma once

namespace token_trie::test {

// Allocations that this thread may still make, in the library as in llama.cpp; negative: any number. Of programs that
// have allowance.cpp, which replaces operator new.
extern thread_local long allowance;

// Whether llama.cpp goes on where memory runs out in a pass: releases that lose count of their cache end the process.
bool may_run_out_in_passes();

}  // namespace token_trie::test
