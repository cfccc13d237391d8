"""Requests and their drivers: on a stream, in a batch, after the text of a handle; the request for free text."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from token_trie.arrays import Floats, Ints
from token_trie.decisions.bound_choices import BoundCalibration, BoundChoices, Reader, WithModel, reader_of
from token_trie.decisions.calibration import fingerprint
from token_trie.decisions.options import ChooseOptions, ListOptions, RecordOptions, Think
from token_trie.errors import ArgumentError, CancelledError, ContextError, TokenTrieError
from token_trie.llama.batch import Batch, SharedBatch, own_stream_of, shared_batch_of
from token_trie.llama.contexts import check_room, common_prefix
from token_trie.llama.query import NO_ANSWER, Answer, LeafEnd, Query, SpanOptions, read_span
from token_trie.llama.stream import STOPS, Stream
from token_trie.llama.text import Text, TextOptions, text_of, tokenize_after
from token_trie.native.core import Llama, _core
from token_trie.native.ffi import lib
from token_trie.native.lifetime import LruCache, attachment, cache_in
from token_trie.native.options import check_limits, nth_seed
from token_trie.sets.prompt import Prompt
from token_trie.sets.tokenization import inner_tokens
from token_trie.sets.trie import TokenTrie

R = TypeVar("R")
T = TypeVar("T")


class Prefix(NamedTuple):
    """Tokens before the answer of a request."""

    tokens: list[int]
    is_standing: bool = False
    """Whether the stream's sequence is these tokens already."""
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
    def steps(self, reader: Reader, prefix: Prefix) -> Plan[R]:
        """Yield its steps after a prompt.

        ArgumentError, VocabularyError or ContextError if request, prompt and model do not fit together.
        """


class Written(Request[R]):
    """A request whose answer the model writes, after a thought if one is requested."""

    options: ChooseOptions | ListOptions | RecordOptions

    @property
    def think(self) -> Think | None:
        """How to think before the answer, by the seed of the answer if it has one; None: not at all."""
        think, seed = self.options.think, self.options.seed
        return think if think is None or seed is None else replace(think, seed=seed)


class PlanStep(NamedTuple):
    """A query and its prompt."""

    tokens: list[int]
    query: Query | None
    """None: these tokens are left as the sequence of a handle."""
    is_beside: bool = False
    """Whether the stream's sequence must not change."""


Plan: TypeAlias = Generator[PlanStep, Answer, R]
"""Yields steps, is sent their answers, and returns the result."""


class Running(Generic[R]):
    """A plan under way, at a step."""

    step: PlanStep | None
    """The step that is to be answered; None: the plan has ended."""
    result: R
    """The result, once it has ended."""

    def __init__(self, plan: Plan[R]) -> None:
        self._plan = plan
        self._go_on(plan.__next__)

    def read(self, answer: Callable[[], Answer]) -> None:
        """Go on with the answer to its step, or with the error that is raised instead."""
        try:
            found = answer()
        except TokenTrieError as error:
            self._go_on(partial(self._plan.throw, error))
        else:
            self._go_on(partial(self._plan.send, found))

    def rest(self) -> Plan[R]:
        """Yield its further steps, as part of another plan."""
        while self.step is not None:
            try:
                answer = yield self.step
            except TokenTrieError as error:
                self._go_on(partial(self._plan.throw, error))
            else:
                self._go_on(partial(self._plan.send, answer))
        return self.result

    def _go_on(self, following: Callable[[], PlanStep]) -> None:
        try:
            self.step = following()
        except StopIteration as end:
            self.step, self.result = None, end.value

    def submit(self, batch: Batch) -> int:
        """Put its step into a batch; return the ticket, or 0 if it has ended."""
        while self.step is not None:
            assert self.step.query is not None  # because a batch has no handle
            try:
                return batch.submit(self.step.tokens, self.step.query)
            except TokenTrieError as error:
                self._go_on(partial(self._plan.throw, error))
        return 0


def drive(running: Running[R], stream: Stream, sequence: Sequence[int] = ()) -> R:
    """Answer the steps of a plan on a stream, with the time of their prompts; its errors are raised inside the plan.

    If the stream's sequence is known, only what differs is replaced.
    """
    n_cancels = stream.n_cancels

    def answer(step: PlanStep) -> Answer:
        nonlocal sequence
        if stream.n_cancels != n_cancels:
            raise CancelledError("cancelled between two steps")
        found = _answer(stream, step, sequence)
        if not step.is_beside:
            sequence = [*step.tokens, *found.tokens]
        return found

    while running.step is not None:
        running.read(partial(answer, running.step))
    return running.result


