from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from token_trie import TokenTrie, choose, choose_tool
from token_trie.sets.prompt import tokenize_prompt

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "wave", "parameters": {"type": "object", "properties": {}}}}]


def load(path: Path, **options: Any) -> Any:
    return llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, **options)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.name == "token_trie.chat"]
    caplog.clear()
    return said


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: choose(llm, MESSAGES, ["yes", "no"]),
        lambda llm: choose_tool(llm, MESSAGES, TOOLS),
        lambda llm: TokenTrie.from_choices(llm, ["yes", "no"], prompt=MESSAGES),
    ],
)
def test_messages_to_a_model_without_a_template_are_warned_of_once(
    model_paths: dict[str, Path], caplog: pytest.LogCaptureFixture, use: Any
) -> None:
    for _ in range(2):
        llm = load(model_paths["tiny"])
        choose(llm, "Answer:", ["yes", "no"])
        assert told(caplog) == [], "text is the caller's own"
        use(llm)
        use(llm)
        (said,) = told(caplog)
        assert "[INST]" in said
        assert "chat_format=" in said
        llm.close()


def test_who_has_a_form_is_not_warned(
    smollm2: Any, model_paths: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    tokenize_prompt(smollm2, MESSAGES)
    named = load(model_paths["tiny"], chat_format="chatml")
    tokenize_prompt(named, MESSAGES)
    handled = load(model_paths["tiny"], chat_handler=llama_cpp.llama_chat_format.get_chat_completion_handler("gemma"))
    tokenize_prompt(handled, MESSAGES)
    assert told(caplog) == []


@pytest.fixture(autouse=True)
def _listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "token_trie")
