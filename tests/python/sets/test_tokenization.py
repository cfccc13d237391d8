"""Separators are tokenized as within a text; token ids stay what they are."""

from __future__ import annotations

from typing import Any

import pytest
from token_trie import ArgumentError
from token_trie.native.core import vocab_of
from token_trie.sets.tokenization import inner_tokens


@pytest.mark.parametrize("model", ["smollm2", "gemma", "tiny"])
@pytest.mark.parametrize("separator", [", ", ",", "\n- ", " | "])
def test_a_separator_is_spelled_as_within_a_text(request: pytest.FixtureRequest, model: str, separator: str) -> None:
    llm: Any = request.getfixturevalue(model)
    vocab = vocab_of(llm)
    tokens = inner_tokens(separator, "separator", vocab).tolist()
    assert vocab.detokenize(tokens) == separator.encode()


def test_tokens_stay_what_they_are(smollm2: Any) -> None:
    vocab = vocab_of(smollm2)
    assert inner_tokens([5, 6], "separator", vocab).tolist() == [5, 6]
    assert inner_tokens("", "separator", vocab).tolist() == []
    with pytest.raises(ArgumentError, match="separator: holds a NUL"):
        inner_tokens("\0", "separator", vocab)
