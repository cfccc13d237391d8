from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from chat_templates import use_template
from hypothesis import given
from hypothesis import strategies as st
from token_trie import (
    ArgumentError,
    ContextError,
    Form,
    Predicate,
    StreamHandle,
    Think,
    TokenTrie,
    VocabularyError,
    choose,
    decide,
    score,
)
from token_trie.decisions.request import TextRequest
from token_trie.native.core import vocab_of
from token_trie.plan import run
from token_trie.sets.prompt import _token_bytes, tokenize_prompt
from tokenized_choices import fit_choices

AWKWARD = [
    'say "hi"',
    "back\\slash",
    "two\nlines",
    "😀🏳️‍🌈",
    "e\u0301a\u0308",
    "Case",
    "case",
    "CASE",
    "ends in space ",
    "\ttab",
    "'",
    "<|im_end|>",
    "<eos>",
]


def texts(llm: Any, trie: TokenTrie) -> list[str]:
    return [vocab_of(llm).detokenize(leaf.tokens).decode() for leaf in trie]


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("Answer:", " "),
        ("The answer is", " "),
        ("Answer:\n", ""),
        ('Answer: "', ""),
        ('He said "no" and "yes"', " "),
        ("f(", ""),
        ("<answer>", ""),
        ("x ->", " "),
        ("**Answer:**", " "),
        ("Is it **", ""),
        ("答案：", ""),
    ],
)
def test_a_space_is_before_the_answer_where_written_text_has_one(llm: Any, prompt: str, begins: str) -> None:
    trie = TokenTrie.from_choices(llm, ["yes", "no"], prompt=prompt)
    assert texts(llm, trie) == [begins + "yes", begins + "no"]
    assert trie.names == ["yes", "no"]


def test_one_choice_does_not_decide_the_space_of_another(llm: Any) -> None:
    trie = TokenTrie.from_choices(llm, ["はい", "yes", " no"], prompt="Answer:")
    assert texts(llm, trie) == ["はい", " yes", " no"]


def test_a_space_can_be_asked_for_or_forbidden(llm: Any) -> None:
    assert texts(llm, TokenTrie.from_choices(llm, ["yes"], prompt="A:", leading_space=False)) == ["yes"]
    assert texts(llm, TokenTrie.from_choices(llm, ["yes"], prompt="A:\n", leading_space=True)) == [" yes"]
    assert texts(llm, TokenTrie.from_choices(llm, ["yes"])) == ["yes"]
    assert texts(llm, TokenTrie.from_choices(llm, ["yes"], leading_space=True)) == [" yes"]


@pytest.mark.parametrize("prompt", ["Answer: ", "Answer:", "The Mc", 'Answer: "', "1, 2, ", "See Figure"])
def test_prompt_and_choice_together_are_the_tokens_of_their_text(llm: Any, prompt: str) -> None:
    choices = ["Donald", "yes", "no way", "42"]
    fitted = fit_choices(llm, prompt, choices, leading_space=False)
    for i, choice in enumerate(choices):
        spelled = fitted.prompt[: fitted.n_kept] + fitted.tokens[fitted.offsets[i] : fitted.offsets[i + 1]].tolist()
        assert spelled == tokenize_prompt(llm, prompt + choice)


def test_a_trailing_space_moves_the_seam_or_is_refused_with_advice(llm: Any) -> None:
    fitted = fit_choices(llm, "Answer: ", ["yes", "no"])
    assert fitted.n_kept == len(fitted.prompt) - 1
    with pytest.raises(VocabularyError, match="without its trailing space"):
        TokenTrie.from_choices(llm, ["yes", "no"], prompt="Answer: ")


def check_spelling(llm: Any, prompt: str, choices: list[str]) -> None:
    """Whatever the tokens, prompt and choice read as they were written."""
    fitted = fit_choices(llm, prompt, choices, leading_space=False)
    for i, choice in enumerate(choices):
        tokens = fitted.prompt[: fitted.n_kept] + fitted.tokens[fitted.offsets[i] : fitted.offsets[i + 1]].tolist()
        assert vocab_of(llm).detokenize(tokens).decode().endswith(prompt + choice)


@pytest.mark.parametrize("prompt", ["", "Answer:\n", "Pick one:", "Pick '"])
def test_awkward_texts_come_back_to_the_byte(llm: Any, prompt: str) -> None:
    check_spelling(llm, prompt, AWKWARD)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=12))
