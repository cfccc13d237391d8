"""`choose` by whole answers: exact, aligned, beam."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import oracle
import pytest
from support.drawing import seeded
from token_trie import ArgumentError, ContextError, TokenTrie, choose, choose_many, score
from token_trie.cli import ask
from tokenized_choices import fit_choices

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SEND_MESSAGE", "SET_ALARM", "SET_TIMER", "NONE"]
PROMPT = "Request: wake me at seven.\nAction:"


def test_the_exact_answer_is_the_best_of_all_scores(llm: Any) -> None:
    for request in ("wake me at seven", "thank you"):
        prompt = f"Request: {request}.\nAction:"
        scores = score(llm, prompt, ACTIONS, leaf_end="longest")
        decision = choose(llm, prompt, ACTIONS, probabilities=True)
        assert decision.index == int(scores.argmax())
        assert decision.value == ACTIONS[decision.index]
        assert decision.logprob == pytest.approx(scores.max(), abs=1e-6)
        assert decision.probabilities == pytest.approx(np.exp(scores) / np.exp(scores).sum(), abs=1e-6)
        assert decision.mass == pytest.approx(np.exp(scores).sum(), rel=1e-5)


def test_probabilities_sum_to_one_and_have_their_figures(llm: Any) -> None:
    decision = choose(llm, PROMPT, ACTIONS, probabilities=True, n_best=3)
    p = decision.probabilities
    assert p is not None
    assert p.shape == (len(ACTIONS),)
    assert p.sum() == pytest.approx(1)
    assert decision.entropy == pytest.approx(-sum(x * math.log(x) for x in p if x > 0))
    best = sorted(p, reverse=True)
    assert decision.margin == pytest.approx(best[0] - best[1])
    assert [chance for _, chance in decision.top(3)] == pytest.approx(best[:3])
    assert [c.value for c in decision.candidates] == [name for name, _ in decision.top(3)]
    assert decision.gap == 0


def test_mass_shows_when_none_of_the_answers_fits(llm: Any) -> None:
    fits = choose(llm, "The capital of France is", ["Paris", "London", "the"], probabilities=True)
    does_not = choose(llm, "The capital of France is", ["quinoa", "hexagonal"], probabilities=True)
    assert fits.mass is not None
    assert does_not.mass is not None
    assert fits.mass > 0.1
    assert does_not.mass < 1e-4
    assert (fits.fits, does_not.fits) == (True, False)
    searched = choose(llm, "The capital of France is", ["quinoa", "hexagonal"])
    many = list(choose_many(llm, ["The capital of France is"], ["quinoa", "hexagonal"]))
    assert (searched.fits, many[0].fits) == (False, False)  # as no search could find more


def test_greedy_and_exact_may_differ_and_both_are_shown(llm: Any) -> None:
    # guidance issue 564: of "skill" and "cloud" for the sky, the walk takes the token "sk" that "sky" begins with.
    prompt = "The word that goes best with blue and up above is:"
    greedy, exact = (choose(llm, prompt, ["skill", "cloud"], mode=mode) for mode in ("greedy", "exact"))
    fitted = fit_choices(llm, prompt, ["skill", "cloud"])
    rows = [tuple(row.tolist()) for row in np.split(fitted.tokens, fitted.offsets[1:-1])]
    prefix = fitted.prompt[: fitted.n_kept]
    assert greedy.tokens == oracle.greedy_walk(llm, prefix, set(rows))[0]
    whole = [sum(oracle.logprobs(llm, prefix, row)) for row in rows]
    assert exact.index == int(np.argmax(whole))
    assert abs(whole[0] - whole[1]) > 1, "no near-tie"


def test_a_walk_may_miss_the_most_probable_answer(precise: Any) -> None:
    differ = 0
    for i in range(40):
        prompt = f"Request {i}.\nAction:"
        greedy, exact = (choose(precise, prompt, ACTIONS, mode=mode) for mode in ("greedy", "exact"))
        scores = score(precise, prompt, ACTIONS, leaf_end="longest")
        assert scores[exact.index] >= scores[greedy.index]
        differ += greedy.value != exact.value
    assert differ > 0


def test_the_order_of_the_choices_changes_nothing(llm: Any) -> None:
    expected = choose(llm, PROMPT, ACTIONS, mode="exact", n_best=7)
    rng = random.Random(1)
    for _ in range(2):
        shuffled = rng.sample(ACTIONS, len(ACTIONS))
        decision = choose(llm, PROMPT, shuffled, mode="exact", n_best=7)
        assert [(c.value, c.logprob) for c in decision.candidates] == [
            (c.value, c.logprob) for c in expected.candidates
        ]
        assert shuffled[decision.index] == decision.value
        for mode in ("aligned", "beam"):
            for seed in range(2):
                a, b = (choose(llm, PROMPT, c, mode=mode, **seeded(mode, seed)).value for c in (ACTIONS, shuffled))
                assert a == b


def test_equal_scores_break_the_same_way_every_time(precise: Any) -> None:
    # Two tokens of the tiny model are always equally probable.
    assert np.ptp(score(precise, "Answer:", ["yes", "no"])) == 0
    for mode in ("exact", "beam", "greedy"):
        values = {choose(precise, "Answer:", c, mode=mode).value for c in (["yes", "no"], ["no", "yes"])}
        assert len(values) == 1
    searched = {choose(precise, "Answer:", c, mode="exact", max_nodes=9).value for c in (["yes", "no"], ["no", "yes"])}
    assert searched == {choose(precise, "Answer:", ["no", "yes"], mode="exact").value}


@pytest.mark.parametrize("choices", [["only"], ["a", "ab", "abc"], ["Paris", "Pizza", "yes", "no"]])
@pytest.mark.parametrize("mode", ["greedy", "sampled", "exact", "aligned", "beam"])
def test_every_mode_answers_with_a_member(llm: Any, choices: list[str], mode: Any) -> None:
    decision = choose(llm, "Word:", choices, mode=mode, **seeded(mode, 1))
    assert choices[decision.index] == decision.value


def test_a_single_choice_has_probability_one(llm: Any) -> None:
    decision = choose(llm, "Word:", ["ultramarine"], probabilities=True)
    assert decision.probabilities == pytest.approx([1])
    assert decision.entropy == pytest.approx(0)
    assert decision.margin == 1


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 3.0}, {"temperature": 0.4}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.02}], ids=str
)
def test_aligned_draws_follow_the_probabilities(precise: Any, options: Any) -> None:
    p = choose(precise, "Answer:", ACTIONS, probabilities=True).probabilities
    assert p is not None
    ranked = np.sort(p)[::-1]
    n_best = int(np.argmax(np.cumsum(ranked) >= options.get("top_p", 1) - 1e-12)) + 1
    least = max(ranked[min(options.get("top_k", n_best), n_best) - 1], options.get("min_p", 0) * ranked[0])
    p = np.where(p >= least, p, 0) ** (1 / options.get("temperature", 1))
    p /= p.sum()
    n = 600 if options else 1000
    drawn = np.bincount(
        [choose(precise, "Answer:", ACTIONS, mode="aligned", seed=seed, **options).index for seed in range(n)],
        minlength=len(ACTIONS),
    )
    assert drawn[p == 0].sum() == 0
    often = p * n > 5
    expected = np.append(p[often], p[~often].sum()) * n
    seen = np.append(drawn[often], drawn[~often].sum())
    chi_square = ((seen - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    degrees = max(int(often.sum()), 1)
    # Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal; 3.1 standard deviations.
    assert (chi_square / degrees) ** (1 / 3) < 1 - 2 / (9 * degrees) + 3.1 * math.sqrt(2 / (9 * degrees))
    assert drawn.sum() == n


@pytest.mark.parametrize("options", [{"temperature": 1e-30}, {"top_k": 1}, {"top_p": 1e-30}, {"min_p": 1}], ids=str)
def test_aligned_draws_are_the_best_answer_at_the_end_of_each_option(precise: Any, options: Any) -> None:
    best = choose(precise, "Answer:", ACTIONS).value
    assert {choose(precise, "Answer:", ACTIONS, mode="aligned", seed=s, **options).value for s in range(20)} == {best}


def test_aligned_is_not_what_drawing_token_by_token_does(precise: Any) -> None:
    exact = choose(precise, PROMPT, ACTIONS, probabilities=True).probabilities
    walk = np.exp(score(precise, PROMPT, ACTIONS, branches=True))
    assert np.abs(exact - walk).max() > 0.01


def test_the_same_seed_draws_the_same_answer(llm: Any) -> None:
    draws = [[choose(llm, "A word:", ACTIONS, mode="aligned", seed=s).value for s in range(4)] for _ in range(2)]
    assert draws[0] == draws[1]


def test_a_wide_beam_is_exact_and_a_narrow_one_says_what_it_may_miss(llm: Any) -> None:
    exact = choose(llm, PROMPT, ACTIONS, mode="exact", n_best=3)
    wide = choose(llm, PROMPT, ACTIONS, mode="beam", beam_width=100, n_best=3)
    assert wide.gap == 0
    assert wide.value == exact.value
    narrow = choose(llm, PROMPT, ACTIONS, mode="beam", beam_width=1)
    assert narrow.logprob + narrow.gap >= exact.logprob - 0.5


def test_a_large_set_is_searched(smollm2: Any) -> None:
    choices = [f"{a} {b}" for a in ("red", "green", "blue", "pink") for b in range(1100)] + ["Paris"]
    trie = TokenTrie.from_choices(smollm2, choices, prompt="The capital of France is")
    decision = choose(smollm2, "The capital of France is", trie, n_best=2)
    assert decision.value == "Paris"
    assert decision.gap == 0
    assert decision.stats.n_evaluated < trie.n_nodes / 30
    with pytest.raises(ArgumentError, match="no probabilities"):
        _ = decision.entropy


def test_the_lead_is_what_the_winner_has_on_every_other_answer(precise: Any) -> None:
    for i in range(30):
        prompt = f"Request {i}.\nAction:"
        best, second = sorted(score(precise, prompt, ACTIONS, leaf_end="longest"), reverse=True)[:2]
        for n_best in (1, 2, 3):
            decision = choose(precise, prompt, ACTIONS, n_best=n_best)
            assert decision.lead is not None
            assert -1e-4 <= decision.lead <= best - second + 1e-4
        assert decision.lead == pytest.approx(best - second, abs=1e-4)
        whole = choose(precise, prompt, ACTIONS, probabilities=True)
        assert whole.lead == pytest.approx(best - second, abs=1e-4)
    assert choose(precise, PROMPT, ["only"]).lead == math.inf
    assert choose(precise, PROMPT, ACTIONS, mode="greedy").lead is None


def test_a_budget_leaves_a_gap_that_is_a_bound(llm: Any) -> None:
    exact = choose(llm, "Word:", ACTIONS, mode="exact")
    hasty = choose(llm, "Word:", ACTIONS, mode="exact", max_nodes=1)
    assert hasty.value in ACTIONS
    assert hasty.logprob + hasty.gap >= exact.logprob - 0.5


def words(n: int) -> list[str]:
    rng = random.Random(1)
    return sorted({"".join(rng.choices("abcdefghij", k=7)) for _ in range(n)})


def test_a_search_ends_by_default_and_says_so_once(
    precise: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("token_trie.decisions.choose._warned", set())
    names = words(5000)
    decisions = [choose(precise, PROMPT, names) for _ in range(2)]
    assert not any(decision.proved for decision in decisions)
    assert all(decision.gap > 0 and decision.stats.n_evaluated < 200 for decision in decisions)
    assert [record.name for record in caplog.records] == ["token_trie.search"]
    whole = choose(precise, PROMPT, names, max_nodes=None)
    assert whole.proved
    assert whole.logprob <= decisions[0].logprob + decisions[0].gap + 1e-4
    assert [d.text for d in choose_many(precise, [PROMPT], names)] == [decisions[0].text]


def test_a_timeout_ends_a_search(precise: Any) -> None:
    names = words(5000)
    decision = choose(precise, PROMPT, names, max_nodes=None, timeout=1e-3)
    assert decision.value in names
    assert not decision.proved
    assert choose(precise, PROMPT, names, max_nodes=None, timeout=60).proved


def test_an_answer_that_begins_another_is_one_of_the_events(llm: Any) -> None:
    decision = choose(llm, "Word:", ["READ", "READ_FILE"], probabilities=True)
    assert decision.probabilities is not None
    assert decision.probabilities.sum() == pytest.approx(1)
    assert decision.mass is not None
    assert decision.mass <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_best": 0}, "n_best: 0 is not a count"),
        ({"beam_width": -1}, "beam_width: -1 is not a count"),
        ({"max_nodes": 1.5}, "max_nodes: 1.5 is not a count"),
        ({"timeout": 0}, "timeout: 0 is not in"),
        ({"timeout": float("nan")}, "timeout: nan is not in"),
        ({"timeout": "1"}, "timeout must be a number, not str"),
        ({"leaf_end": "never"}, "leaf_end must be one of"),
    ],
)
def test_bad_options_are_refused(precise: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        choose(precise, "Word:", ACTIONS, mode="exact", **options)


@pytest.mark.parametrize("llm", [None, 5, "model.gguf"])
def test_what_is_no_llama_is_refused(llm: Any) -> None:
    for mode in ("greedy", "exact"):
        with pytest.raises(ArgumentError, match=r"llm must be a llama_cpp\.Llama, not"):
            choose(llm, "Word:", ACTIONS, mode=mode)


def test_a_prompt_too_long_for_the_context_is_refused(precise: Any) -> None:
    with pytest.raises(ContextError, match="make the Llama with a larger n_ctx"):
        choose(precise, "word " * 2000, ACTIONS, mode="exact")


def test_on_the_processor_few_branches_of_a_small_set_are_evaluated(smollm2: Any) -> None:
    # Whatever buffers the processor's kernels keep the weights in, those for AMX among them.
    shown = list(ask.ACTIONS.items())[2::3]
    prompt = "".join(f"Request: {request}\nAction: {action}\n\n" for action, request in shown)
    decision = choose(smollm2, f"{prompt}Request: Put on some Miles Davis.\nAction:", [*ask.ACTIONS])
    assert decision.value == "play_music"
    assert decision.stats.n_evaluated < 10
