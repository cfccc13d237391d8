"""Fills in a record, or whatever else is forced, decided and generated in one text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from token_trie.decisions.bound import Reader
from token_trie.decisions.options import RecordOptions
from token_trie.decisions.records.decoder import RecordDecoder
from token_trie.decisions.records.layout import Layout
from token_trie.decisions.records.record import Record, RecordStats
from token_trie.decisions.records.types import RecordTemplate
from token_trie.decisions.records.writer import Writer
from token_trie.decisions.request import Bound, Prefix, Written
from token_trie.llama.stream import Stream
from token_trie.llama.text import append

R = TypeVar("R")


@dataclass(frozen=True)
class RecordRequest(Written[R]):
    """Something to fill in."""

    options: RecordOptions
    fill: Callable[[Filling], R]
    lead: str = ""
    """What it begins with, in which control tokens may be written out behind a thought."""

    @property
    def draws(self) -> bool:
        """Whether something is drawn."""
        return self.options.effective_temperature(self.options.mode == "sampled") > 0 or self.options.think is not None

    def bind(self, reader: Reader, prefix: Prefix) -> BoundRecord[R]:
        """Bind it to what it stands behind."""
        return BoundRecord(self, prefix.tokens, prefix)


@dataclass(frozen=True)
class BoundRecord(Bound[R]):
    """Something to fill in behind a prompt."""

    request: RecordRequest[R]
    tokens: list[int]
    prefix: Prefix

    def run(self, stream: Stream) -> R:
        """Fill it in; the stream's sequence is then the prompt and that, its grammar what it was."""
        with stream.other_grammars():
            return self.request.fill(Filling(stream, self.request.options, self.prefix, self.request.lead))


class Filling:
    """One record under way."""

    def __init__(self, stream: Stream, options: RecordOptions, prefix: Prefix, lead: str) -> None:
        self._started = time.perf_counter()
        self._thought = prefix.thought
        n_prompt = len(prefix.tokens)
        if prefix.thought is not None and lead:
            append(stream, lead)
            n_prompt = stream.state.n_tokens
            lead = ""
        if options.seed is not None:
            stream.set_seed(options.seed)
        self._stream = stream
        self._before = stream.state
        self._n_prompt = n_prompt
        standing = None if prefix.is_standing else prefix.tokens
        mode = options.mode or "exact"
        self.writer = Writer(stream, mode, options.settled(mode == "sampled"), options.max_nodes, standing)
        self.writer.write(lead)
        self.decoder = RecordDecoder(self.writer, Layout(options.indent), options.max_tokens, options.on_text)

    def told(self) -> tuple[tuple[str, ...], RecordStats, str | None]:
        """Return what was closed before its end, what it took, and what was thought; all is then in the sequence."""
        self.writer.flush()
        return tuple(self.decoder.truncated), self.stats(), None if self._thought is None else self._thought.text

    def stats(self) -> RecordStats:
        """Return what it took."""
        before, after = self._before, self._stream.state
        return RecordStats(
            n_prompt=self._n_prompt,
            n_tokens=after.n_tokens - self._n_prompt,
            n_choices=self.writer.n_choices,
            n_branches=after.n_branches - before.n_branches,
            n_free=after.n_free - before.n_free + self.writer.n_ends,
            n_passes=after.n_passes - before.n_passes + self.writer.n_searched,
            n_evaluated=self.writer.n_evaluated,
            n_unproved=self.writer.n_unproved,
            fill_ms=(time.perf_counter() - self._started) * 1e3 + (0 if self._thought is None else self._thought.ms),
        )


def record_request(template: RecordTemplate, options: RecordOptions) -> RecordRequest[Record[Any]]:
    """Request a record of a template."""

    def fill(under_way: Filling) -> Record[Any]:
        text = under_way.decoder.run(template.node)
        return Record(template.read(text), text, under_way.decoder.probabilities, *under_way.told())

    return RecordRequest(options, fill)
