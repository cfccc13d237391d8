"""A request for free text, under a grammar or none."""

from __future__ import annotations

from dataclasses import dataclass, field

from token_trie.decisions.bound_choices import Reader
from token_trie.decisions.run import Plan, PlanStep, Prefix, Request
from token_trie.llama.batch import check_room
from token_trie.llama.query import Query
from token_trie.llama.stream import STOPS
from token_trie.llama.text import Text, TextOptions, text_of
from token_trie.native.options import check_counts, encode

MAX_TOKENS = 1024
"""Default length limit of a text, in tokens; the context may allow fewer."""


@dataclass(frozen=True)
class TextRequest(Request[Text]):
    """A request for free text after a prompt.

    Parameters
    ----------
    max_tokens
        Largest number of tokens, limited by the space in the context; None: `MAX_TOKENS`.
    gbnf
        The grammar of the text.
    """

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

    def steps(self, reader: Reader, prefix: Prefix) -> Plan[Text]:
        """Write the text."""
        max_tokens, stops, n_prompt = self.max_tokens, self.stops, len(prefix.tokens)
        max_tokens = MAX_TOKENS if max_tokens is None else max_tokens
        if reader.owner:
            check_room(reader.n_ctx, n_prompt, min(max_tokens, 1), reader.owner)
        query = Query("text", sampling=self.options, max_tokens=max_tokens, stop_strings=stops, gbnf=self.gbnf)
        answer = yield PlanStep(prefix.tokens, query)
        tokens, found = list(answer.tokens), answer.figures.stop_string
        text = reader.with_model(lambda vocab, _: text_of(vocab, tokens))
        return Text(text, tokens, STOPS[answer.figures.stop], stops[found] if found >= 0 else None, n_prompt)
