"""Bodies of public clients: no content is lost without a word."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from client_requests import CLIENT_REQUESTS, Sent, words_of
from token_trie.records.tool_prompt import ask_for_tools
from token_trie.serve.completions import prompt_of, turns_of
from token_trie.serve.shapes import ChatRequest
from token_trie.sets.prompt import tokenize_prompt

ANSWERED = {name: sent for name, sent in CLIENT_REQUESTS.items() if sent.refused is None}


@pytest.mark.parametrize("sent", ANSWERED.values(), ids=ANSWERED)
def test_each_text_of_the_messages_is_in_the_prompt_or_listed(any_model: Any, sent: Sent) -> None:
    ignored: list[str] = []
    body = ChatRequest.model_validate(sent.body)
    turns = turns_of(body.messages, ignored)
    functions = [tool for tool in body.tools or () if tool["type"] == "function"]
    if functions and body.tool_choice != "none":
        tokens, _ = ask_for_tools(any_model, turns, functions, 4096, must=body.tool_choice not in (None, "auto"))
    else:
        tokens = tokenize_prompt(any_model, prompt_of(any_model, turns), 4096)
    prompt = any_model.detokenize(tokens, special=True).decode()
    for place, text in words_of(sent.body["messages"]).items():
        is_shown = text in prompt or json.dumps(text)[1:-1] in prompt
        assert is_shown or any(place.startswith(note.partition(":")[0]) for note in ignored), (place, ignored)


@pytest.mark.parametrize("sent", CLIENT_REQUESTS.values(), ids=CLIENT_REQUESTS)
def test_each_is_answered_or_refused_with_its_place(url: str, sent: Sent) -> None:
    body = {"max_tokens": 8, "seed": 1, **sent.body, "stop": sent.body.get("stop", ["e", "a"])}
    told = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    if sent.refused is None:
        assert told.status_code == 200, told.text
    else:
        assert told.status_code == 400
        assert told.json()["error"]["param"] == sent.refused
