"""Fills in a record behind a sequence; where that fails, the sequence is what it was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

from token_trie.decisions.records.layout import Layout
from token_trie.decisions.records.record import Record, RecordStats
from token_trie.decisions.records.types import Form
from token_trie.decisions.records.walk import Walk
from token_trie.decisions.records.writer import Mode, Writer
from token_trie.decisions.think import Think, check_think, think_first
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.program import Program
from token_trie.native.arguments import check_counts, check_draws, lookup

MODES = {"exact": 0, "greedy": 1, "sampled": 2}


class FillOptions(TypedDict, total=False):
    """Options of `fill`."""

    mode: Mode
    temperature: float | None
    top_p: float
    seed: int | None
    max_nodes: int | None
    max_tokens: int
    indent: int | None
    on_text: Callable[[str], object] | None
    think: Think | None


@dataclass(frozen=True)
class How:
    """How to fill in."""

    mode: Mode
    temperature: float
    top_p: float
    seed: int | None
    max_nodes: int | None
    max_tokens: int
    layout: Layout
    on_text: Callable[[str], object] | None
    think: Think | None


def read_how(
    *,
    mode: Mode = "exact",
    temperature: float | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
    max_nodes: int | None = 24,
    max_tokens: int = 256,
    indent: int | None = None,
    on_text: Callable[[str], object] | None = None,
    think: Think | None = None,
) -> How:
    """Check options; ArgumentError for those that are out of range."""
    lookup(mode, MODES, "mode")
    if temperature is None:
        temperature = 1.0 if mode == "sampled" else 0.0
    check_draws(temperature, top_p, seed, may_be_zero=mode != "sampled")
    check_counts(max_tokens=max_tokens, max_nodes=1 if max_nodes is None else max_nodes)
    if indent is not None:
        check_counts(0, indent=indent)
        if indent > 16:
            raise ArgumentError(f"indent: {indent} is above 16")
    if on_text is not None and not callable(on_text):
        raise ArgumentError(f"on_text: {type(on_text).__name__} cannot be called")
    check_think(think)
    return How(mode, temperature, top_p, seed, max_nodes, max_tokens, Layout(indent), on_text, think)


class Filling:
    """One record under way."""

    def __init__(self, handle: Program, how: How, prompt: list[int] | None, lead: str) -> None:
        self._started = time.perf_counter()
        self.thought: str | None = None
        if how.think is not None:
            if prompt is not None:
                handle.prefill(prompt)
                prompt = None
            self.thought = think_first(handle, how.think, how.seed)
            if lead:
                handle.append(lead)
                lead = ""
        if how.seed is not None:
            handle.set_seed(int(how.seed))
        self._handle = handle
        self._before = handle.state
        self._n_prompt = self._before.n_tokens if prompt is None else len(prompt)
        self.writer = Writer(handle, how.mode, how.temperature, how.top_p, how.max_nodes, prompt)
        self.writer.write(lead)
        self.walk = Walk(self.writer, how.layout, how.max_tokens, how.on_text)

    def told(self) -> tuple[tuple[str, ...], RecordStats, str | None]:
        """Return what was closed before its end, what it took, and what was thought."""
        return tuple(self.walk.truncated), self.stats(), self.thought

    def stats(self) -> RecordStats:
        """Return what it took."""
        before, after = self._before, self._handle.state
        return RecordStats(
            n_prompt=self._n_prompt,
            n_tokens=after.n_tokens - self._n_prompt,
            n_choices=self.writer.n_choices,
            n_branches=after.n_branches - before.n_branches,
            n_free=after.n_free - before.n_free + self.writer.n_ends,
            n_passes=after.n_passes - before.n_passes + self.writer.n_searched,
            n_evaluated=self.writer.n_evaluated,
            n_unproved=self.writer.n_unproved,
            fill_ms=(time.perf_counter() - self._started) * 1e3,
        )


@contextmanager
def filling(handle: Program, how: How, prompt: list[int] | None = None, lead: str = "") -> Iterator[Filling]:
    """Let something be written, behind what stands or a prompt in its place.

    The sequence goes on behind it, or, after an error, is what it was. It begins with the lead, in which control tokens
    may be written out behind a thought.
    """
    n_changes = handle._n_changes
    try:
        with handle._restored() as before:
            if prompt is None and not before:
                raise ArgumentError("nothing to write behind: prefill first")
            under_way = Filling(handle, how, prompt, lead)
            yield under_way
            under_way.writer.flush()
            handle.clear_token_trie()
    finally:
        if handle._n_changes != n_changes:
            with contextlib.suppress(TokenTrieError):
                handle._set_grammar(*handle._grammar)


def fill_in(handle: Program, form: Form, how: How, prompt: list[int] | None = None) -> Record[Any]:
    """Fill in a record, behind what stands or a prompt in its place."""
    with filling(handle, how, prompt) as under_way:
        text = under_way.walk.run(form.node)
        value = form.read(text)
        under_way.writer.flush()
        return Record(value, text, under_way.walk.probabilities, *under_way.told())