_MAX_SPLICED = 32
"""More new tokens are a prompt, which Ctrl-C can interrupt."""


def _answer(stream: Stream, step: PlanStep, sequence: Sequence[int]) -> Answer:
    if step.is_beside:
        assert step.query is not None
        return stream.answer(step.query, None if stream.tokens == step.tokens else step.tokens)
    started = time.perf_counter_ns()
    n_same = common_prefix(sequence, step.tokens) if sequence else 0
    if step.query is not None and (n_same == 0 or len(step.tokens) - n_same > _MAX_SPLICED):
        stream.prefill(step.tokens)
    elif n_same < max(len(step.tokens), len(sequence)):
        stream.splice(n_same, step.tokens[n_same:])
    if step.query is None:
        return NO_ANSWER
    prompt_ns = time.perf_counter_ns() - started
    answer = stream.answer(step.query)
    answer.figures.prompt_ns = prompt_ns
    return answer


_MAX_PRIORS, _MAX_SCORES = 64, 1_000_000


def calibrated(reader: Reader, calibration: BoundCalibration | None) -> Plan[BoundCalibration | None]:
    """Return a calibration that is ready for use: its prompt is scored first, unless the scores are remembered."""
    if calibration is None or calibration.unscored is None:
        return calibration
    memory: LruCache[Floats] = cache_in(reader.known, "priors", _MAX_PRIORS, _MAX_SCORES)
    tokens, choices = calibration.unscored
    key = choices.trie, tuple(tokens), calibration.leaf_end
    of_leaves = memory.find(key)
    if of_leaves is None:
        of_leaves = (yield PlanStep(tokens, Query("scores", choices.trie, leaf_end=calibration.leaf_end))).logprobs
        memory.put(key, len(choices.trie), of_leaves)
    return calibration.with_prior(choices.aligned(of_leaves))


_KEPT = 100_000
"""Number of answers whose scores without content are remembered."""


def scores_of_found(
    known: dict[object, Any], tokens: list[int], choices: BoundChoices[Any], leaves: Ints, leaf_end: LeafEnd
) -> Plan[tuple[Floats, int]]:
    """Return the scores of leaves after a prompt without content, and the number of tokens evaluated for them.

    They are remembered in `known`, because the same answers are often found.
    """
    memory: LruCache[float] = cache_in(known, "scores of found answers", _KEPT, _KEPT)
    prompt = leaf_end, sha256(np.array(tokens, np.int32).tobytes()).digest()
    keys = {leaf: (prompt, *choices.spelled(leaf)) for leaf in leaves.tolist()}
    scores = {leaf: memory.find(key) for leaf, key in keys.items()}
    new, n_evaluated = np.array([leaf for leaf, score in scores.items() if score is None], np.int64), 0
    if len(new):
        query = Query("scores", choices.few(new), leaf_end=leaf_end)
        try:
            answer = yield PlanStep(tokens, query, is_beside=True)
        except ContextError:  # both do not fit: in the place of the sequence
            answer = yield PlanStep(tokens, query)
        n_evaluated = int(answer.figures.n_evaluated)
        for leaf, score in zip(new.tolist(), answer.logprobs.tolist(), strict=False):
            scores[leaf] = score
            memory.put(keys[leaf], 1, score)
    return np.array([scores[leaf] for leaf in leaves.tolist()], np.float64), n_evaluated


_RESPELLED = 16
"""Extra tokens for a marker that begins inside a token and is tokenized again."""


_CHECK_EVERY = 8
"""Tokens of a thought between two checks of its time limit."""


def thought_after(think: Think, tokens: list[int], with_model: WithModel) -> Plan[Prefix]:
    """Let the model think after tokens; return them with the thought and its marker."""
    marker: list[int] = with_model(
        lambda vocab, _: inner_tokens(think.marker, "think: marker", vocab, special=True).tolist()
    )
    span = with_model(lambda vocab, _: read_span(vocab, None, SpanOptions(start_after=marker)))
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
        answer = yield PlanStep(tokens, query)
        stop = answer.figures.stop
        if stop == lib.TOKEN_TRIE_STOP_MAX_TOKENS and (is_last or not answer.tokens):
            raise ContextError("the context is full before the thought has ended")
        seam, tokens = len(tokens), [*tokens, *answer.tokens]
        ns, n_texts = ns + answer.figures.decide_ns, n_texts + 1
        written = {"tokens": tokens, "start": start, "seam": seam, "stop": stop}
        found = with_model(partial(end_of_thought, think=think, marker=marker, **written))
        if found is not None:
            return Prefix(found[0], thought=found[1], thought_ms=ns / 1e6)


