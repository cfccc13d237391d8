from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie.cli.demo import REQUESTS, prompt_for
from token_trie.native.core import vocab_of
from token_trie.sets.lru import Memory
from token_trie.sets.prompt import retokenize

LINES = [
    "",
    " ",
    "  two",
    "Request: wake me",
    "Action:",
    "\tx = 1",
    "don't",
    "12345678",
    "é漢👩 ",
    "a\u0301",
    "{",
    "▁",
    "\r",
]
SPECIAL = ["<|im_start|>user", "<|im_end|>", "<start_of_turn>model", "<bos>", "<unused5>"]
lines = st.lists(
    st.sampled_from(LINES + SPECIAL)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
    | st.text("ab \n'1", max_size=30),
    max_size=40,
)


def whole(llm: Any, text: bytes) -> list[int]:
    return list(llm.tokenize(text, add_bos=False, special=True))


class Counted:
    """A tokenizer that counts the bytes it was given."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self.n_bytes = 0
        self._texts: Memory[list[int]] = Memory(4, 4)

    def __call__(self, text: str) -> list[int]:
        vocab = vocab_of(self._llm)
        return retokenize(self._texts, text.encode(), self._whole, lambda token: vocab.detokenize([token], True))

    def _whole(self, text: bytes) -> list[int]:
        self.n_bytes += len(text)
        return whole(self._llm, text)


@settings(max_examples=200)
@given(lines, lines, lines, st.booleans())
def test_whatever_was_tokenized_before_tokens_are_those_of_the_whole(
    smollm2: Any, gemma: Any, tiny: Any, beginning: list[str], one: list[str], other: list[str], extended: bool
) -> None:
    before = "\n".join(beginning + one)
    text = before + "".join(other) if extended else "\n".join(beginning + other)
    for llm in (smollm2, gemma, tiny):
        tokenize = Counted(llm)
        assert tokenize(before) == whole(llm, before.encode())
        assert tokenize(text) == whole(llm, text.encode())


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_cut_points_of_a_real_prompt(llm: Any, seed: int) -> None:
    rng = random.Random(seed)
    prompt = prompt_for(list(REQUESTS)[seed])[-1200:]
    tokenize = Counted(llm)
    tokenize(prompt)
    n_texts = n_bytes = 0
    for _ in range(500):
        cut = rng.randrange(len(prompt) // 2, len(prompt))
        text = (
            prompt[:cut] + rng.choice(["\n", " ", "", "x", "\n\nRequest: "]) + prompt[rng.randrange(cut, len(prompt)) :]
        )
        assert tokenize(text) == whole(llm, text.encode())
        n_texts, n_bytes = n_texts + 1, n_bytes + len(text.encode())
    assert tokenize.n_bytes < n_bytes * 0.6


def test_a_prompt_that_differs_in_its_last_line_is_not_tokenized_again(llm: Any) -> None:
    tokenize = Counted(llm)
    for request in REQUESTS:
        assert tokenize(prompt_for(request)) == whole(llm, prompt_for(request).encode())
    assert tokenize.n_bytes < 2 * len(prompt_for("Wake me up at 6:30 tomorrow."))


def test_what_the_caller_does_to_the_tokens_is_not_remembered(smollm2: Any) -> None:
    tokenize = Counted(smollm2)
    tokenize("one\ntwo").clear()
    assert tokenize("one\ntwo") == whole(smollm2, b"one\ntwo")


def test_a_model_that_puts_a_space_before_every_text_is_tokenized_whole(tiny: Any) -> None:
    tokenize = Counted(tiny)
    for text in ("a line\nand another\nyes", "a line\nand another\nno"):
        assert tokenize(text) == whole(tiny, text.encode())
