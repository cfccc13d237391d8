from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie import (
    ArgumentError,
    BusyError,
    CancelledError,
    StreamHandle,
    TokenTrie,
    TokenTrieError,
    VocabularyError,
    score,
)
from token_trie.llama.query import Query
from token_trie.sets.prompt import tokenize_prompt
from tokenized_choices import fit_choices

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SEND_MESSAGE", "SET_ALARM", "SET_TIMER", "NONE"]
PROMPT = "Request: wake me at seven.\nAction:"
NORMALIZATIONS: list[Any] = [None, "tokens", "prior"]


def test_scores_are_those_of_one_by_one(precise: Any) -> None:
    for prompt in (PROMPT, "Answer:", "[INST] Paris or Pizza? [/INST]"):
        fitted = fit_choices(precise, prompt, ACTIONS)
        prefix = fitted.prompt[: fitted.n_kept]
        rows = [tuple(row.tolist()) for row in np.split(fitted.tokens, fitted.offsets[1:-1])]
        expected = [sum(oracle.logprobs(precise, prefix, row)) for row in rows]
        assert score(precise, prompt, ACTIONS) == pytest.approx(expected, abs=1e-4)


def test_on_quantized_models_they_are_as_near_as_the_batch_lets_them(llm: Any) -> None:
    # Measured: up to 0.44 nats a leaf, as llama.cpp rounds otherwise in a batch than alone.
    fitted = fit_choices(llm, PROMPT, ACTIONS)
    rows = [tuple(row.tolist()) for row in np.split(fitted.tokens, fitted.offsets[1:-1])]
    expected = [sum(oracle.logprobs(llm, fitted.prompt[: fitted.n_kept], row)) for row in rows]
    assert score(llm, PROMPT, ACTIONS) == pytest.approx(expected, abs=1.5)


@settings(max_examples=25)
@given(st.sets(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=12))
def test_answers_that_exclude_each_other_sum_to_no_more_than_the_set_has(precise: Any, texts: set[str]) -> None:
    choices = sorted(texts)
    fitted = fit_choices(precise, "Answer:", choices)
    prefix = fitted.prompt[: fitted.n_kept]
    rows = [tuple(row.tolist()) for row in np.split(fitted.tokens, fitted.offsets[1:-1])]
    # A text begins with a member if it begins with one that no other member begins.
    shortest = [row for row in rows if not any(row != other and row[: len(other)] == other for other in rows)]
    whole = sum(np.exp(sum(oracle.logprobs(precise, prefix, row))) for row in shortest)
    total = np.exp(score(precise, "Answer:", choices, leaf_end="longest")).sum()
    assert total <= whole * 1.001
    if len(shortest) == len(rows):
        assert total == pytest.approx(whole, rel=1e-3)


def test_an_end_may_be_part_of_the_score(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ACTIONS, prompt=PROMPT)
    prompt = tokenize_prompt(precise, PROMPT)
    plain, ended = score(precise, PROMPT, trie), score(precise, PROMPT, trie, leaf_end="follow")
    for leaf, (before, after) in enumerate(zip(plain, ended, strict=True)):
        p = oracle.next_probabilities(precise, [*prompt, *trie[leaf].tokens])
        assert after - before == pytest.approx(np.log(p[list(oracle.end_of_generation(precise))].sum()), abs=1e-4)


def test_normalized_by_tokens_and_by_prior(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ACTIONS, prompt=PROMPT)
    plain = score(precise, PROMPT, trie)
    lengths = [len(leaf.tokens) for leaf in trie]
    assert score(precise, PROMPT, trie, normalize="tokens") == pytest.approx(plain / lengths, abs=1e-6)
    prior = [sum(oracle.logprobs(precise, [precise.token_bos()], leaf.tokens)) for leaf in trie]
    assert score(precise, PROMPT, trie, normalize="prior") == pytest.approx(plain - prior, abs=2e-4)


def test_branches_alone_are_renormalized(llm: Any) -> None:
    branches = score(llm, PROMPT, ACTIONS, branches=True)
    assert np.exp(branches).sum() == pytest.approx(1, abs=1e-4)
    assert np.exp(score(llm, PROMPT, ["whatever it is"], branches=True)) == 1


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_a_long_wrong_answer_does_not_win_by_its_length(llm: Any, normalize: Any) -> None:
    # SGLang issue 523: the many sure tokens of a long word outweigh its improbable beginning.
    choices = ["Paris", "Antidisestablishmentarianism"]
    scores = score(llm, "The capital of France is", choices, normalize=normalize)
    assert choices[int(scores.argmax())] == "Paris"


