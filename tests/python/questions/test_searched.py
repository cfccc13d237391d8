"""Questions whose options are the members of a set: the best are searched, and weighed against the question alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie import (
    ArgumentError,
    Calibration,
    Choice,
    ContextError,
    Form,
    Predicate,
    StreamHandle,
    TokenTrie,
    VocabularyError,
    decide,
    decide_many,
    evaluate,
    score,
)
from token_trie.native.lifetime import attachment
from token_trie.questions.options import PROFILES
from token_trie.questions.question import MAX_WHOLE, Examples
from token_trie.questions.searched import N_FOUND

STATE, ASK = "I was charged twice for Pizza in Paris.", "Which team?"
PROMPT = "{}\n\nQuestion: Which team?\nAnswer:"
OF_MANY = "Which team?\nRequest: {}\nAnswer:"
TEXTS = ["yes Paris", "sales", "Pizza", "Pizza Paris", "no"]


@pytest.fixture(scope="module")
def few(precise: Any) -> TokenTrie:
    return TokenTrie.from_choices(precise, TEXTS, prompt=PROMPT.format(STATE))


def made(n: int, seed: int = 0, length: int = 4) -> TokenTrie:
    """Return a set of n members of up to so many tokens."""
    rng = np.random.default_rng(seed)
    rows: dict[tuple[int, ...], None] = {}
    while len(rows) < n:
        rows[tuple((259 + rng.integers(0, 100, rng.integers(1, length + 1))).tolist())] = None
    return TokenTrie.from_sequences({f"m{i}": list(row) for i, row in enumerate(rows)})


@pytest.fixture(scope="module")
def many() -> TokenTrie:
    return made(MAX_WHOLE + 200)


def weights_of(
    llm: Any, trie: TokenTrie, state: str = STATE, *, is_raw: bool = False, prompt: str | None = None
) -> np.ndarray:
    """Return the weight of each member, by the scores of all."""
    prompt = prompt or (OF_MANY if len(trie) > MAX_WHOLE else PROMPT)
    own = score(llm, prompt.format(state), trie, leaf_end="longest")
    if is_raw:
        return own
    lengths = np.array([len(leaf.tokens) for leaf in trie])
    return (own - score(llm, prompt.format("N/A"), trie, leaf_end="longest")) / np.sqrt(lengths)


def shares(weights: Any) -> list[float]:
    p = np.exp(np.array(weights) - np.max(weights))
    return list(p / p.sum())


@pytest.mark.parametrize("calibration", ["contextual", None])
def test_a_small_set_is_answered_as_the_same_options_are(precise: Any, few: TokenTrie, calibration: Any) -> None:
    expected = decide(precise, STATE, Choice(ASK, TEXTS), calibration=calibration)
    for options in (few, TEXTS, iter(TEXTS)):
        found = decide(precise, STATE, Choice(ASK, options, top=9), calibration=calibration)  # type: ignore[call-overload]
        assert found.value == expected.value
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
        assert list(found.probabilities.values()) == sorted(found.probabilities.values(), reverse=True)
        assert found.mass == pytest.approx(expected.mass, rel=1e-3)
        assert found.calibration == expected.calibration
        assert (found.gap, found.rest, found.proved, found.source) == (0.0, 0.0, True, "sum")
        assert found.profile == "plain"
        assert sum(found.probabilities.values()) == pytest.approx(1)
    assert expected.proved
    assert expected.candidates == ()


def test_scores_are_those_of_one_token_after_the_other(precise: Any, few: TokenTrie) -> None:
    found = decide(precise, STATE, Choice(ASK, few), calibration=None)
    for one in found.candidates:
        prompt = precise.tokenize(PROMPT.format(STATE).encode())
        tokens = few[one.index].tokens
        longer = [leaf.tokens for leaf in few if leaf.tokens[: len(tokens)] == tokens and leaf.tokens != tokens]
        own = sum(oracle.logprobs(precise, prompt, tokens))
        going_on = sum(math.exp(oracle.logprobs(precise, prompt, more)[len(tokens)]) for more in longer)
        assert one.logprob == pytest.approx(own + math.log1p(-going_on), abs=1e-4)


@pytest.mark.parametrize("top", [1, 5, 300])
def test_the_best_of_a_large_set_are_proved_or_bounded(precise: Any, many: TokenTrie, top: int) -> None:
    weights = weights_of(precise, many, is_raw=True)
    found = decide(precise, STATE, Choice(ASK, many, top=top), calibration=None)
    kept = [one.index for one in found.candidates]
    assert [one.logprob for one in found.candidates] == pytest.approx(weights[kept].tolist(), abs=1e-4)
    assert [one.share for one in found.candidates] == pytest.approx(shares(weights[kept]), abs=1e-5)
    assert list(found.probabilities) == [many[i].name for i in kept]
    others = np.delete(weights, kept)
    if math.isfinite(found.gap):
        assert len(kept) == top
        assert others.max() <= weights[kept].min() + found.gap + 1e-4
        assert found.gap > 0 or sorted(kept) == sorted(np.argsort(-weights)[:top].tolist())
    assert found.proved == (found.gap == 0)
    assert found.source == ("proof" if found.proved else "bound")
    assert found.mass == pytest.approx(np.exp(weights[kept]).sum(), rel=1e-3)
    assert np.exp(others).sum() <= found.rest + 1e-5


def test_the_best_that_were_found_are_weighed_against_the_question_alone(precise: Any, many: TokenTrie) -> None:
    weights = weights_of(precise, many)
    raw = weights_of(precise, many, is_raw=True)
    found = decide(precise, STATE, Choice(ASK, many, top=N_FOUND))
    kept = [one.index for one in found.candidates]
    assert len(kept) == N_FOUND
    assert weights[kept].tolist() == pytest.approx(sorted(weights[kept], reverse=True), abs=1e-3)
    assert [one.share for one in found.candidates] == pytest.approx(shares(weights[kept]), abs=1e-3)
    assert (found.gap, found.proved, found.source) == (math.inf, False, "bound")
    assert np.exp(np.delete(raw, kept)).sum() <= found.rest + 1e-5
    best = decide(precise, STATE, Choice(ASK, many))
    assert list(best.probabilities) == list(found.probabilities)[:5]
    assert list(best.probabilities.values()) == pytest.approx(shares(weights[kept[:5]]), abs=1e-3)
    assert (best.mass, best.rest) == pytest.approx((found.mass, found.rest), rel=1e-3)


@settings(max_examples=25)
@given(st.integers(1, MAX_WHOLE + 60), st.integers(1, 40), st.integers(0, 99), st.booleans())
def test_any_set_is_answered_by_its_best(precise: Any, n: int, top: int, seed: int, is_raw: bool) -> None:
    trie = made(n, seed)
    weights = weights_of(precise, trie, is_raw=is_raw)
    found = decide(precise, STATE, Choice(ASK, trie, top=top), calibration=None if is_raw else "contextual")
    kept = [one.index for one in found.candidates]
    assert [one.share for one in found.candidates] == pytest.approx(shares(weights[kept]), abs=1e-3)
    if found.proved:
        assert len(kept) == min(n, top)
        assert weights[kept].tolist() == pytest.approx(np.sort(weights)[::-1][: len(kept)].tolist(), abs=1e-3)
    assert n > MAX_WHOLE or found.proved


def test_answers_do_not_depend_on_their_company(precise: Any, few: TokenTrie, many: TokenTrie) -> None:
    questions: dict[str, Any] = {
        "large": Choice(ASK, many),
        "urgent": Predicate("Is it urgent?"),
        "small": Choice(ASK, few),
        "described": Choice(ASK, TEXTS),
    }
    together = decide(precise, STATE, questions)
    others = list(decide_many(precise, ["N/A", STATE, "Pizza"], questions))
    with StreamHandle(precise, n_ctx=512) as handle:
        handle.prefill(STATE)
        before = handle.tokens
        on_handle = handle.decide(questions)
        assert handle.tokens == before
    after_text = decide(precise, STATE, questions["large"], form="unlisted")
    assert list(on_handle.pop("large").probabilities) == list(after_text.probabilities)
    for name, question in questions.items():
        alone = decide(precise, STATE, question)
        for found in (together[name], others[1][name], on_handle.get(name, alone)):
            assert list(found.probabilities) == list(alone.probabilities)
            assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-3)
            assert found.mass == pytest.approx(alone.mass, rel=1e-3)


def test_the_question_alone_is_read_where_it_does_not_fit_beside_the_state(precise: Any, few: TokenTrie) -> None:
    state = "a " * 490
    (expected,) = decide_many(precise, [state], Choice(ASK, few), n_ctx=2048)
    attachment(precise).known.clear()
    with StreamHandle(precise, n_ctx=1024) as handle:
        handle.prefill(state)
        before = handle.tokens
        on_handle = handle.decide(Choice(ASK, few))
        assert handle.tokens == before
    for found in (decide(precise, state, Choice(ASK, few)), on_handle):
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-3)


def test_it_is_asked_after_the_text_of_a_handle(precise: Any, model_paths: dict[str, Path], few: TokenTrie) -> None:
    question = Choice(ASK, few)
    form = Form("A shop's tickets.\n\n{{ state }}\n\nQuestion: {{ instructions }}\nAnswer:")
    for llm, within in ((precise, 1e-4), (model_paths["tiny"], 1e-2)):
        with StreamHandle(llm, n_ctx=512) as handle:
            handle.prefill("A shop's tickets.\n\n")
            found = handle.decide(question, state=STATE)
            expected = decide(precise, STATE, question, form=form)
            assert found.probabilities == pytest.approx(expected.probabilities, abs=within)
            again = handle.decide(question, state=STATE)
            assert again.probabilities == pytest.approx(found.probabilities, abs=within)


def test_a_filter_leaves_indices_and_names(precise: Any, many: TokenTrie) -> None:
    keep = np.arange(len(many)) % 2 == 1
    left = many.filtered(keep)
    assert len(left) <= MAX_WHOLE
    found = decide(precise, STATE, Choice(ASK, left))
    weights = np.where(keep, weights_of(precise, many, prompt=PROMPT), -np.inf)
    best = np.argsort(-weights)[:5].tolist()
    assert [one.index for one in found.candidates] == best
    assert list(found.probabilities) == [f"m{i}" for i in best]
    assert found.proved
    larger = many.filtered(np.arange(len(many)) != best[0])
    assert best[0] not in [one.index for one in decide(precise, STATE, Choice(ASK, larger, top=40)).candidates]


def test_a_set_in_a_file_answers_as_the_set(precise: Any, many: TokenTrie, tmp_path: Path) -> None:
    many.save(tmp_path / "many.trie")
    opened = TokenTrie.open(tmp_path / "many.trie")
    found, expected = (decide(precise, STATE, Choice(ASK, trie)) for trie in (opened, many))
    assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)


def test_members_of_one_name_are_one_value(precise: Any) -> None:
    pairs = [("S1", "yes Paris"), ("S2", "no"), ("S1", "Pizza"), ("S3", "sales")]
    tokens = [precise.tokenize(text.encode(), add_bos=False) for _, text in pairs]
    offsets = np.cumsum([0, *map(len, tokens)])
    trie = TokenTrie.from_arrays(np.concatenate(tokens).astype(np.int32), offsets, [name for name, _ in pairs])
    found = decide(precise, STATE, Choice(ASK, trie))
    assert len(found.candidates) == 4
    by_name: dict[str, float] = {}
    for one in found.candidates:
        by_name[one.value] = by_name.get(one.value, 0.0) + (one.share or 0)
    assert found.probabilities == pytest.approx(by_name)
    assert found.value == max(by_name, key=by_name.__getitem__)


def test_options_of_decide_work(precise: Any, few: TokenTrie, many: TokenTrie) -> None:
    question = Choice(ASK, many)
    usual = decide(precise, STATE, question)
    form = Form("{{ instructions }}\nRequest: {{ state }}\nAnswer:")
    assert decide(precise, STATE, question, form=form).probabilities == usual.probabilities
    with pytest.raises(ArgumentError, match="orders: has no effect"):
        decide(precise, STATE, question, orders=4)
    form = Form("{{ instructions }} {{ state }}\nAnswer:", temperature=2.0)
    tempered = decide(precise, STATE, Choice(ASK, few), form=form)
    expected = decide(precise, STATE, Choice(ASK, TEXTS), form=form)
    assert tempered.probabilities == pytest.approx(expected.probabilities, abs=1e-5)


def test_an_answer_is_equal_to_the_last_bit_where_it_is_to_be(smollm2: Any) -> None:
    texts = ["red belt", "blue belt", "red hat"]
    small = Choice("What?", TokenTrie.from_choices(smollm2, texts, leading_space=True))
    large = Choice("What?", made(MAX_WHOLE + 1, length=2))
    questions = {"small": small, "large": large, "described": Choice("What?", ["one", "two"])}
    alone = decide(smollm2, STATE, large, reproducible=True)
    decide(smollm2, "Something else", small)
    together = decide(smollm2, STATE, questions, reproducible=True)
    assert together["large"] == alone
    assert next(decide_many(smollm2, [STATE], small, reproducible=True)) == together["small"]


def test_a_profile_gives_its_first_form_that_lists_nothing(tiny: Any, few: TokenTrie) -> None:
    known = attachment(tiny).known
    _, second = PROFILES["large instruct"][Choice]
    try:
        known["profile"] = "large instruct"
        found = decide(tiny, STATE, Choice(ASK, few))
        assert found.profile == "large instruct"
        assert found.probabilities == decide(tiny, STATE, Choice(ASK, few), form=second).probabilities
    finally:
        del known["profile"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "listed"}, "form: a set is asked about in one form, which does not list"),
        ({"form": "letters"}, "form: a set is asked about in one form, which does not list"),
        ({"examples": Examples(["It broke."], ["sales"])}, "examples: go with options that are all scored"),
        ({"calibration": "batch"}, "calibration: a set that is searched goes with 'contextual' or None"),
    ],
)
def test_what_needs_a_list_is_refused_by_name(
    precise: Any, few: TokenTrie, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        list(decide_many(precise, [STATE], Choice(ASK, few), **options))
    with pytest.raises(ArgumentError, match=f"questions\\['team'\\]: {message}|{message}"):
        list(decide_many(precise, [STATE], {"team": Choice(ASK, few)}, **options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"other": True}, "other: goes with options that are all scored"),
        ({"top": 0}, "top"),
        ({"top": 1.5}, "top"),
        ({"options": {"a": "first", "b": "second"}, "top": 2}, "top: goes with a set or texts"),
        ({"options": [], "top": 2}, "choices: none given"),
        ({"options": [1, 2], "top": 2}, r"choices\[0\] must be str, not int"),
    ],
)
def test_a_question_with_a_set_is_checked_where_it_is_made(
    few: TokenTrie, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        Choice(ASK, **{"options": few, **arguments})


def test_a_set_that_does_not_fit_the_model_is_refused(precise: Any, smollm2: Any) -> None:
    other = TokenTrie.from_choices(smollm2, TEXTS)
    with pytest.raises(VocabularyError, match=r"questions\['team'\]: .*another vocabulary"):
        decide(precise, STATE, {"team": Choice(ASK, other)})
    long = TokenTrie.from_sequences({"long": [300] * 2000})
    with pytest.raises(ContextError):
        decide(precise, STATE, Choice(ASK, long))


def test_what_needs_all_scores_refuses_a_set(precise: Any, few: TokenTrie) -> None:
    question: Any = Choice(ASK, few)
    with pytest.raises(ArgumentError, match="choices: a set that is searched gives no scores of all answers"):
        evaluate(precise, [STATE] * 4, ["sales"] * 4, question)
    with pytest.raises(ArgumentError, match="choices: a set that is searched gives no scores of all answers"):
        Calibration.fit(precise, [STATE] * 4, ["sales"] * 4, question, kind="bias")
