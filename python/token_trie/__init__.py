"""llama.cpp answers with one of a known set.

Examples
--------
>>> decision = token_trie.choose(llm, "Reply to Anna: yes or no?", ["yes", "no"])   # doctest: +SKIP
"""

from token_trie.decisions.calibration import BatchPrior, Contextual, Weights
from token_trie.decisions.choose import choose, score
from token_trie.decisions.decision import Decision
from token_trie.decisions.lists import ListDecision, choose_list
from token_trie.decisions.many import choose_many, score_many
from token_trie.decisions.options import Think
from token_trie.demo import demo_model
from token_trie.errors import (
    ArgumentError,
    BusyError,
    CancelledError,
    ContextError,
    LimitError,
    TokenTrieError,
    VocabularyError,
)
from token_trie.handle import StreamHandle
from token_trie.llama.constrain import Constraint, constrain
from token_trie.questions.decide import decide, decide_many
from token_trie.questions.examples import Examples
from token_trie.questions.form import Form
from token_trie.questions.question import Choice, Predicate, Score
from token_trie.records.fill import Record, fill, fill_many
from token_trie.records.tools import ToolCall, choose_tool, choose_tool_many
from token_trie.sets.catalogue import Catalogue
from token_trie.sets.payload import cache_clear, cache_stats
from token_trie.sets.trie import TokenTrie
from token_trie.show.evaluation import Evaluation, evaluate
from token_trie.show.explain import Explanation, explain
from token_trie.trust.calibration import Calibration
from token_trie.trust.gate import Gate

__version__ = "1.0.0"

__all__ = [
    "ArgumentError",
    "BatchPrior",
    "BusyError",
    "Calibration",
    "CancelledError",
    "Catalogue",
    "Choice",
    "Constraint",
    "ContextError",
    "Contextual",
    "Decision",
    "Evaluation",
    "Examples",
    "Explanation",
    "Form",
    "Gate",
    "LimitError",
    "ListDecision",
    "Predicate",
    "Record",
    "Score",
    "StreamHandle",
    "Think",
    "TokenTrie",
    "TokenTrieError",
    "ToolCall",
    "VocabularyError",
    "Weights",
    "cache_clear",
    "cache_stats",
    "choose",
    "choose_list",
    "choose_many",
    "choose_tool",
    "choose_tool_many",
    "constrain",
    "decide",
    "decide_many",
    "demo_model",
    "evaluate",
    "explain",
    "fill",
    "fill_many",
    "score",
    "score_many",
]
