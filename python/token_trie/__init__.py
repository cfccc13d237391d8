"""llama.cpp answers with one of a known set.

>>> decision = token_trie.choose(llm, "Reply to Anna: yes or no?", ["yes", "no"])   # doctest: +SKIP
"""

from token_trie.choose import Candidate, Decision, Stats, choose
from token_trie.constrain import Constraint, constrain
from token_trie.errors import (
    ArgumentError,
    BusyError,
    CancelledError,
    ContextError,
    GrammarError,
    InternalError,
    LimitError,
    LlamaVersionError,
    NativeMemoryError,
    PayloadError,
    TokenTrieError,
    VocabularyError,
)
from token_trie.explain import Explanation, explain
from token_trie.generation import Generation, Step, StreamState
from token_trie.score import score
from token_trie.stream import StreamHandle
from token_trie.trie import CacheStats, Leaf, TokenTrie, cache_clear, cache_stats

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BusyError",
    "CacheStats",
    "CancelledError",
    "Candidate",
    "Constraint",
    "ContextError",
    "Decision",
    "Explanation",
    "Generation",
    "GrammarError",
    "InternalError",
    "Leaf",
    "LimitError",
    "LlamaVersionError",
    "NativeMemoryError",
    "PayloadError",
    "Stats",
    "Step",
    "StreamHandle",
    "StreamState",
    "TokenTrie",
    "TokenTrieError",
    "VocabularyError",
    "cache_clear",
    "cache_stats",
    "choose",
    "constrain",
    "explain",
    "score",
]
