"""llama.cpp answers with one of a known set.

Examples
--------
>>> decision = token_trie.choose(llm, "Reply to Anna: yes or no?", ["yes", "no"])   # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from token_trie.decisions.calibration import Contextual, Weights
    from token_trie.decisions.choose import choose, score
    from token_trie.decisions.decision import Decision
    from token_trie.decisions.lists import ListDecision, choose_list
    from token_trie.decisions.many import choose_many, score_many
    from token_trie.decisions.options import Think
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
    from token_trie.llama.constrain import constrain
    from token_trie.llama.model_files import open_model
    from token_trie.native.files import demo_model
    from token_trie.questions.decide import decide, decide_many
    from token_trie.questions.form import Form
    from token_trie.questions.question import Choice, Examples, Predicate, Score
    from token_trie.records.fill import Record, fill, fill_many
    from token_trie.records.tools import ToolCall, choose_tool, choose_tool_many
    from token_trie.records.verbatim import Verbatim
    from token_trie.sets.payload import cache_clear, cache_stats
    from token_trie.sets.trie import TokenTrie
    from token_trie.show.evaluation import evaluate
    from token_trie.show.explain import explain
    from token_trie.trust.calibration import Calibration
    from token_trie.trust.gate import Gate

__version__ = "1.0.0"

__all__ = [
    "ArgumentError",
    "BusyError",
    "Calibration",
    "CancelledError",
    "Choice",
    "ContextError",
    "Contextual",
    "Decision",
    "Examples",
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
    "Verbatim",
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
    "open_model",
    "score",
    "score_many",
]

_HOMES = {
    "decisions.calibration": "Contextual Weights",
    "decisions.choose": "choose score",
    "decisions.decision": "Decision",
    "decisions.lists": "ListDecision choose_list",
    "decisions.many": "choose_many score_many",
    "decisions.options": "Think",
    "errors": "ArgumentError BusyError CancelledError ContextError LimitError TokenTrieError VocabularyError",
    "handle": "StreamHandle",
    "llama.constrain": "constrain",
    "llama.model_files": "open_model",
    "native.files": "demo_model",
    "questions.decide": "decide decide_many",
    "questions.form": "Form",
    "questions.question": "Choice Examples Predicate Score",
    "records.fill": "Record fill fill_many",
    "records.tools": "ToolCall choose_tool choose_tool_many",
    "records.verbatim": "Verbatim",
    "sets.payload": "cache_clear cache_stats",
    "sets.trie": "TokenTrie",
    "show.evaluation": "evaluate",
    "show.explain": "explain",
    "trust.calibration": "Calibration",
    "trust.gate": "Gate",
}
_MODULES = {name: f"token_trie.{module}" for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a name with its module when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
