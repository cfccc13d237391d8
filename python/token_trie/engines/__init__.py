"""The same sets in other engines.

`TrieMatcher`, `BatchMatcher` and `UniqueMatchers` are for engines that take masks from the host. Nothing here needs a
llama.cpp model.
"""

from token_trie.engines.matcher import BatchMatcher, TrieMatcher, UniqueMatchers

__all__ = ["BatchMatcher", "TrieMatcher", "UniqueMatchers"]
