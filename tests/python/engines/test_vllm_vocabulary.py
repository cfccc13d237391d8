"""An engine's tokenizer and llama.cpp, on a file of the same vocabulary, make the same tokens of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from token_trie import TokenTrie, VocabularyError

pytest.importorskip("vllm")
import transformers
from token_trie.engines.vllm import EngineVocabulary

CHOICES = ("Paris", "New York", "READ_FILE", "Ω!")


@pytest.fixture(scope="module", params=["smollm2", "gemma"])
def both(request: pytest.FixtureRequest, model_paths: dict[str, Path]) -> tuple[Any, EngineVocabulary]:
    path, llm = model_paths[request.param], request.getfixturevalue(request.param)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return llm, EngineVocabulary(llm.n_vocab(), tokenizer)


def members(trie: TokenTrie) -> dict[str, tuple[int, ...]]:
    return {leaf.name: leaf.tokens for leaf in trie}


def test_texts_become_the_tokens_that_llama_cpp_makes_of_them(both: tuple[Any, EngineVocabulary]) -> None:
    llm, vocabulary = both
    for prompt in ("The capital of France is", "Line\n", "Is it (", 'He said "', "<b>", "one two-"):
        tokens = llm.tokenize(prompt.encode())
        expected = TokenTrie.from_choices(llm, CHOICES, prompt=tokens)
        found = vocabulary.set_of(CHOICES, tokens, None)
        assert members(found) == members(expected), prompt
        assert vocabulary.set_of(CHOICES, tokens, None) is found, "and are remembered"
        vocabulary.check(expected)


def test_after_a_prompt_that_would_merge_they_are_spelled_alone(both: tuple[Any, EngineVocabulary]) -> None:
    llm, vocabulary = both
    tokens = llm.tokenize(b"The answer is: ")
    with pytest.raises(VocabularyError):
        TokenTrie.from_choices(llm, CHOICES, prompt=tokens)
    expected = TokenTrie.from_choices(llm, CHOICES, leading_space=False)
    assert members(vocabulary.set_of(CHOICES, tokens, None)) == members(expected)


def test_a_set_of_another_vocabulary_is_refused(both: tuple[Any, EngineVocabulary], tiny: Any) -> None:
    _, vocabulary = both
    with pytest.raises(VocabularyError, match="vocab: the set was made for another vocabulary"):
        vocabulary.check(TokenTrie.from_choices(tiny, ["yes", "no"]))
