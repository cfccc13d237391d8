#pragma once

#include "trie/trie.h"

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {

// A set in a file: as it lies in memory, so that it is mapped and not read. Little-endian, each part at a multiple of
// 64 bytes, with zeros between:
//
//     header   "tokentri", version, byte order, size of the file; the numbers of CompactTree::Shape; of each part its
//              offset, its bytes and their SHA-256; the SHA-256 of all of this
//     parts    the sections of CompactTree; JSON: {"vocab": fingerprint, "aliases": [[name, leaf], ...]}
//
// The members of a file are those of the trie, in the same order and under the same names.

// The bytes of a trie in a file, piece by piece. A trie that is not compact is laid out so first.
class TrieImage {
   public:
    // Throws Error (limit) if the trie cannot be laid out compactly.
    explicit TrieImage(const std::shared_ptr<const Trie> & trie);
    // Valid as long as this.
    const std::vector<std::string_view> & pieces() const noexcept { return pieces_; }

   private:
    std::shared_ptr<const Trie> trie_;
    std::deque<std::string> owned_;
    std::vector<std::string_view> pieces_;
};

// The set in a file, which is mapped, read-only and shared with all who map it, as long as the trie lives. It may be
// replaced or deleted meanwhile, but not be written into. Takes milliseconds, whatever its size: what is read is the
// header and two bits an edge; token ids are looked at in blocks when they are first used. Throws Error: argument if
// the file cannot be opened, payload if it is none, or truncated, or damaged so that a call would leave it; other
// damage makes answers wrong, and is found by verify_trie_file.
std::shared_ptr<const Trie> open_trie_file(const std::string & path);

// The same of bytes in memory, at an address that 8 divides, held by owner; name is used in messages.
std::shared_ptr<const Trie> open_trie_image(std::string_view bytes,
                                            const std::shared_ptr<const void> & owner,
                                            const std::string & name);
// Writes into the header of bytes, if they are long enough, the checksum of what is in it: for tests of damage.
void seal_trie_image(char * bytes, std::size_t n);

// Compares all checksums, which reads the whole file. Throws Error (argument, payload), naming the part.
void verify_trie_file(const std::string & path);

}  // namespace token_trie
