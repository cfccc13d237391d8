from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import oracle
import pytest
from token_trie import ArgumentError, ContextError, TokenTrie, VocabularyError, choose, constrain
from tokenized_choices import fit_choices

COUNTRIES = {"France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid"}
CAPITALS = list(COUNTRIES.values())


@pytest.mark.parametrize("country", COUNTRIES)
@pytest.mark.parametrize("seam", ["is", "is "])
def test_capitals_are_known(llm: Any, country: str, seam: str) -> None:
    decision = choose(llm, f"The capital of {country} {seam}", CAPITALS)
    assert decision.value == str(decision) == COUNTRIES[country]
    assert CAPITALS[decision.index] == decision.value


def test_a_decision_is_the_greedy_walk_and_its_logprob(tiny: Any) -> None:
    llm = tiny
    choices = ["READ", "READ_FILE", "SEND_EMAIL", "SEND_MESSAGE", "SET_ALARM", "SET_TIMER", "yes", "yesno"]
    for request in range(20):
        prompt = f"Request: {request}\nAction:"
        fitted = fit_choices(llm, prompt, choices)
        members = [tuple(row.tolist()) for row in np.split(fitted.tokens, fitted.offsets[1:-1])]
        expected, logprob = oracle.greedy_walk(llm, fitted.prompt, set(members))
        decision = choose(llm, prompt, choices, mode="greedy")
        assert decision.tokens == expected
        assert decision.value == choices[members.index(expected)]
        assert decision.logprob is None
        assert decision.branch_logprob == pytest.approx(logprob, abs=1e-3)  # a cache of 16 bits, in other batches
        assert decision.stats.n_passes <= decision.stats.n_branches


def test_values_come_back_as_they_were_given(llm: Any) -> None:
    # guidance issue 134: answers came back with characters of the prompt glued on.
    prompts = ["Pick:", "Pick: ", "Pick:\n", 'Pick "'] * 3
    for i, choice in enumerate(['say "hi"', "back\\slash", "two\nlines", "😀", "e\u0301", " spaced ", "<|im_end|>"]):
        for prompt in prompts[i : i + 2]:
            assert choose(llm, prompt, [choice]).value == choice


def test_choices_that_differ_in_case_alone_stay_apart(llm: Any) -> None:
    for text in ("Yes", "yes", "YES"):
        prompt = f"Repeat after me.\n{text} -> {text}\n{text} -> {text}\n{text} ->"
        assert choose(llm, prompt, ["YES", "yes", "Yes"]).value == text


def test_names_that_share_their_first_token_are_distinct(llm: Any) -> None:
    # Tools that compare the first token alone cannot.
    names = ["Washington Post", "Washington Monument", "Washington State"]
    for name in names:
        assert choose(llm, f"I read {name}. I read {name}. I read", names).value == name


def test_a_choice_that_begins_another_can_be_the_answer(llm: Any) -> None:
    answers = {
        choose(llm, "Word:", ["a", "ab", "abc"], mode="sampled", temperature=5.0, seed=seed).value for seed in range(60)
    }
    assert answers == {"a", "ab", "abc"}


def test_a_single_choice_is_certain(llm: Any) -> None:
    decision = choose(llm, "Colour:", ["ultramarine"], mode="greedy")
    assert (decision.value, decision.branch_logprob, decision.stats.n_branches) == ("ultramarine", 0.0, 0)


def test_thousands_of_choices(llm: Any) -> None:
    choices = [f"item {i}" for i in range(5000)]
    assert choose(llm, "item 4321, item 4321, item 4321,", choices).value == "item 4321"


def test_equal_choices_are_one_and_the_first_is_named(smollm2: Any) -> None:
    decision = choose(smollm2, "The capital of Italy is", ["Berlin", "Rome", "Rome"])
    assert (decision.value, decision.index) == ("Rome", 1)


def test_the_same_seed_draws_the_same_answer(llm: Any) -> None:
    draws = [
        [choose(llm, "A city:", CAPITALS, mode="sampled", temperature=3.0, seed=s).value for s in range(12)]
        for _ in range(2)
    ]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 1


def test_a_low_top_p_leaves_the_likely_answers(llm: Any) -> None:
    answers = {
        choose(llm, "The capital of Italy is", CAPITALS, mode="sampled", top_p=0.01, seed=s).value for s in range(5)
    }
    assert answers == {"Rome"}


def test_a_trie_a_chat_and_tokens_do_as_well(smollm2: Any) -> None:
    messages = [{"role": "user", "content": "What is the capital of Italy? Answer with the city's name."}]
    trie = TokenTrie.from_choices(smollm2, CAPITALS, prompt=messages)
    assert choose(smollm2, messages, trie).value == choose(smollm2, messages, CAPITALS).value
    tokens = smollm2.tokenize(b"The capital of Italy is", add_bos=False)
    assert choose(smollm2, tokens, CAPITALS).value == "Rome"


def test_the_llama_and_its_context_are_left_alone(smollm2: Any) -> None:
    choose(smollm2, "A city:", CAPITALS)
    smollm2.reset()
    smollm2.eval(smollm2.tokenize(b"Some text"))
    logits = oracle.logits(smollm2)
    before = dict(smollm2.__dict__)
    choose(smollm2, "The capital of Italy is", CAPITALS, mode="sampled", seed=5)
    assert all(smollm2.__dict__[name] is value for name, value in before.items())
    assert np.array_equal(oracle.logits(smollm2), logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature: 0 is not above 0"),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"temperature": 10**400}, "temperature: int too large"),
        ({"temperature": -(10**400)}, "temperature: int too large"),
        ({"top_p": -(10**400)}, "top_p: int too large"),
        ({"top_p": 0}, r"top_p: 0 is not in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p: 1.5"),
        ({"seed": -1}, "seed: -1"),
        ({"seed": 2**32}, "seed: 4294967296"),
        ({"seed": True}, "seed: True is not an integer"),
        ({"mode": "exactly"}, "mode must be one of"),
    ],
)
def test_bad_options_are_refused(smollm2: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        choose(smollm2, "A city:", CAPITALS, **options)


def test_a_prompt_too_long_for_the_context_is_refused(smollm2: Any) -> None:
    with pytest.raises(ContextError, match="make the Llama with a larger n_ctx"):
        choose(smollm2, "word " * 2000, CAPITALS)


def test_choose_and_constrain_do_not_disturb_each_other(smollm2: Any) -> None:
    with constrain(smollm2, TokenTrie.from_choices(smollm2, ["Oslo"], prompt="A city:")):
        stream = smollm2.create_completion("A city:", max_tokens=8, stream=True)
        begun = next(stream)["choices"][0]["text"]
        assert choose(smollm2, "The capital of Italy is", CAPITALS).value == "Rome"
        assert begun + "".join(part["choices"][0]["text"] for part in stream) == " Oslo"


def test_a_closed_llama_is_refused(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=64, verbose=False)
    choose(llm, "A:", ["yes", "no"])
    llm.close()
    with pytest.raises(ArgumentError, match="closed"):
        choose(llm, "A:", ["yes", "no"])


def test_a_llama_made_for_embeddings_can_choose(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=64, embedding=True, verbose=False)
    assert choose(llm, "A:", ["yes", "no"]).value in ("yes", "no")


def test_a_trie_of_another_model_is_refused(smollm2: Any, gemma: Any) -> None:
    with pytest.raises(VocabularyError, match="another vocabulary"):
        choose(gemma, "A city:", TokenTrie.from_choices(smollm2, CAPITALS))
