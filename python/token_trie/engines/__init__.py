"""The same sets in other engines.

`TrieMatcher` and `BatchMatcher` are for engines that take masks from the host. Nothing here needs a llama.cpp model.
"""

from token_trie.engines.matcher import BatchMatcher, TrieMatcher

__all__ = ["BatchMatcher", "TrieMatcher"]
