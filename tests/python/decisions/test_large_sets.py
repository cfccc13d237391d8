"""Sets that are too large to be scored whole are refused with what to do, and searched as before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from token_trie import (
    ArgumentError,
    Contextual,
    StreamHandle,
    TokenTrie,
    choose,
    choose_many,
    explain,
    score,
    score_many,
)
from token_trie.decisions.options import MAX_SCORED
from token_trie.llama.batch import Batch
from token_trie.llama.query import Query

N_MEMBERS = MAX_SCORED // 2 + 1


@pytest.fixture(scope="module")
def large() -> TokenTrie:
    """Return a set with more than two nodes for each member."""
    members = np.arange(N_MEMBERS)
    rows = 259 + np.stack([members % 100, members // 100 % 100, members // 10_000, members % 7], axis=1)
    return TokenTrie.from_arrays(rows.astype(np.int32).ravel(), np.arange(0, 4 * N_MEMBERS + 1, 4))


def on_handle(llm: Any, trie: TokenTrie) -> Any:
    with StreamHandle(llm) as stream:
        stream.prefill("Answer:")
        return stream.explain(trie)


DOORS: dict[str, Callable[[Any, TokenTrie], Any]] = {
    "probabilities": lambda llm, trie: choose(llm, "Answer:", trie, probabilities=True),
    "aligned": lambda llm, trie: choose(llm, "Answer:", trie, mode="aligned"),
    "contextual": lambda llm, trie: choose(llm, "Answer:", trie, calibration=Contextual("N/A"), probabilities=True),
    "many": lambda llm, trie: list(choose_many(llm, ["Answer:"], trie, probabilities=True)),
    "score": lambda llm, trie: score(llm, "Answer:", trie),
    "score_many": lambda llm, trie: list(score_many(llm, ["Answer:"], trie)),
    "explain": lambda llm, trie: explain(llm, "Answer:", trie),
    "handle": on_handle,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_large_set_is_not_scored_whole_unasked(precise: Any, large: TokenTrie, door: str) -> None:
    assert large.n_nodes > MAX_SCORED
    with pytest.raises(ArgumentError, match=rf"all of {N_MEMBERS:,} members, .* n_best .* max_scored=None"):
        DOORS[door](precise, large)


def test_a_large_set_is_searched(precise: Any, large: TokenTrie) -> None:
    found = choose(precise, "Answer:", large, n_best=3)
    assert len(found.candidates) == 3


CITIES = ["Paris", "Pisa", "Lyon", "Lyon 2", "Rome", "Rimini", "Oslo", "Paris"]
PROMPT, EMPTY = "Tower: Eiffel\nCity:", "Tower:\nCity:"


@pytest.mark.parametrize("empty", [EMPTY, "City:\n"])
def test_the_best_of_a_large_set_are_weighed_against_the_prompt_without_its_content(precise: Any, empty: str) -> None:
    contextual = Contextual(empty)
    whole = choose(precise, PROMPT, CITIES, calibration=contextual, probabilities=True)
    scores = score(precise, PROMPT, CITIES, leaf_end="longest")
    found = choose(precise, PROMPT, CITIES, calibration=contextual, max_scored=1, n_best=9)  # all are found
    assert [c.text for c in found.candidates] == [text for text, _ in whole.top(9)]
    assert found.text == whole.text
    assert found.calibration == "contextual"
    assert not found.proved
    for candidate in found.candidates:
        assert candidate.share == pytest.approx(whole.probability(candidate.value), abs=1e-4)
        assert candidate.logprob == pytest.approx(scores[candidate.index], abs=1e-4)
    many = list(choose_many(precise, [PROMPT, PROMPT], CITIES, calibration=contextual, max_scored=1))
    assert [one.text for one in many] == [found.text] * 2
    assert many[0].candidates[0].share == pytest.approx(found.candidates[0].share, abs=1e-4)
    assert many[0].to_dict()["candidates"][0]["share"] == many[0].candidates[0].share


def test_few_members_of_a_large_set_are_scored(precise: Any, large: TokenTrie) -> None:
    few = large.filtered(np.arange(5))
    scores = score(precise, "Answer:", few)
    assert np.isfinite(scores[:5]).all()
    assert choose(precise, "Answer:", few, probabilities=True).index == int(scores[:5].argmax())


def test_a_limit_is_a_count_or_none(precise: Any) -> None:
    assert score(precise, "Answer:", ["yes", "no"], max_scored=None) == pytest.approx(
        score(precise, "Answer:", ["yes", "no"])
    )
    with pytest.raises(ArgumentError, match="max_scored=None"):
        score(precise, "Answer:", ["yes", "no"], max_scored=1)
    for wrong in (0, 1.5):
        with pytest.raises(ArgumentError, match="max_scored"):
            score(precise, "Answer:", ["yes"], max_scored=wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="max_scored"):
            explain(precise, "Answer:", ["yes"], max_scored=wrong)  # type: ignore[arg-type]


def test_a_beam_finds_in_a_full_batch_what_it_finds_alone(tiny: Any) -> None:
    rng = np.random.default_rng(5)
    rows = np.unique(rng.integers(40, 81, (4000, 9), dtype=np.int32), axis=0)
    trie = TokenTrie.from_arrays(rows.ravel(), np.arange(0, rows.size + 1, 9))
    query = Query("best", trie, leaf_end="any", n_best=12, beam_width=24, max_nodes=120)
    prompts = rng.integers(40, 300, (24, 20)).tolist()

    def answers(n_at_once: int) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        with closing(Batch(tiny, n_ctx=512)) as batch:
            for first in range(0, len(prompts), n_at_once):
                tickets = [batch.submit(prompt, query) for prompt in prompts[first : first + n_at_once]]
                found |= {answer.ticket: answer.leaves.tolist() for answer in (batch.next(-1) for _ in tickets)}
        return [found[ticket] for ticket in sorted(found)]

    together = answers(24)
    assert [len(leaves) for leaves in together] == [12] * 24
    assert together == answers(1)