def test_the_token_at_the_seam_belongs_to_no_choice(precise: Any) -> None:
    # SGLang issue 1257: the score of the prompt's last token was added to each choice.
    for prompt in ("Answer:", "Answer: ", 'Answer: "'):
        fitted = fit_choices(precise, prompt, ["yes", "no"])
        rows = [tuple(row.tolist()) for row in np.split(fitted.tokens, fitted.offsets[1:-1])]
        each = [oracle.logprobs(precise, fitted.prompt[: fitted.n_kept], row) for row in rows]
        assert score(precise, prompt, ["yes", "no"]) == pytest.approx([sum(one) for one in each], abs=1e-4)


def test_a_trailing_space_changes_nothing(llm: Any) -> None:
    plain = score(llm, "Is the sky blue? Answer:", ["yes", "no"])
    assert score(llm, "Is the sky blue? Answer: ", ["yes", "no"]) == pytest.approx(plain, abs=1e-6)
    assert np.isfinite(score(llm, 'Is the sky blue? Answer: "', ["yes", "no"])).all()


def test_equal_texts_have_one_score_each_in_its_position(llm: Any) -> None:
    scores = score(llm, "Pick:", ["b", "a", "b"])
    assert scores.shape == (3,)
    assert scores[0] == scores[2] != scores[1]


def test_equal_sequences_under_two_names_are_reported_and_scored_once(precise: Any) -> None:
    trie = TokenTrie.from_sequences({"first": [10, 11], "second": [12], "same": [10, 11]})
    assert trie.aliases == {"same": "first"}
    assert score(precise, PROMPT, trie).shape == (2,)


def test_more_leaves_than_a_wave_has_room_for(precise: Any) -> None:
    choices = [f"item {i}" for i in range(600)]
    scores = score(precise, "Pick", choices)
    assert scores[[0, 299, 599]] == pytest.approx(
        [score(precise, "Pick", [choices[i]])[0] for i in (0, 299, 599)], abs=1e-4
    )


def test_a_handle_in_the_middle_of_a_span_is_left_as_it_is(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, ACTIONS, prompt=PROMPT)
    other = TokenTrie.from_choices(smollm2, ["red", "green"], prompt="A colour:")
    outcomes = []
    for scored in (False, True):
        with StreamHandle(smollm2, n_ctx=256, seed=7) as stream:
            stream.prefill(PROMPT)
            stream.set_token_trie(trie, mode="sampled")
            steps = list(stream.generate(max_tokens=1, temperature=2.0))
            before = stream.state
            if scored:
                stream.score(other)
                stream.score(other, prompt="A colour:", normalize="prior")
                # It has caught up, which it would have had to anyway.
                assert stream.state == replace(before, n_cached=before.n_tokens)
            steps += stream.generate(temperature=2.0)
            outcomes.append(steps)
    assert [step.token for step in outcomes[0]] == [step.token for step in outcomes[1]]
    # A quantized model's kernels may round otherwise where it catches up in other batches.
    assert [s.logprob for s in outcomes[0]] == pytest.approx([s.logprob for s in outcomes[1]], abs=1e-2)


def test_a_handle_scores_after_its_sequence_or_after_a_prompt(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ACTIONS, prompt=PROMPT)
    with StreamHandle(precise, n_ctx=256) as stream:
        stream.prefill("something else")
        assert stream.score(trie, prompt=PROMPT) == pytest.approx(score(precise, PROMPT, trie), abs=1e-4)
        assert stream.score(ACTIONS, prompt=PROMPT) == pytest.approx(score(precise, PROMPT, trie), abs=1e-4)
        stream.prefill(PROMPT)
        assert stream.score(trie) == pytest.approx(score(precise, PROMPT, trie), abs=1e-4)


