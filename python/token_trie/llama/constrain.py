"""`constrain`: every call of a `Llama` in a ``with`` block answers with a member of the set."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, BusyError
from token_trie.llama.contexts import require_decoder
from token_trie.llama.query import RELEASE, STEP_MODES, SpanOptions, StepMode, follow_set, read_span
from token_trie.native.core import Llama, _core, llama_cpp, logger, vocab_of
from token_trie.native.options import takes
from token_trie.sets.tokenization import check_start
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.llama.query import SpanKeywords

CONSTRAINED, THINKING = 0, 3  # enum token_trie_state
ROOT = 0
_STOP = -1  # instead of a token

_Logits: TypeAlias = npt.NDArray[np.float32]
_TokenGenerator: TypeAlias = Generator[int, Sequence[int] | None, None]


class ConstrainedCall:
    """One generation: its position in the set, and the members it has finished."""

    def __init__(self, cursor: _core.Cursor, is_greedy: bool) -> None:
        self.cursor = cursor
        self._is_greedy = is_greedy
        self.n_tokens = 0
        self.last = _STOP
        """The last token."""
        self.leaves: list[int] = []

    def mask(self, _: Sequence[int], logits: _Logits) -> _Logits:
        """Set the logits of all tokens that may not come next to -inf: a logits processor."""
        allowed = self.cursor.allowed()
        if allowed is None:
            logits[self.cursor.forbidden()] = -np.inf
            return logits
        kept = logits[allowed]
        kept[np.isnan(kept)] = -np.inf
        if kept.max() == -np.inf:
            kept[:] = 0  # earlier processors removed all of them, and llama.cpp would choose any token
        if self._is_greedy:
            best = int(kept.argmax())
            allowed, kept = allowed[best : best + 1], kept[best : best + 1]
        logits[:] = -np.inf
        logits[allowed] = kept
        return logits

    def accept(self, token: int) -> None:
        """Add a token."""
        self.n_tokens += 1
        self.last = token
        cursor = self.cursor
        if cursor.state in (CONSTRAINED, THINKING):
            cursor.accept(token)
            # A finished member may become the beginning of a longer one, which replaces it.
            del self.leaves[cursor.n_items :]
            # It stays the last one during the separator after it.
            if cursor.leaf is not None:
                self.leaves[cursor.n_items - 1 :] = [cursor.leaf]

    @property
    def complete(self) -> bool:
        """Whether it ended at the end of a member."""
        return self.cursor.leaf is not None and self.cursor.node != ROOT


@takes(SpanOptions)
def constrain(
    llm: Llama,
    trie: TokenTrie,
    mode: StepMode | None = None,
    **options: Unpack[SpanKeywords],
) -> Constraint:
    """Constrain every call of ``llm`` in a ``with`` block: completion, chat, streaming, `Llama.generate`.

    Each call begins at the root of the trie. In the block, the Llama has an attribute ``generate`` of its own, which
    calls `Llama.generate` with a logits processor; at the end of the block it is removed, also after an exception.
    ``max_tokens`` has to be large enough for the longest member (the default of `Llama.__call__` is 16). If a call ends
    inside a member, it has ``finish_reason="length"``, and the logger ``token_trie`` gives a warning. Use no stop
    string that occurs in a member: a match in the member's last token cuts the text, and `Constraint.complete` is still
    True.

    The set is applied on the host, even if the model is on a device. A `StreamHandle` has a context of its own, and
    chooses on the device.

    Begin and read a stream in the block, because llama-cpp-python only begins when it is read: begun after the block,
    it is free text. As always with a Llama, one thread uses it at a time, and a stream ends before another call begins.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. It can be constrained only once at a time.
    trie : TokenTrie
        The set.
    mode : {"greedy", "sampled"}, optional
        "greedy", the default, takes the best allowed token at each step and ignores the call's sampling options.
        "sampled" applies these options to the allowed tokens.
    **options
        Those of `SpanOptions`.

    Returns
    -------
    Constraint
        For a ``with`` statement. It can be used more than once.

    Raises
    ------
    ArgumentError, VocabularyError
        At once: the options, the model and the set do not fit together. In a call: it has a grammar.
    BusyError
        At the start of the block: the model is constrained already. In a stream: it is read after the block, or after
        another call began.
    """
    return Constraint(llm, trie, mode, SpanOptions.read("constrain", options))


class Constraint:
    """Result of `constrain`: a context manager with information about the last call inside the block."""

    def __init__(self, llm: Llama, trie: TokenTrie, mode: StepMode | None, options: SpanOptions) -> None:
        if not isinstance(trie, TokenTrie):
            raise ArgumentError(
                f"trie must be a TokenTrie, not {type(trie).__name__}; make one with "
                "TokenTrie.from_choices(llm, choices, prompt=…)"
            )
        require_decoder(llm)
        vocab = vocab_of(llm)
        span = read_span(vocab, mode, options)
        vocab.check(trie.core)
        self._llm = llm
        self._trie = trie
        self._is_greedy = span.mode == STEP_MODES["greedy"]
        self._releases = span.on_complete == RELEASE
        self._end_of_generation = vocab.end_of_generation()
        self._eos = int(llm.token_eos())
        self._start = _core.Cursor(trie.core, follow_set(trie.core, vocab, span))
        self._generate_before: Callable[..., _TokenGenerator] | None = None
        self._block: object = None  # the current block; None outside
        self._call: ConstrainedCall | None = None  # the last one

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a Constraint cannot be copied or pickled; make another with constrain()")

    def __enter__(self) -> Constraint:
        if isinstance(getattr(self._llm.generate, "__self__", None), Constraint):
            raise BusyError("this Llama is constrained already; leave that block first, or use another Llama")
        self._generate_before = self._llm.__dict__.get("generate")
        self._original = self._llm.generate
        self._block = object()
        self._llm.generate = self._generate
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._block = None
        del self._llm.generate
        if self._generate_before is not None:
            self._llm.generate = self._generate_before

    @property
    def complete(self) -> bool:
        """Whether the last call ended at the end of a member."""
        return self._call is not None and self._call.complete

    @property
    def names(self) -> list[str]:
        """Names of the members that the last call produced: one, unless ``on_complete="restart"``."""
        return [] if self._call is None else [self._trie.core.name(leaf) for leaf in self._call.leaves]

    def _generate(self, *args: Any, **kwargs: Any) -> _TokenGenerator:
        """Call `Llama.generate` with a logits processor that keeps the allowed tokens."""
        if kwargs.get("grammar") is not None:
            raise ArgumentError(
                "a grammar (grammar=, response_format=, or a chat tool choice) cannot be combined with a trie, which "
                "takes its place; leave it out of calls inside constrain()"
            )
        check_start(kwargs["tokens"] if "tokens" in kwargs else args[0], self._trie.start_token)
        call = ConstrainedCall(copy.copy(self._start), self._is_greedy)
        processors = [*(kwargs.pop("logits_processor", None) or ()), call.mask]
        kwargs["logits_processor"] = llama_cpp.LogitsProcessorList(processors)
        return self._steps(call, self._original(*args, **kwargs), self._block)

    def _steps(self, call: ConstrainedCall, tokens: _TokenGenerator, block: object) -> _TokenGenerator:
        sent, has_begun = None, False
        try:
            while (end := self._due_end(call)) != _STOP:
                if self._block is not block or (has_begun and self._call is not call):
                    why = "its constrain() block ended" if self._block is not block else "another call began"
                    raise BusyError(f"this generation cannot go on: {why}; read a stream to its end inside the block")
                self._call, has_begun = call, True
                try:
                    token = tokens.send(sent) if end is None else end
                except StopIteration:
                    return
                call.accept(token)
                sent = yield token
        finally:
            tokens.close()
            if call.n_tokens and not call.complete:
                logger.warning(
                    "generation stopped inside a member, after %d tokens: its text is none of the set; max_tokens may "
                    "be too small, or a stop string matched",
                    call.n_tokens,
                )

    def _due_end(self, call: ConstrainedCall) -> int | None:
        """Return the end token that must come next without the model; _STOP to end without one; else None."""
        cursor, ends = call.cursor, self._end_of_generation
        if cursor.state == THINKING:
            return None
        if cursor.state == CONSTRAINED:
            allowed = None if cursor.leaf is None else cursor.allowed()
            candidates = [] if allowed is None or len(allowed) > len(ends) else allowed.tolist()
            if not candidates or not set(candidates).issubset(ends):
                return None
        elif self._releases:
            return None
        else:
            # After an end token given by the caller must come one that llama-cpp-python takes as an end.
            candidates = [] if call.last in ends else ends
        return self._eos if self._eos in candidates else next(iter(candidates), _STOP)
