from __future__ import annotations

import json
import logging
from typing import Any

import llama_cpp
import numpy as np
import oracle
import pytest
from token_trie import ArgumentError, BusyError, TokenTrie, VocabularyError, constrain
from token_trie.llama.constrain import Constraint
from token_trie.sets.prompt import tokenize_prompt

ACTIONS = ["READ", "READ_FILE", "READ_FILE_LINES", "SEND_EMAIL", "SEND_MESSAGE", "read", "SET ALARM", "NONE"]
PROMPT = "The user wants to see a file. Best action:"
CHAT = [{"role": "user", "content": "Read me a.txt. Which action?"}]


@pytest.fixture
def trie(llm: Any) -> TokenTrie:
    return TokenTrie.from_choices(llm, ACTIONS, prompt=PROMPT)


def complete(llm: Any, prompt: Any = PROMPT, **options: Any) -> str:
    return str(llm.create_completion(prompt, max_tokens=24, **options)["choices"][0]["text"])


def random_trie(llm: Any, seed: int) -> TokenTrie:
    """Random short sequences over few tokens, so that they share beginnings and some begin others."""
    rng = np.random.default_rng(seed)
    ends = oracle.end_of_generation(llm)
    tokens = [int(t) for t in rng.integers(300, llm.n_vocab(), 6) if t not in ends]
    members = {tuple(rng.choice(tokens, rng.integers(1, 5)).tolist()) for _ in range(rng.integers(1, 12))}
    return TokenTrie.from_sequences({repr(member): member for member in sorted(members)})


def test_the_answer_is_the_best_allowed_token_at_each_step(llm: Any) -> None:
    for seed in range(8):
        trie = random_trie(llm, seed)
        prompt = tokenize_prompt(llm, f"{PROMPT} {seed}")
        expected, _ = oracle.greedy_walk(llm, prompt, {leaf.tokens for leaf in trie})
        llm.reset()
        with constrain(llm, trie) as constraint:
            tokens = [t for t in llm.generate(prompt, temp=0.0) if t not in oracle.end_of_generation(llm)]
        assert tuple(tokens) == expected
        assert constraint.names == [repr(expected)]
        assert constraint.complete


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 5.0, "top_p": 0.1, "min_p": 0.5},
        {
            "temperature": 1.0,
            "typical_p": 0.2,
            "repeat_penalty": 1.5,
            "frequency_penalty": 1.0,
            "presence_penalty": 1.0,
        },
        {"temperature": 1.0, "mirostat_mode": 1},
        {"temperature": 1.0, "mirostat_mode": 2},
        {"temperature": -1.0},
        {"temperature": 1.0, "logit_bias": {0: 100.0, 500: 50.0}},
    ],
    ids=lambda options: ",".join(options),
)
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_every_sampling_option_answers_with_a_member(
    llm: Any, trie: TokenTrie, mode: Any, options: dict[str, Any]
) -> None:
    with constrain(llm, trie, mode):
        for seed in range(4):
            assert complete(llm, seed=seed, **options).removeprefix(" ") in ACTIONS


def test_hundreds_of_seeds_and_temperatures_answer_with_members(tiny: Any) -> None:
    trie = TokenTrie.from_choices(tiny, ACTIONS, prompt=PROMPT)
    seen = set()
    with constrain(tiny, trie, "sampled") as constraint:
        for seed in range(400):
            seen.add(complete(tiny, seed=seed, temperature=0.2 + seed / 50, top_k=0, top_p=1.0, min_p=0.0).strip())
            assert constraint.complete
    assert seen <= set(ACTIONS)
    # READ is the beginning of two others, and all of them can be produced.
    assert {"READ", "READ_FILE", "READ_FILE_LINES"} <= seen


def test_the_same_seed_draws_the_same_answer(llm: Any, trie: TokenTrie) -> None:
    with constrain(llm, trie, "sampled"):
        options = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        draws = [[complete(llm, seed=seed, **options) for seed in range(10)] for _ in range(2)]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 1


def test_chat_streaming_and_generate_are_constrained_too(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, ACTIONS, prompt=CHAT)
    with constrain(smollm2, trie) as constraint:
        chat = smollm2.create_chat_completion(CHAT, max_tokens=24)
        assert chat["choices"][0]["message"]["content"] in ACTIONS
        assert chat["choices"][0]["finish_reason"] == "stop"
        parts = [
            part["choices"][0]["delta"].get("content", "")
            for part in smollm2.create_chat_completion(CHAT, max_tokens=24, stream=True)
        ]
        assert "".join(parts) == chat["choices"][0]["message"]["content"] == constraint.names[0]
        tokens = list(smollm2.generate(tokenize_prompt(smollm2, CHAT)))
        assert tokens[-1] == smollm2.token_eos()
        assert tuple(tokens[:-1]) in trie


