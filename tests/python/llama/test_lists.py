from __future__ import annotations

from typing import Any

import pytest
from token_trie import ArgumentError, StreamHandle, TokenTrie, constrain

COLOURS = ["red", "green", "blue", "greenish", "black"]
PROMPT = "Colours:\n"


def listed(stream: StreamHandle, temperature: float = 2.0, **options: Any) -> list[str]:
    stream.prefill(PROMPT)
    stream.set_token_trie(on_complete="restart", mode="sampled", separator=", ", **options)
    made = "".join(step.text for step in stream.generate(200, temperature=temperature))
    return [item.strip() for item in made.split(", ")]


def test_a_unique_list_under_constrain_has_no_repeat(llm: Any) -> None:
    trie = TokenTrie.from_choices(llm, COLOURS)
    options: dict[str, Any] = {"separator": ",", "unique": True, "exclude": ["black"]}
    for seed in range(5):
        with constrain(llm, trie, "sampled", on_complete="restart", **options) as constraint:
            made = llm.create_completion(PROMPT, max_tokens=64, seed=seed, temperature=2.0)
        items = made["choices"][0]["text"].split(",")
        assert constraint.names == items
        assert constraint.complete
        assert len(set(items)) == len(items)
        assert set(items) <= set(COLOURS) - {"black"}


def test_a_list_of_all_there_is_comes_out_of_a_stream(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, COLOURS)
    with StreamHandle(smollm2, n_ctx=256) as stream:
        for seed in range(5):
            stream.set_seed(seed)
            items = listed(stream, trie=trie, unique=True, min_items=5)
            assert sorted(items) == sorted(COLOURS)
            assert stream.state.stop == "complete"
            assert stream.state.n_items == 5
            items = listed(stream, trie=trie, unique=True, min_items=2, max_items=3, exclude=["red", "green"])
            assert 2 <= len(items) <= 3
            assert len(set(items) & {"blue", "greenish", "black"}) == len(items)


def test_a_list_is_the_same_step_by_step(tiny: Any) -> None:
    trie = TokenTrie.from_choices(tiny, COLOURS)
    made = []
    for jump_forward in (True, False):
        with StreamHandle(tiny, n_ctx=256, jump_forward=jump_forward) as stream:
            made.append(listed(stream, 0.0, trie=trie, unique=True, min_items=5))
    assert made[0] == made[1]
    assert sorted(made[0]) == sorted(COLOURS)


def test_what_a_list_cannot_be_is_refused_and_the_trie_before_stays(tiny: Any) -> None:
    trie = TokenTrie.from_choices(tiny, COLOURS)
    with StreamHandle(tiny, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        stream.set_token_trie(trie, exclude=["red"])
        for options, message in [
            ({"on_complete": "restart", "unique": True, "min_items": 6}, "min_items: 6 without repeats"),
            ({"exclude": COLOURS}, "no member of the set is left"),
            ({"exclude": ["pink"]}, r'exclude\[0\]: "pink" is no member'),
            ({"on_complete": "restart", "separator": 5}, "separator: not a sequence of token ids"),
        ]:
            with pytest.raises(ArgumentError, match=message):
                stream.set_token_trie(trie, **options)
        assert "".join(step.text for step in stream.generate()).strip() in set(COLOURS) - {"red"}
