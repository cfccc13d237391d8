from __future__ import annotations

import random
from typing import Any

import pytest
from support.drawing import seeded
from token_trie import StreamHandle, Think, TokenTrie

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SET_ALARM", "NONE"]
COLOURS = ["red", "green", "blue", "greenish", "black"]
SCHEMA = {
    "type": "object",
    "properties": {"action": {"enum": ACTIONS}, "urgent": {"type": "boolean"}, "hour": {"enum": [1, 12, 7]}},
    "required": ["action", "urgent", "hour"],
}
PATHS = {"city": {"Oslo": [300, 301, 302], "Paris": [300, 303]}, "day": {"today": [310], "tomorrow": [311, 312]}}


def write(stream: StreamHandle, rng: random.Random) -> None:
    """Write one random piece."""
    seed = rng.randrange(100)
    kind = rng.randrange(9)
    if kind == 0:
        stream.append(rng.choice(["\nAction:", " and ", "x"]))
    elif kind == 1:
        stream.append([300 + rng.randrange(30) for _ in range(rng.randrange(6))])
    elif kind == 2:
        stream.text(rng.randrange(8), stop=["e", "qq"], temperature=rng.choice([0.0, 1.0]))
    elif kind == 3:
        mode: Any = rng.choice(["exact", "greedy", "sampled", "aligned", "beam"])
        stream.choose(ACTIONS, mode=mode, **seeded(mode, seed))
    elif kind == 4:
        stream.choose(ACTIONS, think=Think(" so", max_tokens=rng.randrange(6)))
    elif kind == 5:
        mode = rng.choice(["greedy", "sampled"])
        stream.choose_list(COLOURS, mode=mode, **seeded(mode, seed), max_items=rng.randint(1, 5))
    elif kind == 6:
        stream.fill(SCHEMA)
    elif kind == 7:
        stream.choose(path=rng.choice(list(PATHS)))
    else:
        with stream.fork() as other:
            other.text(4)
            assert stream.choose(ACTIONS).value in ACTIONS


def payload() -> dict[str, Any]:
    return {
        "descriptors": [
            {"path": path, "leaves": [{"name": name, "tokens": tokens} for name, tokens in members.items()]}
            for path, members in PATHS.items()
        ]
    }


@pytest.mark.parametrize("seed", range(16))
def test_a_program_with_jump_forward_writes_what_it_writes_token_by_token(precise: Any, seed: int) -> None:
    written = []
    for jump_forward in (True, False):
        rng = random.Random(seed)
        with StreamHandle(precise, n_ctx=512, seed=seed, jump_forward=jump_forward) as stream:
            stream.prefill("Begin:")
            stream.set_payload(payload())
            for _ in range(10):
                write(stream, rng)
            written.append(stream.tokens)
    assert written[0] == written[1]


def test_a_turn_from_thought_to_tags(smollm2: Any) -> None:
    with StreamHandle(smollm2, n_ctx=512) as stream:
        stream.prefill("Request: wake me at seven.\nThought:")
        action = stream.choose(ACTIONS, think=Think("\nAction:", max_tokens=16))
        stream.append("\nTags:")
        tags = stream.choose_list(["alarm", "mail", "morning"], max_items=2)
        stream.append("\nUrgent:")
        urgent = stream.choose({"yes": True, "no": False})
        text = smollm2.detokenize(stream.tokens, special=True).decode()
    beginning = f"Request: wake me at seven.\nThought:{action.thought}\nAction: {action.text}"
    assert text == f"{beginning}\nTags: {', '.join(tags.texts)}\nUrgent: {urgent.text}"


def test_unique_sets_of_a_handle_leave_tries_as_they_were(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, COLOURS, prompt="Begin:")
    with StreamHandle(precise, n_ctx=512) as stream:
        stream.prefill("Begin:")
        first = stream.choose_list(trie, min_items=5).values
        stream.prefill("Begin:")
        assert stream.choose_list(trie, min_items=5).values == first
        assert sorted(first) == sorted(COLOURS)
