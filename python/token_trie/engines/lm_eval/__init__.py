"""GGUF models in EleutherAI's lm-evaluation-harness, in process.

From its command line, with all of its options::

    python -m token_trie.engines.lm_eval --model token_trie --model_args path=model.gguf,n_ctx=2048 --tasks arc_easy

or from Python, with the model itself, or with its name after `register`::

    lm_eval.simple_evaluate(model=TokenTrieLM("model.gguf"), tasks=["arc_easy"])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from token_trie.engines.lm_eval.model import TokenTrieLM, register

__all__ = ["TokenTrieLM", "register"]


def __getattr__(name: str) -> Any:
    """Import the model when it is used: the module ``scoring`` works without the harness."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from token_trie.engines.lm_eval import model

    return getattr(model, name)
