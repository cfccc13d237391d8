from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from token_trie import ArgumentError, TokenTrie, VocabularyError, choose, explain, score
from token_trie.cli.ask import ACTIONS, prompt_for
from token_trie.show.explain import MAX_BRANCHES, Branch, Explanation, path_to
from token_trie.show.trie import cells, percent

NAMES = list(ACTIONS)
PREFIXES = ["READ", "READ_FILE", "READ_FILES", "SEND", "WRITE"]


@pytest.fixture(scope="module")
def bill(gemma: Any) -> Explanation:
    """Greedy and exact differ, and exact is right."""
    return explain(gemma, prompt_for("Settle the water bill, it is due tomorrow."), NAMES)


def sentence(explanation: Explanation) -> str:
    return "".join(text for text, _ in explanation.sentence())


def branches(branch: Branch) -> list[Branch]:
    return [branch, *(below for child in branch.children for below in branches(child))]


def drawn(explanation: Explanation) -> str:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(explanation)
    return captured.get()


# Numbers


def test_both_decisions_are_those_of_choose(bill: Explanation, gemma: Any) -> None:
    prompt = prompt_for("Settle the water bill, it is due tomorrow.")
    for decision, mode in ((bill.greedy, "greedy"), (bill.exact, "exact")):
        chosen = choose(gemma, prompt, NAMES, mode=mode)
        assert (decision.value, decision.index, decision.tokens) == (chosen.value, chosen.index, chosen.tokens)
        assert NAMES[decision.index] == decision.value
        assert decision.logprob == pytest.approx(chosen.logprob, abs=0.5)
    assert (bill.greedy.value, bill.exact.value) == ("set_alarm", "pay_bill")


@pytest.mark.parametrize(("prompt", "choices"), [("Action:", PREFIXES), ("Answer:", ["yes", "no"]), ("A", ["Paris"])])
def test_probabilities_are_those_of_score(precise: Any, prompt: str, choices: list[str]) -> None:
    explanation = explain(precise, prompt, choices)
    whole = np.exp(score(precise, prompt, choices, leaf_end="longest"))
    assert explanation.probabilities == pytest.approx(whole / whole.sum(), abs=1e-4)
    assert explanation.exact.mass == pytest.approx(whole.sum(), rel=1e-3)
    assert explanation.stepwise == pytest.approx(np.exp(score(precise, prompt, choices, branches=True)), abs=1e-4)


@pytest.mark.parametrize("which", ["bill", "prefixes"])
def test_shares_and_masses_of_nodes_are_sums_over_the_answers_below_them(
    which: str, request: pytest.FixtureRequest, precise: Any
) -> None:
    explanation = request.getfixturevalue(which) if which == "bill" else explain(precise, "Action:", PREFIXES)
    leaves = [leaf.tokens for leaf in explanation.trie]
    for leaf, tokens in enumerate(leaves):
        for depth, node in enumerate(path_to(explanation.trie, leaf)):
            behind = [other[:depth] == tokens[:depth] for other in leaves]
            assert explanation.masses[node] == pytest.approx(explanation.probabilities[behind].sum())
            if depth:
                before = [other[: depth - 1] == tokens[: depth - 1] for other in leaves]
                share = explanation.stepwise[behind].sum() / explanation.stepwise[before].sum()
                assert explanation.shares[node] == pytest.approx(share)


def test_a_sentence_says_where_they_part(bill: Explanation) -> None:
    p = bill.probabilities
    assert bill.parting == 0
    assert re.fullmatch(
        r"At the first token, greedy takes “ set” \((\d\d\.\d) %\) over “ pay” \((\d\d\.\d) %\) and ends at set_alarm "
        rf"with 0\.\d\d % of the set, where pay_bill has {100 * p[bill.exact_leaf]:.1f} %\.",
        sentence(bill),
    )


def test_they_part_at_the_end_of_an_answer_that_another_goes_on_from(smollm2: Any) -> None:
    explanation = explain(smollm2, "The capital of France is", ["Paris", "Paris, of course", "Rome"])
    assert explanation.parting == path_to(explanation.trie, 0)[-1]
    assert sentence(explanation).startswith("After “ Paris”, greedy takes “,” (>99.9 %) over the end (<0.01 %)")
    end = next(branch for branch in branches(explanation.branches()) if branch.leaf == 0)
    assert (end.tokens, end.exact, end.greedy) == ((), True, False)
    assert end.mass == explanation.probabilities[0]
    assert "the end" in drawn(explanation)