def end_of_thought(
    vocab: _core.Vocab, _: object, think: Think, marker: list[int], tokens: list[int], start: int, seam: int, stop: int
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


def run(llm: Llama, prompt: Prompt, request: Request[R]) -> R:
    """Answer a request after a prompt; errors are those of `Request.steps` and of `chooser`."""
    running = begin(llm, prompt, request)
    attached = attachment(llm)
    own = own_stream_of(llm, attached)
    shared = shared_batch_of(llm, attached, own)
    if shared is not None:
        return _run_in(shared, running)
    with own.lent() as stream:
        return drive(running, stream)


def begin(llm: Llama, prompt: Prompt, request: Request[R], n_ctx: int | None = None) -> Running[R]:
    """Begin a request after a prompt; see `Request.steps` and `reader_of`."""
    reader = reader_of(llm, n_ctx)
    tokens = reader.tokenize(prompt, thinks=request.thinks)
    if request.think is None:
        return Running(request.steps(reader, Prefix(tokens)))
    Running(request.silent().steps(reader, Prefix(tokens)))  # they fit together, so the model may think
    return Running(_think_then(reader, request, request.think, tokens))


def _think_then(reader: Reader, request: Request[R], think: Think, tokens: list[int]) -> Plan[R]:
    prefix = yield from thought_after(think, tokens, reader.with_model)
    return (yield from then(reader, request, prefix))


def then(reader: Reader, request: Request[R], prefix: Prefix) -> Plan[R]:
    """Answer a request as the rest of another plan."""
    running: Running[R] = reader.with_model(lambda *_: Running(request.steps(reader, prefix)))
    return (yield from running.rest())


def run_behind(stream: Stream, request: Request[R]) -> R:
    """Answer a request after the stream's sequence, which then ends with the answer; the trie is removed.

    If that fails, the sequence and the trie are restored.
    """
    with stream.transaction() as before:
        if not before:
            raise ArgumentError("there is no text to continue: prefill first")
        prefix = Prefix(before, is_standing=True)
        if request.think is not None:
            prefix = drive(Running(thought_after(request.think, before, stream.with_model)), stream)
            stream.prefill(prefix.tokens)
            prefix = prefix._replace(is_standing=True)
        answer = drive(read_on(stream, partial(request.steps, prefix=prefix)), stream, prefix.tokens)
        # Even without tokens, because this restarts the grammar after the answer.
        stream.splice(stream.raw_state.n_tokens, [])
        stream.clear_span()
        return answer


def read_on(stream: Stream, steps: Callable[[Reader], Plan[R]]) -> Running[R]:
    """Begin a plan by a reader of the stream's own model."""
    n_ctx, tokenize = stream.n_ctx_max, stream.tokenize
    model = partial(fingerprint, stream.llm)
    return stream.with_model(
        lambda vocab, known: Running(steps(Reader(vocab, known, tokenize, n_ctx, model, stream.with_model, "handle")))
    )


def _run_in(shared: SharedBatch, running: Running[R]) -> R:
    """Answer together with other threads, in a shared batch."""
    while (answer := shared.answer(running.submit)) is not None:
        try:
            running.read(answer.found)
        except TokenTrieError:
            shared.require_open()
            raise
    return running.result


MAX_TOKENS = 1024
"""Default length limit of a text, in tokens; the context may allow fewer."""


@dataclass(frozen=True)
class TextRequest(Request[Text]):
    """A request for free text after a prompt."""

    max_tokens: int | None = None
    """Largest number of tokens, limited by the space in the context; None: `MAX_TOKENS`."""
    options: TextOptions = field(default_factory=TextOptions)
    GRAMMAR: ClassVar[str | None] = None
    """The grammar of the text, if any."""

    def __post_init__(self) -> None:
        check_limits(0, max_tokens=self.max_tokens)

    @property
    def thinks(self) -> bool:
        """Whether a grammar leaves room for a thought, which is text too."""
        return self.GRAMMAR is None

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
        query = Query("text", sampling=self.options, max_tokens=max_tokens, stop_strings=stops, gbnf=self.GRAMMAR)
        answer = yield PlanStep(prefix.tokens, query)
        tokens, found = list(answer.tokens), answer.figures.stop_string
        text = reader.with_model(lambda vocab, _: text_of(vocab, tokens))
        return Text(text, tokens, STOPS[answer.figures.stop], stops[found] if found >= 0 else None, n_prompt)
