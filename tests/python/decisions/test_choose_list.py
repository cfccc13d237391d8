from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.drawing import seeded
from token_trie import ArgumentError, ContextError, StreamHandle, TokenTrie, VocabularyError, choose_list
from token_trie.asynchronous import achoose_list

COLOURS = ["red", "green", "blue", "greenish", "black"]
PROMPT = "Colours of the flag:"


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


@pytest.fixture
def stream(smollm2: Any) -> Iterator[StreamHandle]:
    with StreamHandle(smollm2, n_ctx=512) as handle:
        handle.prefill(PROMPT)
        yield handle


def text_of(llm: Any, tokens: list[int]) -> str:
    return str(llm.detokenize(tokens, special=True).decode())


def test_a_list_is_in_the_sequence_which_goes_on_after_it(smollm2: Any, stream: StreamHandle) -> None:
    before = stream.tokens
    chosen = stream.choose_list(Colour, max_items=2)
    assert len(chosen) == len(set(chosen.values)) == 2
    assert all(isinstance(value, Colour) for value in chosen.values)
    assert chosen.texts == chosen.names == [value.value for value in chosen.values]
    assert chosen.stop == "max_items"
    assert str(chosen) == chosen.text == " " + ", ".join(chosen.texts)
    assert stream.tokens == [*before, *chosen.tokens]
    for item in chosen.items:
        assert text_of(smollm2, stream.tokens[item.begin : item.end]).strip() == item.text
        assert 0 < item.probability <= 1
    assert stream.state.span == "none"
    stream.append("\nWhy:")
    assert len(stream.text(3).tokens) == 3


def test_a_list_is_the_text_that_the_tokenizer_would_make(smollm2: Any) -> None:
    for prompt, expected in [("Colours:", " a, b"), ("Colours: ", "a, b"), ("Colours:\n", "a\nb"), ("[", "a, b")]:
        with StreamHandle(smollm2, n_ctx=128) as stream:
            stream.prefill(prompt)
            chosen = stream.choose_list({"a": 1, "b": 2}, min_items=2)
            written = expected if chosen.values == [1, 2] else expected.translate(str.maketrans("ab", "ba"))
            assert text_of(smollm2, stream.tokens) == prompt + written
            assert chosen.stop == "none_left"


def test_the_model_ends_a_list(smollm2: Any, stream: StreamHandle) -> None:
    before = stream.tokens
    stops = set()
    for seed in range(20):
        stream.prefill(before)
        chosen = stream.choose_list(COLOURS, mode="sampled", seed=seed, temperature=4.0)
        stops.add(chosen.stop)
        assert stream.tokens == [*before, *chosen.tokens]
        assert chosen.items[-1].end == len(stream.tokens)
    assert "end" in stops


def test_an_end_of_ones_own(smollm2: Any) -> None:
    with StreamHandle(smollm2, n_ctx=128) as stream:
        stream.prefill("{ x |")
        for end in ("}", smollm2.tokenize(b"}", add_bos=False)):
            assert stream.choose_list(["a", "b", "c"], mode="sampled", seed=1, end_tokens=end).stop in (
                "end",
                "none_left",
            )
        with pytest.raises(ArgumentError, match=r"end_tokens: '.*' is \d+ tokens here; an answer ends in one"):
            stream.choose_list(["a"], end_tokens="the end of this list")


def test_what_is_known_to_end_costs_no_pass(stream: StreamHandle) -> None:
    chosen = stream.choose_list(["red"], separator="; ")
    assert (chosen.values, chosen.stop, chosen.stats.n_passes) == (["red"], "none_left", 0)


def test_repeats_where_they_are_wanted(stream: StreamHandle) -> None:
    chosen = stream.choose_list(["red", "blue"], unique=False, min_items=5, max_items=5)
    assert (len(chosen), chosen.stop) == (5, "max_items")


def test_all_that_is_not_excluded_comes_once(llm: Any) -> None:
    exclude: dict[Any, list[Any]] = {Colour: [Colour.RED], "texts": ["red"], "values": [0]}
    choices: dict[Any, Any] = {Colour: Colour, "texts": ["a", "b", "c", "red"], "values": {"red": 0, "x": 1, "y": 2}}
    for kind, given in choices.items():
        chosen = choose_list(llm, PROMPT, given, min_items=2, exclude=exclude[kind], mode="sampled", seed=1)
        assert 2 <= len(chosen.values) == len(set(chosen.values))
        assert exclude[kind][0] not in chosen.values


def test_a_trie_lists_its_names(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, COLOURS, prompt=PROMPT)
    chosen = choose_list(smollm2, PROMPT, trie, min_items=3, exclude=["red", "green"])
    assert sorted(chosen.values) == sorted(chosen.names) == ["black", "blue", "greenish"]


