"""Chat templates put in place of a model's own."""

from __future__ import annotations

from typing import Any

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter


def use_template(llm: Any, monkeypatch: pytest.MonkeyPatch, template: str) -> Any:
    """Let llama-cpp-python render a template, as that of the model's file; return the Llama."""
    bos, eos = (llm._model.token_get_text(token) for token in (llm.token_bos(), llm.token_eos()))
    handler = Jinja2ChatFormatter(template, eos, bos).to_chat_handler()
    monkeypatch.setitem(llm.metadata, "tokenizer.chat_template", template)
    monkeypatch.setitem(llm._chat_handlers, "chat_template.default", handler)
    monkeypatch.setattr(llm, "chat_format", "chat_template.default")
    return llm