def test_release_goes_on_with_free_text(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, ["Paris"], prompt="Capital of France:")
    with constrain(smollm2, trie, on_complete="release") as constraint:
        text = complete(smollm2, "Capital of France:", temperature=0.0)
    assert text.startswith(" Paris")
    assert len(text) > len(" Paris")
    assert constraint.names == ["Paris"]


def test_restart_makes_a_list_up_to_max_items(llm: Any) -> None:
    names = ["red", "green", "blue", "greenish"]
    trie = TokenTrie.from_choices(llm, names)
    comma = llm.tokenize(b",", add_bos=False)
    with constrain(llm, trie, "sampled", on_complete="restart", separator=comma, max_items=3) as constraint:
        lengths = set()
        for seed in range(10):
            items = complete(llm, "Colours:\n", seed=seed, temperature=2.0).split(",")
            assert set(items) <= set(names)
            assert constraint.names == items
            assert constraint.complete
            lengths.add(len(items))
    assert max(lengths) == 3


@pytest.mark.parametrize("is_text", [True, False])
def test_end_tokens_of_ones_own_end_the_answer(smollm2: Any, is_text: bool) -> None:
    trie = TokenTrie.from_choices(smollm2, ["yes", "yes please"], prompt="A:")
    newline = smollm2.tokenize(b"\n", add_bos=False)
    with constrain(smollm2, trie, end_tokens="\n" if is_text else newline) as constraint:
        text = complete(smollm2, "A:", temperature=0.0)
    assert text in (" yes\n", " yes please\n")
    assert constraint.complete


def test_a_call_stopped_short_says_so(smollm2: Any, caplog: pytest.LogCaptureFixture) -> None:
    trie = TokenTrie.from_choices(smollm2, ["SEND_EMAIL"], prompt=PROMPT)
    with constrain(smollm2, trie) as constraint, caplog.at_level(logging.WARNING, "token_trie"):
        result = smollm2.create_completion(PROMPT, max_tokens=1)
    assert result["choices"][0]["finish_reason"] == "length"
    assert not constraint.complete
    assert constraint.names == []
    assert "inside a member, after 1 tokens" in caplog.text