def test_out_of_tokens_the_list_is_what_was_finished(smollm2: Any, stream: StreamHandle) -> None:
    before = stream.tokens
    whole = stream.choose_list(COLOURS, min_items=5)
    for max_tokens in range(1, len(whole.tokens)):
        stream.prefill(before)
        chosen = stream.choose_list(COLOURS, min_items=5, max_tokens=max_tokens)
        assert chosen.stop == "max_tokens"
        assert chosen.values == whole.values[: len(chosen)]
        assert [item.end for item in whole.items if item.end - len(before) <= max_tokens][len(chosen) :] == []
        assert stream.tokens == [*before, *chosen.tokens]


def test_stepping_token_by_token_gives_the_same(precise: Any) -> None:
    results = []
    for jump_forward in (True, False):
        with StreamHandle(precise, n_ctx=512, jump_forward=jump_forward) as stream:
            stream.prefill("Begin:")
            lists = [
                stream.choose_list(COLOURS, mode=mode, **seeded(mode, 3), max_items=4) for mode in ("greedy", "sampled")
            ]
            results.append((stream.tokens, [chosen.values for chosen in lists]))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("choices", "options", "error", "message"),
    [
        ([], {}, ArgumentError, "choices: none given"),
        (COLOURS, {"min_items": 6}, ArgumentError, "min_items: 6 without repeats, but there are 5"),
        (COLOURS, {"min_items": 3, "max_items": 2}, ArgumentError, "min_items: 3 is more than max_items"),
        (COLOURS, {"min_items": 0}, ArgumentError, "min_items: 0 is not a count from 1"),
        (COLOURS, {"max_items": 0}, ArgumentError, "max_items: 0 is not a count from 1"),
        (COLOURS, {"exclude": COLOURS}, ArgumentError, "no member of the set is left"),
        (COLOURS, {"exclude": ["pink"]}, ArgumentError, r"exclude\[0\]: 'pink' is none of the 5 choices"),
        (COLOURS, {"exclude": "red"}, ArgumentError, "exclude must be a list"),
        (COLOURS, {"mode": "exact"}, ArgumentError, "mode must be one of 'greedy', 'sampled'"),
        (COLOURS, {"temperature": 0}, ArgumentError, "temperature: 0 is not above 0"),
        (COLOURS, {"separator": 5}, ArgumentError, "separator: not a sequence"),
        (COLOURS, {"separator": [10**8]}, VocabularyError, r"separator\[0\]: 100000000 is outside"),
        (["q7" * 4000], {}, ContextError, "do not fit the context"),
        (COLOURS, {"calibrate": 1}, TypeError, r"choose_list\(\) got an unexpected keyword argument 'calibrate'"),
    ],
)
def test_what_is_refused_leaves_the_sequence_and_the_trie(
    smollm2: Any, stream: StreamHandle, choices: Any, options: Any, error: type[Exception], message: str
) -> None:
    before = stream.tokens
    stream.set_token_trie(TokenTrie.from_choices(smollm2, ["yes", "no"], prompt=PROMPT))
    for call in (stream.choose_list, lambda *args, **more: choose_list(smollm2, PROMPT, *args, **more)):
        with pytest.raises(error, match=message):
            call(choices, **options)
    assert stream.tokens == before
    assert "".join(step.text for step in stream.generate()).strip() in ("yes", "no")


def test_lists_under_asyncio(smollm2: Any) -> None:
    chosen = asyncio.run(achoose_list(smollm2, PROMPT, COLOURS, max_items=2))
    assert chosen.values == choose_list(smollm2, PROMPT, COLOURS, max_items=2).values


def test_random_lists_have_no_repeat_and_nothing_excluded(precise: Any) -> None:
    rng = random.Random(5)
    with StreamHandle(precise, n_ctx=512) as stream:
        for seed in range(100):
            stream.prefill("Begin:")
            words = {"".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 12))}
            out = rng.sample(sorted(words), rng.randrange(len(words)))
            n = rng.randint(1, len(words) - len(out))
            chosen = stream.choose_list(words, min_items=n, exclude=out, mode="sampled", temperature=2.0, seed=seed)
            assert n <= len(chosen.values) == len(set(chosen.values))
            assert set(chosen.values) <= words - set(out)
            assert chosen.stop in ("end", "none_left")


def test_a_list_that_was_waited_for_too_long_has_ended(precise: Any) -> None:
    many = [f"item {i}" for i in range(200)]

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(achoose_list(precise, "Begin:", many, min_items=100), 0.001)

    asyncio.run(main())
    assert choose_list(precise, "Begin:", many, max_items=1).stop == "max_items"
