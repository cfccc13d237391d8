"""A request for free text, under a grammar or none."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field

from token_trie.decisions.bound_choices import Reader
from token_trie.decisions.run import Bound, Plan, PlanStep, Prefix, Request
from token_trie.llama.own_stream import check_room
from token_trie.llama.query import Query
from token_trie.llama.text import TextOptions
from token_trie.native.checks import check_counts, encode
from token_trie.native.core import Llama, vocab_of
from token_trie.native.ffi import lib
from token_trie.native.lifetime import lease

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
    def seed(self) -> int | None:
        """Seed of the random draws."""
        return self.options.seed

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return self.options.effective_temperature(draws=False) > 0

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return list(self.options.stop)

    def bind(self, reader: Reader, prefix: Prefix) -> BoundText:
        """Bind it to its prompt."""
        max_tokens = MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if reader.owner:
            check_room(reader.n_ctx, len(prefix.tokens), min(max_tokens, 1), reader.owner)
        return BoundText(self, prefix.tokens, max_tokens)


@dataclass(frozen=True)
class BoundText(Bound[FreeText]):
    """Free text after a prompt."""

    request: TextRequest
    tokens: list[int]
    max_tokens: int

    def plan(self) -> Plan[FreeText]:
        """Write the text."""
        request, stops = self.request, self.request.stops
        answer = yield PlanStep(
            self.tokens,
            Query(
                "text",
                sampling=request.options,
                max_tokens=self.max_tokens,
                stop_strings=stops,
                gbnf=request.gbnf,
            ),
        )
        tokens, found = list(answer.tokens), answer.figures.stop_string
        with lease(request.llm):
            text = text_of(request.llm, tokens)
        return FreeText(text, tokens, _STOPS[answer.figures.stop], stops[found] if found >= 0 else None, self.n_prompt)

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.tokens)


def text_of(llm: Llama, tokens: list[int]) -> str:
    """Return the text of tokens, without an unfinished character at the end; the caller holds a lease."""
    return codecs.utf_8_decode(vocab_of(llm).detokenize(tokens), "replace", False)[0]


_STOPS = {
    lib.TOKEN_TRIE_STOP_MAX_TOKENS: "max_tokens",
    lib.TOKEN_TRIE_STOP_COMPLETE: "complete",
    lib.TOKEN_TRIE_STOP_END: "end",
    lib.TOKEN_TRIE_STOP_STRING: "string",
}
