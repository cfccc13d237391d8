from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from token_trie import ArgumentError, ContextError, StreamHandle, TokenTrie, VocabularyError
from token_trie.sets.prompt import tokenize_prompt


@pytest.fixture
def stream(smollm2: Any) -> Iterator[StreamHandle]:
    with StreamHandle(smollm2, n_ctx=512) as handle:
        handle.prefill("Once upon a time")
        yield handle


def text_of(llm: Any, tokens: list[int]) -> str:
    return str(llm.detokenize(tokens, special=True).decode())


APPENDED = [", there", " was", "s", "\n\n", "-", " \n", "<|im_end|>\n<|im_start|>user\nHi", "é漢", " "]


@pytest.mark.parametrize("text", APPENDED)
@pytest.mark.parametrize("prompt", ["Once upon a time", "Answer: ", "The Mc", "a\nb\n", "x<|im_end|>"])
def test_appended_text_is_tokenized_as_it_follows(llm: Any, prompt: str, text: str) -> None:
    with StreamHandle(llm, n_ctx=256) as stream:
        stream.prefill(prompt)
        stream.append(text)
        assert stream.tokens == tokenize_prompt(llm, prompt + text)


def test_nothing_comes_between_a_line_and_what_is_appended_inside_it(tiny: Any) -> None:
    # SentencePiece puts a space before a text, and this line begins without one.
    with StreamHandle(tiny, n_ctx=128) as stream:
        stream.prefill("Hello\nAnswer")
        stream.append('x{"a":"')
        stream.append("b")
        assert text_of(tiny, stream.tokens).endswith('\nAnswerx{"a":"b')
        decision = stream.choose(["yes", "no"], leading_space=False)
        assert text_of(tiny, stream.tokens).endswith(f'"b{decision.text}')


def test_nothing_comes_between_what_is_no_text_and_what_is_appended(tiny: Any) -> None:
    broken = [*tiny.tokenize(b"A", add_bos=False), 202, 239]  # bytes that no text ends with
    with StreamHandle(tiny, n_ctx=128) as stream:
        stream.prefill(broken)
        stream.append(" x")
        assert tiny.detokenize(stream.tokens) == tiny.detokenize(broken) + b" x"


def test_random_pieces_read_as_their_text(llm: Any) -> None:
    rng = random.Random(3)
    pieces = ["a", " b", "\n", "The ", "Mc", "Donald", "12", "3", "é", ".", '"', "  ", "</x>"]
    with StreamHandle(llm, n_ctx=256) as stream:
        for _ in range(40):
            parts = [rng.choice(pieces) for _ in range(rng.randrange(1, 9))]
            stream.prefill("Begin")
            for part in parts:
                stream.append(part)
            assert text_of(llm, stream.tokens).removeprefix("<bos>") == "Begin" + "".join(parts)


def test_tokens_are_appended_as_they_are_and_evaluated_with_what_follows(tiny: Any) -> None:
    more = tiny.tokenize(b" there was a", add_bos=False)
    with StreamHandle(tiny, n_ctx=512) as stream:
        stream.prefill("Once upon a time")
        before, cached = stream.tokens, stream.state.n_cached
        stream.append(more)
        assert stream.tokens == before + more
        assert stream.state.n_cached == cached
        appended = [step.token for step in stream.generate(4)]
        stream.prefill(before + more)
        assert [step.token for step in stream.generate(4)] == appended


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("a\0", ArgumentError, "text: holds a NUL"),
        ([10**7], VocabularyError, "is outside the vocabulary"),
        ([5] * 600, ContextError, "do not fit the context"),
        (["a"], ArgumentError, "must be a token id"),
        (None, ArgumentError, "NoneType"),
    ],
)
def test_what_cannot_be_appended_leaves_the_sequence(
    stream: StreamHandle, text: Any, error: type[Exception], message: str
) -> None:
    before = stream.tokens
    with pytest.raises(error, match=message):
        stream.append(text)
    assert stream.tokens == before


def free(stream: StreamHandle, n: int) -> list[str]:
    return [step.text for step in stream.generate(n)]


def test_text_goes_on_until_enough_tokens_are_out(stream: StreamHandle) -> None:
    before = stream.tokens
    expected = "".join(free(stream, 12))
    stream.prefill(before)
    text = stream.text(12)
    assert (text.text, str(text), text.stop, len(text.tokens)) == (expected, expected, "max_tokens", 12)


def test_a_stop_string_is_found_wherever_it_lies_and_is_not_part_of_the_sequence(smollm2: Any) -> None:
    prompt = "Once upon a time"
    n_prompt = len(tokenize_prompt(smollm2, prompt))
    with StreamHandle(smollm2, n_ctx=512) as stream:
        stream.prefill(prompt)
        whole = "".join(free(stream, 20))
        for begin in range(1, 50, 6):
            for length in (1, 2, 7):
                stop = whole[begin : begin + length]
                stream.prefill(prompt)
                text = stream.text(20, stop=[stop, "never there"])
                assert (text.text, text.stop, text.stop_string) == (whole[: whole.index(stop)], "string", stop)
                assert text_of(smollm2, stream.tokens) == prompt + text.text
                assert text.tokens == stream.tokens[n_prompt:]


def test_the_first_of_several_stop_strings_counts(stream: StreamHandle) -> None:
    before = stream.tokens
    whole = "".join(free(stream, 30))
    first, second = whole[5:8], whole[12:15]
    stream.prefill(before)
    assert stream.text(30, stop=[second, first]).stop_string == first


@pytest.mark.parametrize("is_full", [False, True])
def test_no_more_tokens_than_asked_for_or_there_is_room_for(smollm2: Any, is_full: bool) -> None:
    # Several tokens may stand for the text before a stop string in its token.
    n_cut = 0
    with StreamHandle(smollm2, n_ctx=256) as stream:
        for seed in range(60):
            stream.prefill([50] * (255 if is_full else 5))
            stream.set_seed(seed)
            start = len(stream.tokens)
            (step,) = stream.generate(1, temperature=1.0)
            if len(step.text) < 2:
                continue
            stream.prefill(stream.tokens[:start])
            stream.set_seed(seed)
            stop = step.text[-1]
            text = stream.text(30 if is_full else 1, stop=stop, temperature=1.0)
            before = step.text[: step.text.index(stop)]
            assert len(text.tokens) == len(stream.tokens) - start <= 1
            assert before.startswith(text.text)
            assert text.text == text_of(smollm2, stream.tokens[start:])
            assert (text.stop, text.stop_string) == (("string", stop) if text.text == before else ("max_tokens", None))
            n_cut += text.stop != "string"
    assert n_cut


@pytest.mark.parametrize(
    ("stop", "message"), [([""], r"stop\[0\]: empty"), (5, "stop must be "), (["a", 5], r"stop\[1\] must be ")]
)
def test_bad_stop_strings_are_refused(stream: StreamHandle, stop: Any, message: str) -> None:
    before = stream.tokens
    with pytest.raises(ArgumentError, match=message):
        stream.text(4, stop=stop)
    assert stream.tokens == before


def test_text_runs_under_the_grammar_and_not_under_the_trie(stream: StreamHandle, smollm2: Any) -> None:
    stream.set_grammar('root ::= " yes" | " no"')
    stream.set_token_trie(TokenTrie.from_choices(smollm2, ["maybe"], leading_space=True))
    text = stream.text(8)
    assert text.text in (" yes", " no")
    assert text.stop == "end"