def test_any_text_comes_back_to_the_byte_or_is_refused(smollm2: Any, gemma: Any, choice: str) -> None:
    for llm in (smollm2, gemma):
        if llm.detokenize(llm.tokenize(f"Pick:\n{choice}".encode(), add_bos=False)) == f"Pick:\n{choice}".encode():
            check_spelling(llm, "Pick:\n", [choice])
        else:
            with pytest.raises(VocabularyError, match=r"choices\[0\]: cannot be spelled"):
                fit_choices(llm, "Pick:\n", [choice])


def test_control_tokens_written_in_a_choice_are_text(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, ["<|im_end|>"])
    assert len(trie[0].tokens) > 1


def test_a_sentencepiece_answer_begins_with_the_leading_space_token(tiny: Any) -> None:
    # outlines-core issue 188: 'Pizza' could not be spelled as this model's training data spelled it.
    pizza = tiny.tokenize(b"Pizza", add_bos=False)
    assert tiny._model.token_get_text(pizza[0]) == "▁Pizza"
    assert TokenTrie.from_choices(tiny, ["Pizza"])[0].tokens == tuple(pizza)
    assert TokenTrie.from_choices(tiny, ["Pizza"], prompt="")[0].tokens == tuple(pizza)
    # SGLang issue 608: after [/INST] in plain text, too.
    assert TokenTrie.from_choices(tiny, ["Pizza"], prompt="[INST]Hi[/INST]")[0].tokens == tuple(pizza)


@pytest.mark.parametrize("model", ["smollm2", "gemma", "tiny"])
@pytest.mark.parametrize("before", ["She wrote ꙮ", "naïve ꙮ", "na, ꙮ", "[ꙮ", "ꙮ"])
def test_an_answer_after_half_a_character_is_spelled_by_itself(
    request: pytest.FixtureRequest, model: str, before: str
) -> None:
    llm = request.getfixturevalue(model)
    *prompt, last = tokenize_prompt(llm, before)
    assert not vocab_of(llm).detokenize([last]).decode(errors="ignore")  # the rest of the character
    for choices in (["yes", "no"], ["élan", "naïve"]):
        for leading_space in (True, False):
            fitted = fit_choices(llm, prompt, choices, leading_space=leading_space)
            behind_a_line = fit_choices(llm, [*prompt, *line_break(llm)], choices, leading_space=leading_space)
            assert fitted.n_kept == len(prompt)
            assert fitted.rows() == behind_a_line.rows()
    assert choose(llm, prompt, ["yes", "no"]).value in ("yes", "no")


def line_break(llm: Any) -> list[int]:
    return [token for token in tokenize_prompt(llm, "a\n") if vocab_of(llm).detokenize([token]) == b"\n"]


def test_a_long_prompt_is_not_tokenized_once_a_choice(smollm2: Any) -> None:
    fitted = fit_choices(smollm2, "word " * 300 + "Answer:", [str(i) for i in range(2000)])
    assert len(fitted.tokens) < 20_000
    assert fitted.n_kept == len(fitted.prompt)


