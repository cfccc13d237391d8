#pragma once

#include <string>

namespace [[gnu::visibility("default")]] token_trie {

// A fingerprint of a GGUF's tensors, whatever its other metadata says: "sha256:" and 64 hex digits over the name, type
// and shape of each, and the first and the last 4 KiB of its data, of all files of a model in several. It reads some
// megabytes, of models of any size. Throws Error (argument): the file cannot be read.
std::string tensors_digest(const std::string & path);

}  // namespace token_trie