def test_the_last_member_costs_no_pass_for_its_end(smollm2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trie = TokenTrie.from_choices(smollm2, ["SEND_EMAIL"], prompt=PROMPT)
    passes = []
    evaluate = type(smollm2).eval
    monkeypatch.setattr(
        type(smollm2), "eval", lambda self, tokens: (passes.append(len(tokens)), evaluate(self, tokens))[1]
    )
    with constrain(smollm2, trie):
        complete(smollm2)
    assert len(passes) == trie.max_tokens


def test_the_llama_is_restored_exactly(smollm2: Any, trie: TokenTrie) -> None:
    trie = TokenTrie.from_choices(smollm2, ACTIONS)
    free = complete(smollm2, temperature=0.0)
    before = dict(smollm2.__dict__)
    with constrain(smollm2, trie):
        assert complete(smollm2, temperature=0.0) != free
    assert smollm2.__dict__.keys() == before.keys()
    assert complete(smollm2, temperature=0.0) == free


def test_the_llama_is_restored_after_an_exception(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, ACTIONS)

    class OwnError(Exception):
        pass

    with pytest.raises(OwnError), constrain(smollm2, trie):
        raise OwnError
    assert "generate" not in smollm2.__dict__
    with constrain(smollm2, trie):
        assert complete(smollm2).strip() in ACTIONS


def test_somebody_elses_override_is_put_back(smollm2: Any) -> None:
    def own(*args: Any, **kwargs: Any) -> Any:
        return type(smollm2).generate(smollm2, *args, **kwargs)

    smollm2.generate = own
    try:
        with constrain(smollm2, TokenTrie.from_choices(smollm2, ACTIONS)):
            assert complete(smollm2).strip() in ACTIONS
        assert smollm2.__dict__["generate"] is own
    finally:
        del smollm2.__dict__["generate"]


def test_a_block_can_be_entered_again_but_not_nested(smollm2: Any, trie: TokenTrie) -> None:
    constraint = constrain(smollm2, TokenTrie.from_choices(smollm2, ACTIONS))
    for _ in range(2):
        with constraint, pytest.raises(BusyError, match="constrained already"):
            constraint.__enter__()
    with (
        constrain(smollm2, TokenTrie.from_choices(smollm2, ["a"])),
        pytest.raises(BusyError, match="constrained already"),
        constraint,
    ):
        pass


def test_two_llamas_can_be_constrained_at_once(smollm2: Any, gemma: Any) -> None:
    with (
        constrain(smollm2, TokenTrie.from_choices(smollm2, ["a"])),
        constrain(gemma, TokenTrie.from_choices(gemma, ["b"])),
    ):
        assert complete(smollm2) == "a"
        assert complete(gemma) == "b"


def test_a_stream_cannot_go_on_unconstrained_after_its_block(smollm2: Any) -> None:
    with constrain(smollm2, TokenTrie.from_choices(smollm2, ["SEND_EMAIL"])):
        stream = smollm2.generate(tokenize_prompt(smollm2, PROMPT))
        next(stream)
    with pytest.raises(BusyError, match="block ended"):
        next(stream)


def test_a_stream_cannot_go_on_after_another_call_began(smollm2: Any) -> None:
    with constrain(smollm2, TokenTrie.from_choices(smollm2, ["SEND_EMAIL"])):
        stream = smollm2.generate(tokenize_prompt(smollm2, PROMPT))
        next(stream)
        assert complete(smollm2) == "SEND_EMAIL"
        with pytest.raises(BusyError, match="another call began"):
            next(stream)


def test_a_grammar_beside_a_trie_is_refused(smollm2: Any) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "x"', verbose=False)
    with constrain(smollm2, TokenTrie.from_choices(smollm2, ["a"])):
        with pytest.raises(ArgumentError, match=r"a grammar .* cannot be combined with a trie"):
            complete(smollm2, grammar=grammar)
        with pytest.raises(ArgumentError, match="response_format"):
            smollm2.create_chat_completion(CHAT, response_format={"type": "json_object"})
        assert complete(smollm2) == "a"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": "best"}, ArgumentError, "mode must be one of 'greedy', 'sampled'"),
        ({"on_complete": None}, ArgumentError, "on_complete must be one of"),
        ({"on_complete": "restart", "max_items": -1}, ArgumentError, "max_items: -1 is not a count from 1"),
        ({"on_complete": "restart", "end_tokens": [], "unique": False}, ArgumentError, "the list could never end"),
        ({"on_complete": "restart", "min_items": -1}, ArgumentError, "min_items: -1 is not a count from 1"),
        ({"on_complete": "restart", "unique": 1}, ArgumentError, "unique must be True or False, not int"),
        ({"on_complete": "restart", "unique": True, "min_items": 2}, ArgumentError, "there are 1 members"),
        ({"exclude": "a"}, ArgumentError, "exclude must be a list of names, not str"),
        ({"exclude": ["a"]}, ArgumentError, "exclude: no member of the set is left"),
        ({"exclude": ["b"]}, ArgumentError, r'exclude\[0\]: "b" is no member of the set'),
        ({"end_tokens": []}, ArgumentError, "on_complete end needs end_tokens"),
        ({"end_tokens": "the end"}, ArgumentError, "end_tokens: 'the end' is [0-9]+ tokens here"),
        ({"end_tokens": [-5]}, ArgumentError, "not negative"),
        ({"end_tokens": [10**8]}, VocabularyError, r"end_tokens\[0\]: 100000000 is outside"),
    ],
)
def test_options_that_do_not_fit_are_refused_at_once(
    smollm2: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        constrain(smollm2, TokenTrie.from_sequences({"a": [400]}), **options)


def test_what_is_no_trie_or_no_fitting_trie_is_refused(smollm2: Any) -> None:
    with pytest.raises(ArgumentError, match="trie must be a TokenTrie"):
        constrain(smollm2, ["a"])  # type: ignore[arg-type]
    payload = {"descriptors": [{"leaves": [{"name": "big", "tokens": [1, 300_000]}]}]}
    with pytest.raises(
        VocabularyError, match=r'leaf "big": tokens\[1\]: 300000 is outside the vocabulary \(49152 tokens\)'
    ):
        constrain(smollm2, TokenTrie.from_payload(json.dumps(payload)))


def test_a_constraint_that_was_never_entered_tells_nothing(smollm2: Any) -> None:
    constraint = constrain(smollm2, TokenTrie.from_sequences({"a": [400]}))
    assert isinstance(constraint, Constraint)
    assert (constraint.complete, constraint.names) == (False, [])
