"""A request for free text, under a grammar or none."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field

from token_trie.decisions.bound_choices import Reader
from token_trie.decisions.run import Plan, PlanStep, Prefix, Request
from token_trie.llama.batch import check_room
from token_trie.llama.query import Query
from token_trie.llama.stream import STOPS
from token_trie.llama.text import TextOptions
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lifetime import lease
from token_trie.native.options import check_counts, encode

MAX_TOKENS = 1024
"""Default length limit of a text, in tokens; the context may allow fewer."""


@dataclass(frozen=True)
class FreeText:
    """Text that the model has written."""

    text: str
    """The text, without the stop string."""
    tokens: list[int]
    stop: str
    """Why it ended: "string", "end", "max_tokens", or "complete" for a finished grammar."""
    stop_string: str | None
    """The stop string that was found."""
    n_prompt: int
    """Tokens of the prompt."""

    def __str__(self) -> str:
        return self.text

    @property
    def message(self) -> dict[str, str]:
        """The assistant's message in OpenAI's format."""
        return {"role": "assistant", "content": self.text}


@dataclass(frozen=True)
class TextRequest(Request[FreeText]):
    """A request for free text after a prompt.

    Parameters
    ----------
    max_tokens
        Largest number of tokens, limited by the space in the context; None: `MAX_TOKENS`.
    gbnf
        The grammar of the text.
    """

    llm: Llama
    max_tokens: int | None = None
    options: TextOptions = field(default_factory=TextOptions)
    gbnf: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_counts(0, max_tokens=self.max_tokens)
        if self.gbnf is not None:
            encode(self.gbnf, "grammar")

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return list(self.options.stop)

    def steps(self, reader: Reader, prefix: Prefix) -> Plan[FreeText]:
        """Write the text."""
        max_tokens, stops, n_prompt = self.max_tokens, self.stops, len(prefix.tokens)
        max_tokens = MAX_TOKENS if max_tokens is None else max_tokens
        if reader.owner:
            check_room(reader.n_ctx, n_prompt, min(max_tokens, 1), reader.owner)
        query = Query("text", sampling=self.options, max_tokens=max_tokens, stop_strings=stops, gbnf=self.gbnf)
        answer = yield PlanStep(prefix.tokens, query)
        tokens, found = list(answer.tokens), answer.figures.stop_string
        with lease(self.llm):
            text = text_of(self.llm, tokens)
        return FreeText(text, tokens, STOPS[answer.figures.stop], stops[found] if found >= 0 else None, n_prompt)


def text_of(llm: Llama, tokens: list[int]) -> str:
    """Return the text of tokens, without an unfinished character at the end; the caller holds a lease."""
    return codecs.utf_8_decode(vocab_of(llm).detokenize(tokens), "replace", False)[0]
