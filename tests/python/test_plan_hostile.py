"""Plans that fail, recover or are interrupted half-way, and what they leave behind."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, CancelledError, ContextError, StreamHandle, TokenTrieError
from token_trie.llama.batch import Batch, SharedBatch
from token_trie.llama.drivers import Run
from token_trie.plan import Ask, Model, Plan, Query, _run_in, run, run_many
from token_trie.sets.trie import TokenTrie

PROMPT = [5, 6, 7]


@pytest.fixture
def shared(precise: Any) -> Any:
    batch = SharedBatch(Batch(precise))
    yield batch
    batch.batch.close()


def scores(llm: Any) -> Query:
    return Query("scores", TokenTrie.from_choices(llm, [" Paris", " Pa", " Rome"]))


def n_left(shared: SharedBatch) -> int:
    n = 0
    while shared.batch.next(-1) is not None:
        n += 1
    return n


def test_a_plan_that_recovers_in_a_shared_batch_leaves_no_answer_there(precise: Any, shared: SharedBatch) -> None:
    def plan() -> Plan[str]:
        text = Query("text", max_tokens=1)
        with pytest.raises(TokenTrieError):
            yield [Ask(PROMPT, scores(precise), "prior"), Ask(PROMPT, text), Ask([10**6], text)]
        return "recovered"

    assert _run_in(shared, Run(plan()), {}) == "recovered"
    assert n_left(shared) == 0


def test_an_interrupt_between_two_steps_of_a_list_leaves_no_answer_in_a_shared_batch(shared: SharedBatch) -> None:
    class Interrupted(Query):
        def native(self, **_: Any) -> Any:
            raise KeyboardInterrupt

    def plan() -> Plan[None]:
        yield [Ask(PROMPT, Query("text", max_tokens=5)), Ask(PROMPT, Interrupted("text"))]

    with pytest.raises(KeyboardInterrupt):
        _run_in(shared, Run(plan()), {})
    assert n_left(shared) == 0


def test_a_prior_that_was_cancelled_in_a_shared_batch_says_so_when_asked_again(
    precise: Any, shared: SharedBatch
) -> None:
    this = threading.get_ident()

    def cancel(_: int) -> bool:
        shared.cancel_of(this)
        return False

    def plan() -> Plan[None]:
        prior = Ask(PROMPT * 2, scores(precise), "prior")
        with pytest.raises(CancelledError):
            yield [Ask(PROMPT, Query("text", max_tokens=50, until=cancel)), prior]
        yield [prior]

    with pytest.raises(CancelledError):
        _run_in(shared, Run(plan()), {})
    assert n_left(shared) == 0


def test_a_text_that_failed_half_way_is_no_part_of_the_next_prompt(precise: Any) -> None:
    heard: list[int] = []

    def until(token: int) -> bool:
        heard.append(token)
        if len(heard) == 3:
            raise ContextError("enough")
        return False

    def plan(_: Model, tokens: list[int]) -> Plan[Any]:
        with pytest.raises(ContextError, match="enough"):
            yield [Ask(tokens, Query("text", max_tokens=8, until=until))]
        (answer,) = yield [Ask(tokens, scores(precise))]
        return answer.logprobs

    def alone(_: Model, tokens: list[int]) -> Plan[Any]:
        (answer,) = yield [Ask(tokens, scores(precise))]
        return answer.logprobs

    found = []
    for each in (plan, alone):  # a handle is no batch, even just after calls of several threads
        with StreamHandle(precise) as handle:
            handle.prefill(PROMPT)
            found.append(handle.run(each))
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("returned", [None, 3, [], iter([[Ask([1], Query("text"))]])])
def test_a_plan_without_a_yield_is_refused_in_words(precise: Any, returned: Any) -> None:
    with pytest.raises(ArgumentError, match="plan must return a generator, not "):
        run(precise, PROMPT, lambda *_: returned)


def test_one_generator_for_all_rows_is_refused(precise: Any) -> None:
    def plan() -> Plan[None]:
        yield []

    one = plan()
    with pytest.raises(ArgumentError, match="plan must return a new generator each time"):
        list(run_many(precise, [1, 2], lambda *_: one))
