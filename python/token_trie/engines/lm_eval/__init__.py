"""GGUF models in EleutherAI's lm-evaluation-harness, in process.

By its command line, with all of its options::

    python -m token_trie.engines.lm_eval --model token_trie --model_args path=model.gguf,n_ctx=2048 --tasks arc_easy

or from Python, where `register` lets it know the name, or the model itself is given::

    lm_eval.simple_evaluate(model=TokenTrieLM("model.gguf"), tasks=["arc_easy"])
"""

try:
    from lm_eval.api.registry import model_registry
except ImportError as error:
    raise ImportError(
        f"token_trie.engines.lm_eval needs lm-evaluation-harness: pip install 'token-trie[lm-eval]' ({error})"
    ) from error

from token_trie.engines.lm_eval.model import TokenTrieLM

__all__ = ["TokenTrieLM", "register"]

NAME = "token_trie"


def register() -> None:
    """Let the harness know the model as token_trie; again does nothing."""
    if NAME not in model_registry:
        model_registry.register(NAME, target=TokenTrieLM)
