"""`StreamHandle`: text token by token, under a trie, a grammar, or free; forced tokens at no cost."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from token_trie.errors import ArgumentError, BusyError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.contexts import NativeStream, interruptible, open_file, open_on
from token_trie.llama.dropped import close_with, wait_for_dropped
from token_trie.llama.evaluated import Evaluated, common_prefix
from token_trie.llama.generation import Generation, StreamState, new_token, state_of
from token_trie.llama.options import stream_params
from token_trie.llama.span import SetTrie, SpanOptions, StepMode, native_params, read_span
from token_trie.native.arguments import check_integers, check_numbers, encode, native_seed
from token_trie.native.core import Llama
from token_trie.native.ffi import ffi, lib, new_struct
from token_trie.native.lease import attachment, lease
from token_trie.native.options import takes
from token_trie.sets.prompt import Prompt, tokenize_alone, tokenize_prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.llama.span import SpanKeywords


class StreamHandle:
    """Generates from a model on a context of its own.

    Parameters
    ----------
    llm : llama_cpp.Llama or path
        A loaded model, whose weights are shared while the context is the handle's own; or a GGUF file.
    n_ctx : int, optional
        Tokens that it holds at most; by default as many as the Llama, or for a file what the model was trained with.
        The context is small at first and grows with what is asked of it.
    seed : int, optional
        For draws: the same seed draws the same tokens; by default others each time.
    top_k, min_p, penalty_last_n, penalty_repeat, penalty_freq, penalty_present
        Sampling beside temperature and top_p; 0 is off, as is ``penalty_repeat=1``.
    jump_forward : bool
        Whether forced tokens are passed on unevaluated and join the next batch. Without, each token is evaluated alone,
        which is slower and bit-exact to other one-token loops on quantized models too.
    n_threads, n_gpu_layers : int
        For a file: as in llama-cpp-python; ``n_gpu_layers=-1`` for all.
    device_sampling : {"auto", True, False}
        Whether steps under a trie choose where the logits are, inside llama.cpp's compute graph, so that 8 bytes leave
        a device in place of a row of the vocabulary, or the logits of the allowed tokens where one is drawn. "auto":
        where the model's last layer is on a device. Answers are the same; `state.n_on_device` counts such passes, and
        is 0 where the model or llama.cpp has no such way, as models that are not attention alone.

    Raises
    ------
    ArgumentError
        The model cannot be loaded, an option is out of range.
    LlamaVersionError
        Another llama.cpp is loaded than the one compiled against.

    Notes
    -----
    One call at a time: another meanwhile raises BusyError, and so does what would change the text that a `Generation`
    of another thread is reading. `cancel`, `close` and `Llama.close` may come from any thread, at any time: they end
    the call under way and wait for it. Native calls release the GIL, and an interrupt from the keyboard ends them. A
    handle is a context manager; with a Llama, it is closed before the model at the latest. It cannot be copied, and in
    a forked process it refuses to work.
    """

    def __init__(
        self,
        llm: Llama | str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        seed: int | None = None,
        top_k: int = 0,
        min_p: float = 0.0,
        penalty_last_n: int = 0,
        penalty_repeat: float = 1.0,
        penalty_freq: float = 0.0,
        penalty_present: float = 0.0,
        jump_forward: bool = True,
        n_threads: int = 0,
        n_gpu_layers: int = 0,
        device_sampling: Literal["auto"] | bool = "auto",
    ) -> None:
        self._set: SetTrie | None = None  # the trie that is set
        self._sets: dict[str | None, TokenTrie] = {}  # of the payload given, by path
        self._grammar: tuple[str | None, str] = None, "root"  # that is set
        self._known: dict[object, Any] = {}  # of a file's model
        self._is_behind = False  # a prefill failed, and what it took from the cache is to be evaluated again
        params = stream_params(
            n_ctx=n_ctx,
            seed=seed,
            top_k=top_k,
            min_p=min_p,
            penalty_last_n=penalty_last_n,
            penalty_repeat=penalty_repeat,
            penalty_freq=penalty_freq,
            penalty_present=penalty_present,
            jump_forward=jump_forward,
            n_threads=n_threads,
            n_gpu_layers=n_gpu_layers,
            device_sampling=device_sampling,
        )
        self._llm: Llama | None = None
        self._like: Callable[[], Llama | None] = _none  # a weak reference to it
        self._evaluated: Evaluated | None = None
        self._prompt = np.empty(0, np.int32)  # what the sequence begins with
        wait_for_dropped()
        if isinstance(llm, (str, os.PathLike)):
            native = open_file(encode(os.fspath(llm), "llm"), params)
        else:
            attached = attachment(llm)
            native = open_on(llm, attached, None if n_ctx is None else int(n_ctx), params)
            self._llm = llm
            self._like = weakref.ref(llm)
            self._evaluated = attached.evaluated
        self._begin(native)

    def _begin(self, native: NativeStream) -> None:
        self._native = native
        close_with(self, native)
        self._n_cancels = 0
        self._n_changes = 0  # of what a generation would give
        self._token = new_token()
        self._cancelled = False  # between two steps, when the native side has nothing to cancel
        self._generation: Callable[[], Generation | None] = _none  # a weak reference to the one under way

    def __enter__(self) -> StreamHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the context; a call that another thread is in ends first. Closing twice does nothing.

        From a signal's handler or a log callback inside a call of this very thread, it returns at once, and the context
        is freed after that call.
        """
        self._native.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a StreamHandle cannot be copied or pickled: its context is one; open another")

    def prefill(self, prompt: Prompt) -> None:
        """Make the sequence this prompt, evaluated; what it shares with the one before is not evaluated again.

        Nor is what the Llama has evaluated: where that is more, and nobody is at work in it, it is copied. The Llama
        stays as it is.

        Parameters
        ----------
        prompt : str, sequence of int, or sequence of chat messages
            A handle on a file takes text or tokens, but no messages.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, CancelledError
            The sequence before is kept.
        BusyError
            Another call is under way, or a generation of another thread. One of this thread is over.
        """
        tokens = np.array(self._tokenize_prompt(prompt), np.int32)
        buffer = ffi.from_buffer("llama_token[]", tokens)
        thread = get_ident()

        def before() -> None:
            self._check_reader(thread)
            llm = self._like()
            if llm is not None and self._evaluated is not None:
                n_there = common_prefix(self._prompt, tokens)
                self._evaluated.copy_to(self._native.pointer, llm, tokens, n_there)

        def after() -> None:
            self._n_changes += 1
            self._replace()
            self._prompt = tokens

        def call() -> None:
            self._native.call(lib.token_trie_stream_prefill, buffer, len(tokens), before=before, after=after)

        try:
            if len(tokens) > 32:
                interruptible(call, self._native.cancel)
            else:
                call()
        except BaseException:
            self._is_behind = True
            raise
        self._is_behind = False

    async def aprefill(self, prompt: Prompt) -> None:
        """Do as `prefill` does, on a worker thread, while the event loop goes on."""
        await in_worker(lambda: self.prefill(prompt), self._cancel_of)

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Put what is generated from here on under a GBNF grammar; None for none. A trie takes its place while set.

        Raises
        ------
        GrammarError
            It does not parse. The grammar before is kept.
        """
        self._set_grammar(gbnf, root)
        self._grammar = gbnf, root

    def _set_grammar(self, gbnf: str | None, root: str) -> None:
        text = ffi.NULL if gbnf is None else encode(gbnf, "gbnf")
        self._change(lib.token_trie_stream_set_grammar, text, encode(root, "root"))

    @takes(SpanOptions)
    def set_token_trie(
        self,
        trie: TokenTrie | str | bytes | Mapping[str, Any] | None = None,
        mode: StepMode | None = None,
        *,
        path: str | None = None,
        **options: Unpack[SpanKeywords],
    ) -> None:
        """Put what is generated from here on under a trie, from its root.

        Parameters are those of `constrain`, and a trie may also be a TokenTreePayload, as JSON or dict, with `path`.
        Without one, it is the set of `path` in the payload that `set_payload` was given, which takes no time.
        `StreamState.n_closed` counts the spans that `max_span` ended.

        Raises
        ------
        TokenTrieError
            What `TokenTrie.from_payload` and `constrain` raise. The trie before is kept.
        """
        if trie is None:
            trie = self._set_of(path)
        elif not isinstance(trie, TokenTrie):
            payload = trie
            trie = self._native.with_vocab(lambda vocab: TokenTrie.read_payload(payload, path, vocab))
        rules = SpanOptions.read("set_token_trie", options)
        span = self._native.with_vocab(lambda vocab: read_span(vocab, mode, rules))
        self._put_set(SetTrie(trie, span, native_params(span)))

    def _put_set(self, what: SetTrie) -> None:
        path = next((path for path, trie in self._sets.items() if trie is what.trie), None)
        read = what.trie._payload_bytes() if path is None else b""
        name = ffi.NULL if path is None else ffi.new("char[]", path.encode())
        what.native.params.path = name
        payload = read if path is None else ffi.NULL
        set_trie = lib.token_trie_stream_set_token_trie_ext
        self._change(set_trie, payload, len(read), what.native.params, after=lambda: self._keep(what))

    def _set_of(self, path: str | None) -> TokenTrie:
        """Return one of the payload's sets."""
        if path not in self._sets:
            there = ", ".join(map(repr, list(self._sets)[:5])) or "none: call set_payload first"
            raise ArgumentError(f"path: {path!r} is no path of the payload; there is {there}")
        return self._sets[path]

    def clear_token_trie(self) -> None:
        """Take the trie away; a grammar set before is back.

        Raises
        ------
        BusyError
            The trie stays.
        """

        def clear(stream: Any) -> int:
            lib.token_trie_stream_clear_token_trie(stream)
            # Which says nothing itself.
            return int(lib.token_trie_stream_get_state(stream, new_struct("token_trie_stream_state")))

        self._change(clear, after=lambda: self._keep(None))

    def _keep(self, what: SetTrie | None) -> None:
        self._set = what

    @property
    def _held(self) -> TokenTrie | None:
        """The trie that is set, if under the rules of a decision."""
        return self._set.trie if self._set is not None and self._set.span.is_usual else None

    def _hold(self, trie: TokenTrie) -> None:
        """Set a trie, unless it is the one that is set: the payload of a large one takes milliseconds to hash."""
        if self._held is not trie:
            self.set_token_trie(trie)

    def set_seed(self, seed: int | None) -> None:
        """Begin draws anew from a seed in [0, 2**32); None for another each time."""
        self._change(lib.token_trie_stream_set_seed, native_seed(seed))

    def _change(self, function: Callable[..., int], *arguments: Any, after: Callable[[], None] | None = None) -> None:
        """Make a native call that changes what a generation under way would give."""
        thread = get_ident()

        def changed() -> None:
            self._n_changes += 1
            if after is not None:
                after()

        self._native.call(function, *arguments, before=lambda: self._check_reader(thread), after=changed)

    def _check_reader(self, thread: int) -> None:
        generation = self._generation()
        if generation is not None and generation._thread != thread:
            raise BusyError("a generation that another thread reads is under way; use one StreamHandle a thread")

    def _replace(self) -> None:
        generation = self._generation()
        if generation is not None:
            generation._left = 0
            generation._replaced = True
            self._release(generation)

    def _release(self, generation: Generation) -> None:
        if self._generation is generation._claim:
            self._generation = _none

    def _run(self, function: Callable[..., int], *arguments: Any) -> None:
        """Make a long native call that changes nothing."""
        interruptible(lambda: self._native.call(function, *arguments), self._native.cancel)

    def generate(self, max_tokens: int = 2**31 - 1, temperature: float | None = None, top_p: float = 1.0) -> Generation:
        """Generate token by token until the span is complete, the text ends, or max_tokens are out: see `state`.

        Parameters
        ----------
        max_tokens : int
            Tokens at most.
        temperature : float, optional
            0, the default, takes the best token; above 0 draws, in free text and under a trie in sampled mode.
        top_p : float
            In (0, 1].

        Returns
        -------
        Generation
            An iterator of `Step`, for ``for`` and for ``async for``.

        Raises
        ------
        ArgumentError
            An option is no number, or one that no float holds.
        ArgumentError, ContextError, GrammarError, BusyError
            From the iterator. Tokens it gave so far are part of the sequence, and a further call goes on behind them.
        """
        if type(max_tokens) is not int:
            check_integers(max_tokens=max_tokens)
        if temperature is None:
            temperature = 0.0
        if type(temperature) is not float or type(top_p) is not float:
            check_numbers(temperature=temperature, top_p=top_p)
        return Generation(self, max_tokens, temperature, top_p)

    def cancel(self) -> None:
        """End what is under way in another thread, and any `generate` begun, within one forward pass."""
        self._n_cancels += 1
        self._native.cancel()

    def _cancel_of(self, thread: int) -> None:
        """Do as `cancel` does if it is this thread that is inside a call."""
        if self._native.entered == thread:
            self.cancel()

    @property
    def state(self) -> StreamState:
        """Where the stream stands."""
        what = self._set
        state = self._state()
        return state_of(state, self._cancelled, None if what is None or what is not self._set else what.trie)

    def _state(self) -> Any:
        state = new_struct("token_trie_stream_state")
        self._native.look(lib.token_trie_stream_get_state, state)
        return state

    def _tokenize_prompt(self, prompt: Prompt) -> list[int]:
        if self._llm is not None:
            with lease(self._llm):
                return tokenize_prompt(self._llm, prompt, self._native.room)
        return self._native.with_vocab(lambda vocab: tokenize_alone(vocab, prompt))


def _none() -> None:
    """Stand in for a weak reference, where there is nothing to refer to."""
