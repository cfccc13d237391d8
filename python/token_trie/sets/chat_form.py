"""A warning for models whose file has no chat template."""

from __future__ import annotations

import logging

from token_trie.native.core import Llama
from token_trie.native.lease import attachment

_logger = logging.getLogger("token_trie.chat")


def has_chat_template(llm: Llama) -> bool:
    """Tell whether messages get a template that is the model's own, or that its Llama was given."""
    return llm.chat_handler is not None or llm.chat_format != "llama-2" or "tokenizer.chat_template" in llm.metadata


def warn_of_fallback(llm: Llama) -> None:
    """Warn, once a Llama, that its file has no chat template, so that messages get Llama 2's."""
    known = attachment(llm).known
    if has_chat_template(llm) or "warned of its chat template" in known:
        return
    known["warned of its chat template"] = True
    _logger.warning(
        "the model's file has no chat template, and llama-cpp-python puts messages into Llama 2's ([INST] … "
        "[/INST]), with which few models were trained. Make the Llama with chat_format=… (say, 'gemma' or 'chatml') or "
        "chat_handler=…, or give a text in the model's own template in place of messages. (Said once a Llama.)"
    )