def test_a_score_does_not_depend_on_the_trie_that_is_set_nor_on_what_follows_it(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ACTIONS, prompt=PROMPT)
    other = TokenTrie.from_sequences({"a": [10], "b": [11]})
    with StreamHandle(precise, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        expected = stream.score(trie, leaf_end="follow")
        stream.set_token_trie(trie)
        assert np.array_equal(stream.score(trie, leaf_end="follow"), expected)
        stream.set_token_trie(trie, on_complete="release")
        assert np.array_equal(stream.score(trie, leaf_end="follow"), expected)
        stream.set_token_trie(other)
        assert np.array_equal(stream.score(trie, leaf_end="follow"), expected)
        stream.clear_token_trie()
        assert np.array_equal(stream.score(trie, leaf_end="follow"), expected)


def test_nobody_sets_another_trie_in_the_middle_of_a_score(precise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [TokenTrie.from_choices(precise, [name], prompt=PROMPT) for name in ("Paris", "Pizza")]
    with StreamHandle(precise, n_ctx=256) as handle:
        handle.prefill(PROMPT)
        handle.set_token_trie(tries[0])
        expected = handle.score(tries[0])
        refused: list[BusyError] = []

        def interfere(*arguments: Any, **options: Any) -> Any:
            def set_another() -> None:
                try:
                    handle.set_token_trie(tries[1])
                except BusyError as error:
                    refused.append(error)

            read = params(*arguments, **options)
            thread = threading.Thread(target=set_another)
            thread.start()
            thread.join()
            return read

        params = Query.native
        monkeypatch.setattr(Query, "native", interfere)
        assert handle.score(tries[0]) == expected
        assert len(refused) == 1


def test_a_handle_on_a_file_scores_tries_and_texts(model_paths: dict[str, Path], precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ACTIONS, prompt=PROMPT)
    with StreamHandle(model_paths["tiny"], n_ctx=256) as stream:
        assert stream.score(trie, prompt=PROMPT) == pytest.approx(score(precise, PROMPT, trie), abs=0.1)
        assert stream.score(ACTIONS, prompt=PROMPT) == pytest.approx(score(precise, PROMPT, trie), abs=0.1)


def test_threads_with_contexts_of_their_own_share_a_trie(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, [f"item {i}" for i in range(50)], prompt="Pick")
    prompts = [f"{i}: Pick" for i in range(8)]
    results: list[Any] = [None] * 8
    with StreamHandle(precise, n_ctx=256) as alone:
        serial = [alone.score(trie, prompt=prompt) for prompt in prompts]
    handles = [StreamHandle(precise, n_ctx=256) for _ in prompts]

    def work(i: int) -> None:
        results[i] = [handles[i].score(trie, prompt=prompts[i]) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for handle in handles:
        handle.close()
    for i, expected in enumerate(serial):
        for scores in results[i]:
            assert np.array_equal(scores, expected)


@pytest.fixture
def long_score(smollm2: Any) -> Iterator[tuple[StreamHandle, TokenTrie]]:
    """Yield a handle and a set that takes it seconds to score."""
    trie = TokenTrie.from_choices(smollm2, [f"{i} of them" for i in range(3000)], prompt="Pick")
    with StreamHandle(smollm2, n_ctx=256) as stream:
        stream.prefill("Pick")
        yield stream, trie


def test_a_score_is_cancelled_from_another_thread_and_the_handle_goes_on(long_score: Any) -> None:
    stream, trie = long_score
    failures: list[BaseException] = []

    def work() -> None:
        try:
            stream.score(trie)
        except TokenTrieError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    refused = None
    while thread.is_alive() and refused is None:
        try:
            stream.state  # noqa: B018
        except BusyError as error:
            refused = error
            with pytest.raises(BusyError):
                stream.clear_token_trie()
    while thread.is_alive():
        stream.cancel()
        thread.join(0.01)
    assert isinstance(failures[0], CancelledError)
    assert refused is not None
    assert len(list(stream.generate(max_tokens=3))) == 3


@pytest.mark.parametrize("n_threads_batch", [1, 2])
def test_an_interrupt_from_the_keyboard_ends_a_score(model_paths: dict[str, Path], n_threads_batch: int) -> None:
    # A shell's background job, as a test run may be, ignores the interrupt unless told otherwise.
    code = f"""
import signal, llama_cpp, token_trie
signal.signal(signal.SIGINT, signal.default_int_handler)
options = dict(n_threads=1, n_threads_batch={n_threads_batch}, n_ctx=512, verbose=False)
llm = llama_cpp.Llama({str(model_paths["smollm2"])!r}, **options)
trie = token_trie.TokenTrie.from_choices(llm, [f"{{i}} of them" for i in range(20000)], prompt="Pick")
token_trie.score(llm, "Pick", ["one", "two"])
print("scoring", flush=True)
token_trie.score(llm, "Pick", trie, max_scored=None)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
        assert host.stdout is not None
        host.stdout.readline()
        time.sleep(1)
        host.send_signal(signal.SIGINT)
        host.communicate(timeout=60)
    assert host.returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((None, ACTIONS), {}, ArgumentError, "prompt must be .*, not NoneType"),
        (("Pick:", []), {}, ArgumentError, "choices: none given"),
        (("Pick:", ACTIONS), {"leaf_end": "soon"}, ArgumentError, "leaf_end must be one of"),
        (("Pick:", ACTIONS), {"leading_space": 2}, ArgumentError, "leading_space: 2 is not True, False or None"),
        (("Pick:", ACTIONS), {"normalize": "softly"}, ArgumentError, "normalize must be one of"),
        (("Pick:", TokenTrie.from_sequences({"a": [10**6]})), {}, VocabularyError, "outside the vocabulary"),
    ],
)
def test_bad_arguments_are_refused(
    precise: Any, args: tuple[Any, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        score(precise, *args, **options)
