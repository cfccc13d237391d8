"""Text inside another, such as between two members of a list, given as text or as tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from token_trie.errors import VocabularyError
from token_trie.native.arguments import encode
from token_trie.sets.spelling import Speller
from token_trie.sets.tokens import Tokens, to_tokens

_LINE = b"\n"


def inner_tokens(given: str | Tokens, what: str, vocab: Speller, *, special: bool = False) -> npt.NDArray[np.int32]:
    """Return token ids. A text is tokenized as part of another; with `special`, also into control tokens.

    Raises
    ------
    ArgumentError, VocabularyError
        These are no tokens, or the text cannot be spelled. The message begins with ``what``.
    """
    if not isinstance(given, str):
        return to_tokens(given, what)
    text = encode(given, what)

    def tokenize(text: bytes) -> npt.NDArray[np.int32]:
        return vocab.tokenize([text], what, special)[0]

    tokens = tokenize(text)
    if vocab.detokenize(tokens.tolist(), special=True) != text:
        # SentencePiece puts a space before a text; so the text is tokenized behind a line break.
        line, both = tokenize(_LINE), tokenize(_LINE + text)
        tokens = both[len(line) :]
        if not np.array_equal(both[: len(line)], line) or vocab.detokenize(tokens.tolist(), special=True) != text:
            raise VocabularyError(f"{what}: cannot be spelled alone in this vocabulary; give its tokens")
    return tokens
