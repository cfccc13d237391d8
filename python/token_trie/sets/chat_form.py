"""What form messages get of a model that has none of its own."""

from __future__ import annotations

import logging

from token_trie.native.core import Llama
from token_trie.native.lease import attachment

_logger = logging.getLogger("token_trie.chat")


def warn_of_fallback(llm: Llama) -> None:
    """Say once a Llama that its file has no chat template, and that messages are put into Llama 2's form then."""
    has_own = llm.chat_handler is not None or llm.chat_format != "llama-2" or "tokenizer.chat_template" in llm.metadata
    known = attachment(llm).known
    if has_own or "told of its chat form" in known:
        return
    known["told of its chat form"] = True
    _logger.warning(
        "the model's file has no chat template, and llama-cpp-python puts messages into Llama 2's form ([INST] … "
        "[/INST]), in which few models were trained. Make the Llama with chat_format=… (say, 'gemma' or 'chatml') or "
        "chat_handler=…, or give a text in the model's own form in place of messages. (Said once a Llama.)"
    )