def test_they_may_agree(smollm2: Any) -> None:
    explanation = explain(smollm2, "The capital of France is", ["Paris", "Rome"])
    assert explanation.parting is None
    assert sentence(explanation).startswith("Greedy and exact agree on Paris, which has >99.9 % of the set; the")


def test_one_answer_leaves_nothing_to_choose(smollm2: Any) -> None:
    explanation = explain(smollm2, "The capital of France is", ["Paris"])
    assert sentence(explanation) == "The set has one answer, Paris: there is nothing to choose."
    assert "100 %" in drawn(explanation)


def test_equal_choices_a_trie_and_messages_do_as_well(smollm2: Any) -> None:
    twice = explain(smollm2, "The capital of France is", ["Rome", "Rome", "Paris"])
    assert twice.exact.index == 2
    messages = [{"role": "user", "content": "Is a tomato a fruit?"}]
    trie = TokenTrie.from_choices(smollm2, ["yes", "no"], prompt=messages)
    explanation = explain(smollm2, messages, trie)
    assert explanation.trie is trie
    assert "Is a tomato a fruit?" in explanation.prompt


def test_a_set_that_does_not_fit_is_said_not_to(smollm2: Any) -> None:
    explanation = explain(smollm2, "The capital of France is", ["xylophone", "zinc"])
    assert "none of these may fit" in drawn(explanation)


def test_bad_arguments_are_refused(smollm2: Any) -> None:
    with pytest.raises(ArgumentError, match="end"):
        explain(smollm2, "x", ["a"], leaf_end="never")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="choices"):
        explain(smollm2, "x", [])
    with pytest.raises(ArgumentError, match=r"prompt must be .*, not NoneType"):
        explain(smollm2, None, ["a"])  # type: ignore[arg-type]
    with pytest.raises(VocabularyError, match="300000 is outside"):
        explain(smollm2, "x", TokenTrie.from_sequences({"a": [7, 300000]}))


# The picture


def test_every_answer_is_drawn_or_counted_once(bill: Explanation) -> None:
    all_ = branches(bill.branches())
    named = [branch.leaf for branch in all_ if branch.leaf is not None]
    assert len(named) == len(set(named))
    assert len(named) + sum(branch.n_more for branch in all_) == len(bill.trie)
    assert bill.greedy_leaf in named
    assert bill.exact_leaf in named
    assert len([branch for branch in all_ if not branch.greedy and not branch.exact]) <= MAX_BRANCHES
    for branch in all_:
        assert branch.mass == pytest.approx(sum(child.mass for child in branch.children) + branch.more) or (
            branch.leaf is not None
        )


def test_a_drawing_of_thousands_of_answers_stays_small(precise: Any) -> None:
    rng = np.random.default_rng(0)
    rows = {tuple(row) for row in rng.integers(259, 380, (3300, 3)).tolist()}
    trie = TokenTrie.from_sequences({f"item {i}": row for i, row in enumerate(sorted(rows)[:3000])})
    explanation = explain(precise, "Answer:", trie)
    assert len(str(explanation).splitlines()) < 100
    root = explanation.branches()
    assert f"… {root.n_more:,} more ({percent(root.more)})" in str(explanation)
    assert re.search(r"… 2,\d{3} more \(", drawn(explanation))


def test_plain_text_has_what_rich_draws(bill: Explanation) -> None:
    assert [line.rstrip() for line in drawn(bill).splitlines()] == str(bill).splitlines()
    p = bill.probabilities
    for leaf in np.argsort(-p)[:5]:
        assert f"{100 * p[leaf]:.{1 if p[leaf] >= 0.01 else 2}f} %" in str(bill)


def test_columns_of_wide_letters_are_aligned(smollm2: Any) -> None:
    _, _, *rows = str(explain(smollm2, "Answer:", ["日本語", "Rome"])).splitlines()[:5]
    assert cells(rows[1][: rows[1].index("%")]) == cells(rows[2][: rows[2].index("%")])


def test_names_are_text_in_a_terminal(smollm2: Any) -> None:
    text = drawn(explain(smollm2, "Answer:", ["[red]x", "\x1b[31my"]))
    assert "[red]x" in text
    assert "\\x1b[31my" in text
