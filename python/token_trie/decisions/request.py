"""Requests: checked options that make a plan after a prompt; thoughts before the answer; the request for free text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from token_trie.decisions.options import ChooseOptions, ListOptions, RecordOptions, Think
from token_trie.errors import ContextError
from token_trie.llama.query import Ask, Plan, Query, SpanOptions, read_span
from token_trie.llama.stream import STOPS
from token_trie.llama.text import Text, TextOptions, text_of, tokenize_after
from token_trie.native.core import _core
from token_trie.native.ffi import lib
from token_trie.native.options import check_limits, nth_seed
from token_trie.plan import Model
from token_trie.sets.prompt import Prompt
from token_trie.sets.tokenization import inner_tokens
from token_trie.sets.trie import TokenTrie

R = TypeVar("R")


class Prefix(NamedTuple):
    """Tokens before the answer to a request."""

    tokens: list[int]
    thought: str | None = None
    """The thought at its end, before the marker."""
    thought_ms: float = 0.0


class Request(ABC, Generic[R]):
    """A question for the model, with checked options."""

    @property
    def think(self) -> Think | None:
        """How to think before the answer; None: not at all."""
        return None

    @property
    def thinks(self) -> bool:
        """Whether the model may think after chat messages, before the answer or in it."""
        return self.think is not None

    def silent(self) -> Request[R]:
        """Return the same request without reports of what is written."""
        return self

    @abstractmethod
    def after(self, model: Model, prefix: Prefix) -> Plan[R]:
        """Plan the answer after a prefix.

        ArgumentError, VocabularyError or ContextError if request, prefix and model do not fit together.
        """

    def plan(self, model: Model, prompt: Prompt) -> Plan[R]:
        """Plan a thought, if one is requested, and the answer."""
        prefix, think = Prefix(model.tokenize(prompt, thinks=self.thinks)), self.think
        return self.after(model, prefix) if think is None else self._after_thought(model, prefix, think)

    def _after_thought(self, model: Model, prefix: Prefix, think: Think) -> Plan[R]:
        next(self.silent().after(model, prefix))  # before the model thinks, because they may not fit together
        prefix = yield from thought_after(think, prefix.tokens, model)
        return (yield from self.after(model, prefix))


class Written(Request[R]):
    """A request whose answer the model writes, after a thought if one is requested."""

    options: ChooseOptions | ListOptions | RecordOptions

    @property
    def think(self) -> Think | None:
        """How to think before the answer, by the seed of the answer if it has one; None: not at all."""
        think, seed = self.options.think, self.options.seed
        return think if think is None or seed is None or not think.draws else replace(think, seed=seed)


_RESPELLED = 16
"""Extra tokens for a marker that begins inside a token and is tokenized again."""


_CHECK_EVERY = 8
"""Tokens of a thought between two checks of its time limit."""


def thought_after(think: Think, tokens: list[int], model: Model) -> Plan[Prefix]:
    """Let the model think after tokens; return them with the thought and its marker."""
    vocab = model.vocab
    marker: list[int] = inner_tokens(think.marker, "think: marker", vocab, special=True).tolist()
    span = read_span(vocab, None, SpanOptions(start_after=marker))
    start, ns, n_texts = len(tokens), 0, 0
    # A seed of its own, as the answer draws by the given one.
    seed = None if think.seed is None else nth_seed(think.seed, 0)
    while True:
        is_late = think.seconds is not None and ns >= think.seconds * 1e9
        left = 0 if is_late else think.max_tokens - (len(tokens) - start)
        is_last = think.seconds is None or left <= _CHECK_EVERY
        span.max_before = left
        query = Query(
            "text",
            TokenTrie.from_sequences({"": marker[:1]}),  # any set, as its span never begins
            sampling=replace(think, seed=None if seed is None else nth_seed(seed, n_texts)),
            # Or as many as fit into the context.
            max_tokens=left + len(marker) + _RESPELLED if is_last else _CHECK_EVERY,
            span=span,
            stop_strings=[think.marker] if isinstance(think.marker, str) else [],
        )
        (answer,) = yield [Ask(tokens, query)]
        stop = answer.figures.stop
        if stop == lib.TOKEN_TRIE_STOP_MAX_TOKENS and (is_last or not answer.tokens):
            raise ContextError("the context is full before the thought has ended")
        seam, tokens = len(tokens), [*tokens, *answer.tokens]
        ns, n_texts = ns + answer.figures.decide_ns, n_texts + 1
        found = end_of_thought(vocab, think, marker, tokens, start, seam, stop)
        if found is not None:
            return Prefix(found[0], thought=found[1], thought_ms=ns / 1e6)


def end_of_thought(
    vocab: _core.Vocab, think: Think, marker: list[int], tokens: list[int], start: int, seam: int, stop: int
) -> tuple[list[int], str] | None:
    """Find the end of a thought, which began at `start` and whose last text began at `seam` and ended for `stop`.

    Returns the tokens up to and including the marker, and the text of the thought; None if it goes on.
    """

    def bytes_to(end: int) -> bytes:
        return vocab.detokenize(tokens[start:end])

    written, text = bytes_to(len(tokens)), str(think.marker).encode()
    end = next((i for i in range(start, len(tokens)) if tokens[i : i + len(marker)] == marker), -1)
    if seam > start and isinstance(think.marker, str):  # the marker may have begun before the seam, in other tokens
        at = written.find(text)
        if at >= 0 and (end < 0 or at < len(bytes_to(end))):
            n_kept = next(n for n in range(len(tokens), start - 1, -1) if written[:at].startswith(bytes_to(n)))
            n_kept, more = tokenize_after(vocab, tokens[:n_kept], written[len(bytes_to(n_kept)) : at] + text)
            return tokens[:n_kept] + more, written[:at].decode(errors="replace")
    if end >= 0:
        return tokens[:end] + marker, bytes_to(end).decode(errors="replace")
    if stop == lib.TOKEN_TRIE_STOP_STRING:
        n_kept, more = tokenize_after(vocab, tokens, text)
        return tokens[:n_kept] + more, written.decode(errors="replace")
    return None


MAX_TOKENS = 1024
"""Default length limit of a text, in tokens; the context may allow fewer."""


@dataclass(frozen=True)
class TextRequest(Request[Text]):
    """A request for free text after a prompt."""

    max_tokens: int | None = None
    """Largest number of tokens, limited by the space in the context; None: `MAX_TOKENS`."""
    options: TextOptions = field(default_factory=TextOptions)

    def __post_init__(self) -> None:
        check_limits(0, max_tokens=self.max_tokens)

    @property
    def thinks(self) -> bool:
        """A thought is text too."""
        return True

    def after(self, model: Model, prefix: Prefix) -> Plan[Text]:
        """Plan the text."""
        max_tokens, stops, n_prompt = self.max_tokens, list(self.options.stop), len(prefix.tokens)
        max_tokens = MAX_TOKENS if max_tokens is None else max_tokens
        model.check_room(n_prompt, min(max_tokens, 1))
        query = Query("text", sampling=self.options, max_tokens=max_tokens, stop_strings=stops)
        (answer,) = yield [Ask(prefix.tokens, query)]
        tokens, found = list(answer.tokens), answer.figures.stop_string
        stop, text = STOPS[answer.figures.stop], text_of(model.vocab, tokens)
        return Text(text, tokens, stop, stops[found] if found >= 0 else None, n_prompt)
