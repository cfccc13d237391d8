from __future__ import annotations

import json
from typing import Any

import pytest
from public_schemas import KEPT, REFUSED, check
from token_trie import ArgumentError, LimitError, choose_tool, fill

OPTIONS: Any = {"mode": "greedy", "max_tokens": 400, "temperature": 0.8, "seed": 5}


def tool(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "do", "parameters": {"type": "object", **schema}, **more}}


@pytest.mark.parametrize("name", KEPT)
def test_an_answer_is_valid_by_the_schema_of_a_program(precise: Any, name: str) -> None:
    schema = KEPT[name]
    check(json.loads(fill(precise, "JSON:", schema, **OPTIONS).text), schema)
    messages = [{"role": "user", "content": "Do."}]
    call = choose_tool(precise, messages, [tool(schema, strict=True)], **OPTIONS)
    assert call.ignored == ()
    check(call.arguments, schema)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_answer_is_kept_to_is_named_and_ignored_in_tools_that_are_not_strict(precise: Any, name: str) -> None:
    place, schema = REFUSED[name]
    messages = [{"role": "user", "content": "Do."}]
    with pytest.raises(ArgumentError, match=f"schema#{place}: "):
        fill(precise, "JSON:", schema)
    with pytest.raises(ArgumentError, match=f"schema#{place}: "):
        choose_tool(precise, messages, [tool(schema, strict=True)])
    try:
        call = choose_tool(precise, messages, [tool(schema)], **OPTIONS)
    except LimitError:
        return
    assert [note.partition(": ")[0] for note in call.ignored] == [f"schema#{place}"]
