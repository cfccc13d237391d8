"""llama.cpp answers with one of a known set.

Examples
--------
>>> decision = token_trie.choose(llm, "Reply to Anna: yes or no?", ["yes", "no"])   # doctest: +SKIP
"""

from token_trie.asynchronous import (
    achoose,
    achoose_list,
    achoose_many,
    achoose_tool,
    achoose_tool_many,
    adecide,
    adecide_many,
    aexplain,
    afill,
    afill_many,
    ascore,
)
from token_trie.decisions.calibration import BatchPrior, Contextual, Weights
from token_trie.decisions.choose import choose
from token_trie.decisions.decision import Candidate, Decision, Stats
from token_trie.decisions.lists import ListDecision, ListItem, choose_list
from token_trie.decisions.many import choose_many, score_many
from token_trie.decisions.score import score
from token_trie.decisions.think import Think
from token_trie.errors import (
    ArgumentError,
    BusyError,
    CalibrationError,
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
from token_trie.handle import StreamHandle
from token_trie.llama.constrain import Constraint, constrain
from token_trie.llama.stream import Generation, Step, StreamState
from token_trie.llama.text import Text
from token_trie.questions.answer import ChoiceAnswer, PredicateAnswer, ScoreAnswer
from token_trie.questions.decide import decide, decide_many
from token_trie.questions.examples import Examples
from token_trie.questions.form import Form
from token_trie.questions.question import Choice, Predicate, Score
from token_trie.records.fill import Record, RecordStats, fill, fill_many
from token_trie.records.tools import ToolCall, choose_tool, choose_tool_many
from token_trie.sets.catalogue import Catalogue
from token_trie.sets.payload import CacheStats, cache_clear, cache_stats
from token_trie.sets.trie import Leaf, TokenTrie
from token_trie.show.evaluation import Evaluation, evaluate
from token_trie.show.explain import Explanation, explain
from token_trie.trust.calibration import Calibration
from token_trie.trust.gate import Gate

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BatchPrior",
    "BusyError",
    "CacheStats",
    "Calibration",
    "CalibrationError",
    "CancelledError",
    "Candidate",
    "Catalogue",
    "Choice",
    "ChoiceAnswer",
    "Constraint",
    "ContextError",
    "Contextual",
    "Decision",
    "Evaluation",
    "Examples",
    "Explanation",
    "Form",
    "Gate",
    "Generation",
    "GrammarError",
    "InternalError",
    "Leaf",
    "LimitError",
    "ListDecision",
    "ListItem",
    "LlamaVersionError",
    "NativeMemoryError",
    "PayloadError",
    "Predicate",
    "PredicateAnswer",
    "Record",
    "RecordStats",
    "Score",
    "ScoreAnswer",
    "Stats",
    "Step",
    "StreamHandle",
    "StreamState",
    "Text",
    "Think",
    "TokenTrie",
    "TokenTrieError",
    "ToolCall",
    "VocabularyError",
    "Weights",
    "achoose",
    "achoose_list",
    "achoose_many",
    "achoose_tool",
    "achoose_tool_many",
    "adecide",
    "adecide_many",
    "aexplain",
    "afill",
    "afill_many",
    "ascore",
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
    "evaluate",
    "explain",
    "fill",
    "fill_many",
    "score",
    "score_many",
]
