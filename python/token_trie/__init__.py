"""llama.cpp answers with one of a known set.

>>> decision = token_trie.choose(llm, "Reply to Anna: yes or no?", ["yes", "no"])   # doctest: +SKIP
"""

from token_trie.decisions.asynchronous import achoose, ascore
from token_trie.decisions.choose import choose
from token_trie.decisions.decision import Candidate, Decision, Stats
from token_trie.decisions.handle import StreamHandle
from token_trie.decisions.score import score
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
from token_trie.llama.constrain import Constraint, constrain
from token_trie.llama.generation import Generation, Step, StreamState
from token_trie.llama.program import Text
from token_trie.sets.cache import CacheStats, cache_clear, cache_stats
from token_trie.sets.trie import Leaf, TokenTrie
from token_trie.show.explanation import Explanation, explain

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
    "Text",
    "TokenTrie",
    "TokenTrieError",
    "VocabularyError",
    "achoose",
    "ascore",
    "cache_clear",
    "cache_stats",
    "choose",
    "constrain",
    "explain",
    "score",
]
