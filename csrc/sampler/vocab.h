#pragma once

#include "sampler/cursor.h"
#include "trie/lexicon.h"

#include <string>
#include <vector>

struct llama_vocab;

namespace [[gnu::visibility("default")]] token_trie {

// What this library asks of a model's vocabulary. A null vocab is one of unknown size without end-of-generation tokens.

// 0 if vocab is null.
std::int32_t vocab_size(const llama_vocab * vocab);

// Fingerprint of the vocabulary as token_trie.h defines it, "sha256:" and 64 hex digits. One pass over the vocabulary,
// then remembered; so are the end-of-generation tokens, which are in ascending order.
//
// What is remembered belongs to an address, and is used only as long as size, storage and a sample of the texts there
// are the same; a model freed and another loaded into its place is noticed by these.
std::string vocab_fingerprint(const llama_vocab * vocab);
std::vector<Token> vocab_end_of_generation(const llama_vocab * vocab);

// What each token spells, remembered likewise; null without a tokenizer. Control tokens, unused ones and those that end
// a generation spell nothing; user-defined ones, such as Gemma's HTML tags, spell their text.
std::shared_ptr<const Lexicon> vocab_lexicon(const llama_vocab * vocab);

// Throws Error (vocab) if the tokens cannot belong to this vocabulary, naming the leaf, the list or the fingerprints.
void check_vocab(const Trie & trie, const llama_vocab * vocab);
void check_vocab(const FollowSet & follow, const llama_vocab * vocab);

// The tokens of each text as llama.cpp tokenizes it, one leaf a text, unnamed. Special tokens are not recognized.
// Throws Error (vocab) naming `what[i]` where the tokens do not spell the text, such as an unknown character.
LeafList tokenize(const llama_vocab * vocab, const std::vector<std::string> & texts, const std::string & what);

// The bytes that tokens stand for; control tokens as their text, or with special = false as none. Throws Error (vocab)
// on a token outside the vocabulary.
std::string detokenize(const llama_vocab * vocab, const std::vector<Token> & tokens, bool special = true);

}  // namespace token_trie