def test_chat_messages_are_what_create_chat_completion_sends(smollm2: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = smollm2.detokenize(tokenize_prompt(smollm2, messages), special=True).decode()
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_token_prompts_are_taken_as_they_are(llm: Any) -> None:
    tokens = llm.tokenize(b"Answer:", add_bos=False)
    assert tokenize_prompt(llm, tokens) == tokenize_prompt(llm, np.array(tokens)) == tokens


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], ArgumentError, "prompt: empty"),
        ([-1], VocabularyError, r"prompt\[0\]: -1 is outside"),
        ([5, 10**7], VocabularyError, r"prompt\[1\]: 10000000 is outside the vocabulary"),
        (["a"], ArgumentError, r"prompt\[0\] must be a token id"),
        ("\ud800", ArgumentError, "prompt: .*surrogates"),
        ("a\0b", ArgumentError, "prompt: holds a NUL"),
        (b"abc", ArgumentError, "prompt must be str"),
        ((token for token in [5, 6]), ArgumentError, "prompt must be str"),
        (5, ArgumentError, "prompt must be str"),
    ],
)
def test_a_bad_prompt_is_refused(llm: Any, prompt: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit_choices(llm, prompt, ["yes"])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "choices: none"),
        ("yes", "choices must be a list"),
        (["yes", ""], r"choices\[1\]: empty"),
        (["yes", 3], r"choices\[1\] must be str"),
        (["a\0"], r"choices\[0\]: holds a NUL"),
        (["\ud800"], r"choices\[0\]: .*surrogates"),
    ],
)
def test_bad_choices_are_refused(llm: Any, choices: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TokenTrie.from_choices(llm, choices)


def test_a_prompt_of_megabytes_is_refused_by_its_length_alone(tiny: Any) -> None:
    trie = TokenTrie.from_choices(tiny, ["yes", "no"])
    messages = [{"role": "user", "content": "a" * 10_000_000}]
    for prompt in ("a" * 10_000_000, messages):
        for choices in (["yes", "no"], trie):
            with pytest.raises(ContextError, match="bytes do not fit the context"):
                choose(tiny, prompt, choices)
        with pytest.raises(ContextError, match="bytes do not fit the context"):
            score(tiny, prompt, trie)
        with StreamHandle(tiny) as stream, pytest.raises(ContextError, match="bytes do not fit the context"):
            stream.prefill(prompt)


def test_a_prompt_without_an_end_in_sight_is_refused_at_its_first_wrong_token(tiny: Any) -> None:
    with pytest.raises(VocabularyError, match=rf"prompt\[{tiny.n_vocab()}\]"):
        choose(tiny, range(10**30), ["a"])


@given(
    st.text(
        st.sampled_from("a \n\t<|>▁é漢👩") | st.characters(codec="utf-8", exclude_characters="\0"),
        max_size=300,
    )
)
def test_no_text_has_fewer_tokens_than_its_bytes_allow(smollm2: Any, gemma: Any, tiny: Any, text: str) -> None:
    encoded = text.encode()
    for llm in (smollm2, gemma, tiny):
        n_tokens = len(llm.tokenize(encoded, add_bos=False, special=True))
        longest, loose = token_bytes(llm)
        assert len(encoded.translate(None, loose)) <= n_tokens * longest
        assert len(loose) < 64


token_bytes = functools.cache(_token_bytes)


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
ASKED = [{"role": "user", "content": "Is water wet?"}]
OPEN = "<|im_start|>user\nIs water wet?<|im_end|>\n<|im_start|>assistant\n"
CLOSED = OPEN + "<think>\n\n</think>\n\n"


@pytest.fixture
def thinking(smollm2: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return use_template(smollm2, monkeypatch, THINKING)


def test_an_answer_follows_messages_without_a_thought_if_the_template_can_leave_it_out(thinking: Any) -> None:
    choices = ["yes", "no"]
    assert choose(thinking, ASKED, choices).logprob == choose(thinking, CLOSED, choices).logprob
    assert score(thinking, ASKED, choices).tolist() == score(thinking, CLOSED, choices).tolist()
    marked = [{"role": "user", "content": "Is water wet?<|im_end|>"}]  # tokenized by token-trie
    end = thinking.tokenize(b"<|im_start|>assistant\n<think>\n\n</think>\n\n", False, True)
    assert tokenize_prompt(thinking, marked)[-len(end) :] == end
    question = Predicate("Is water wet?")
    asked = decide(thinking, "", question, form=Form("{{ state }}{{ instructions }}", chat=True), calibration=None)
    written = OPEN.replace("Is water wet?", "{{ state }}{{ instructions }}") + "<think>\n\n</think>\n\n"
    assert asked == decide(thinking, "", question, form=Form(written), calibration=None)


def test_a_model_that_thinks_or_writes_text_gets_the_template_as_it_is(thinking: Any) -> None:
    before = thinking.tokenize(OPEN.encode(), False, True)
    with StreamHandle(thinking) as stream:
        stream.prefill(ASKED)
        assert stream.tokens == before
    assert run(thinking, ASKED, TextRequest(1).plan).n_prompt == len(before)
    think = Think("</think>", max_tokens=4)
    thought, expected = (choose(thinking, prompt, ["yes", "no"], think=think) for prompt in (ASKED, OPEN))
    assert (thought.thought, thought.logprob) == (expected.thought, expected.logprob)


@pytest.mark.parametrize("asked", [ASKED, [{"role": "user", "content": "Is water wet?<|im_end|>"}]])
def test_a_thought_that_the_template_begins_is_ended(smollm2: Any, monkeypatch: pytest.MonkeyPatch, asked: Any) -> None:
    llm = use_template(smollm2, monkeypatch, THINKING.partition("{% if enable")[0] + "{{ '<think>\n' }}")
    for thinks, end in ((False, "assistant\n<think>\n\n</think>\n\n"), (True, "assistant\n<think>\n")):
        tokens = tokenize_prompt(llm, asked, thinks=thinks)
        assert llm.detokenize(tokens, special=True).decode().endswith(end)


def test_a_chat_handler_of_the_caller_decides_about_thoughts(thinking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinking, "chat_handler", thinking._chat_handlers["chat_template.default"])
    assert tokenize_prompt(thinking, ASKED) == thinking.tokenize(OPEN.encode(), False, True)
