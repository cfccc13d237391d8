"""`StreamHandle`: text token by token, under a trie, a grammar, or free; forced tokens at no cost."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from token_trie._native import Llama, _core, vocab_of
from token_trie._text import encode
from token_trie.constrain import MODES, ON_COMPLETE, Mode, OnComplete, lookup
from token_trie.errors import ArgumentError, BusyError, ContextError, TokenTrieError
from token_trie.ffi import check, check_pointer, ffi, lib, new_struct
from token_trie.prompt import Prompt, check_tokens, tokenize_prompt
from token_trie.trie import TokenTrie


class Step(NamedTuple):
    """One token."""

    token: int
    """Its id."""
    text: str
    """The characters it completes; ``""`` if it ends inside one."""
    logprob: float
    """Natural logarithm of its share among the allowed tokens; 0 if forced, NaN in free text."""
    forced: bool
    """Whether it was the only token allowed."""


@dataclass(frozen=True)
class StreamState:
    """Where a stream stands. Counts are since it was opened."""

    stop: str
    """Why the last `generate` ended: "none", "max_tokens", "complete", "end", "callback" or "cancelled"."""
    span: str
    """"walking", "complete" or "escaped"; "none" without a trie."""
    n_items: int
    leaf: int | None
    """Index of the member finished last."""
    logprob: float
    """Of this span: the sum over its branch points, ends among them."""
    n_tokens: int
    n_cached: int
    n_forced: int
    n_branches: int
    n_free: int
    n_passes: int
    """Forward passes of `generate`."""
    decode_ns: int
    generate_ns: int


_STOPS = ("none", "max_tokens", "complete", "end", "callback", "cancelled")
_SPANS = ("walking", "complete", "escaped", "none")


class StreamHandle:
    """Generates from a model on a context of its own.

    Parameters
    ----------
    llm : llama_cpp.Llama or path
        A loaded model, whose weights are shared while the context is the handle's own; or a GGUF file.
    n_ctx : int, optional
        Size of the context in tokens; by default the Llama's, or for a file what the model was trained with.
    seed : int
        For draws: the same seed draws the same tokens. 0xFFFFFFFF for another each time.
    top_k, min_p, penalty_last_n, penalty_repeat, penalty_freq, penalty_present
        Sampling beside temperature and top_p; 0 is off, as is ``penalty_repeat=1``.
    jump_forward : bool
        Whether forced tokens are passed on unevaluated and join the next batch. Without, each token is evaluated alone,
        which is slower and bit-exact to other one-token loops on quantized models too.
    n_threads, n_gpu_layers : int
        For a file: as in llama-cpp-python; ``n_gpu_layers=-1`` for all.

    Raises
    ------
    ArgumentError
        The model cannot be loaded, an option is out of range.
    LlamaVersionError
        Another llama.cpp is loaded than the one compiled against.

    Notes
    -----
    One call at a time; `cancel` may come from any thread, and native calls release the GIL. A handle is a context
    manager; with a Llama, it is closed before the model at the latest.
    """

    def __init__(
        self,
        llm: Llama | str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        seed: int = 0,
        top_k: int = 0,
        min_p: float = 0.0,
        penalty_last_n: int = 0,
        penalty_repeat: float = 1.0,
        penalty_freq: float = 0.0,
        penalty_present: float = 0.0,
        jump_forward: bool = True,
        n_threads: int = 0,
        n_gpu_layers: int = 0,
    ) -> None:
        self._held: TokenTrie | None = None  # the trie that is set, with the default follow set
        self._known_vocab: _core.Vocab | None = None
        self._n_cancels = 0
        self._cancelled = False  # between two steps, when the native side has nothing to cancel
        try:
            params = new_struct(
                "token_trie_stream_params",
                seed=seed,
                top_k=top_k,
                min_p=min_p,
                penalty_last_n=penalty_last_n,
                penalty_repeat=penalty_repeat,
                penalty_freq=penalty_freq,
                penalty_present=penalty_present,
                step_by_step=int(not jump_forward),
                n_ctx=n_ctx or 0,
                n_threads=n_threads,
                n_gpu_layers=n_gpu_layers,
            )
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"options: {error}") from error
        if isinstance(llm, (str, os.PathLike)):
            self._llm = None
            path = encode(os.fspath(llm), "llm")
            with _quiet():
                self._stream = check_pointer(lib.token_trie_stream_open_file(path, params))
            self._close = weakref.finalize(self, _close, self._stream, None)
            return
        self._llm = llm
        context = _second_context(llm, n_ctx)
        self._stream = lib.token_trie_stream_open(ffi.cast("struct llama_context *", context), params)
        self._close = weakref.finalize(self, _close, self._stream, context)
        if self._stream == ffi.NULL:
            self._close()
        check_pointer(self._stream)
        # A model may go only after what was made on it.
        llm._stack.callback(self._close)

    def __enter__(self) -> StreamHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the context; a call that another thread is in ends first. Closing twice does nothing."""
        self._close()

    def prefill(self, prompt: Prompt) -> None:
        """Make the sequence this prompt, evaluated; what it shares with the one before is not evaluated again.

        Parameters
        ----------
        prompt : str, sequence of int, or sequence of chat messages
            A handle on a file takes text or tokens, but no messages.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            The sequence before is kept.
        """
        tokens = np.array(self._tokenize_prompt(prompt), np.int32)
        buffer = ffi.from_buffer("llama_token[]", tokens)
        self._run(lambda: lib.token_trie_stream_prefill(self._stream, buffer, len(tokens)), long=len(tokens) > 32)

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Put what is generated from here on under a GBNF grammar; None for none. A trie takes its place while set.

        Raises
        ------
        GrammarError
            It does not parse. The grammar before is kept.
        """
        text = ffi.NULL if gbnf is None else encode(gbnf, "gbnf")
        check(lib.token_trie_stream_set_grammar(self._stream, text, encode(root, "root")))

    def set_token_trie(
        self,
        trie: TokenTrie | str | bytes | Mapping[str, Any],
        mode: Mode = "greedy",
        on_complete: OnComplete = "end",
        *,
        end_tokens: Sequence[int] = (),
        separator: Sequence[int] = (),
        max_items: int = 0,
        path: str | None = None,
    ) -> None:
        """Put what is generated from here on under a trie, from its root.

        Parameters are those of `constrain`; the trie may also be a TokenTreePayload, as JSON or dict, then with `path`.

        Raises
        ------
        TokenTrieError
            What `TokenTrie.from_payload` and `constrain` raise. The trie before is kept.
        """
        if not isinstance(trie, TokenTrie):
            trie = TokenTrie._read(trie, path, self._vocab())
        payload = trie._payload_bytes()
        params = new_struct("token_trie_params", mode=lookup(mode, MODES, "mode"))
        params.on_complete = lookup(on_complete, ON_COMPLETE, "on_complete")
        ends, between = np.array(list(end_tokens), np.int32), np.array(list(separator), np.int32)
        if len(ends):
            params.end_tokens, params.n_end_tokens = ffi.from_buffer("llama_token[]", ends), len(ends)
        params.separator, params.n_separator = ffi.from_buffer("llama_token[]", between), len(between)
        params.max_items = max_items
        check(lib.token_trie_stream_set_token_trie_ext(self._stream, payload, len(payload), params))
        self._held = trie if on_complete == "end" and not len(ends) else None

    def clear_token_trie(self) -> None:
        """Take the trie away; a grammar set before is back.

        Raises
        ------
        BusyError
            The trie stays.
        """
        lib.token_trie_stream_clear_token_trie(self._stream)
        # Which says nothing itself.
        if self._state().span >= 0:
            raise BusyError("the stream is in a call of another thread; the trie stays")
        self._held = None

    def _run(self, call: Callable[[], int], *, long: bool = True) -> None:
        """Make a native call that an interrupt from the keyboard cancels, which only the main thread hears."""
        if not long or threading.current_thread() is not threading.main_thread():
            check(call())
            return
        failure: list[TokenTrieError] = []

        def work() -> None:
            try:
                check(call())
            except TokenTrieError as error:
                failure.append(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            worker.join()
        except BaseException:
            while worker.is_alive():
                lib.token_trie_stream_cancel(self._stream)
                worker.join(0.01)
            raise
        if failure:
            raise failure[0]

    def _hold(self, trie: TokenTrie) -> None:
        """Set a trie, unless it is the one that is set: the payload of a large one takes milliseconds to hash."""
        if self._held is not trie:
            self.set_token_trie(trie)

    def set_seed(self, seed: int) -> None:
        """Begin draws anew from a seed in [0, 2**32)."""
        if not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise ArgumentError(f"seed: {seed} is not in [0, 2**32)")
        check(lib.token_trie_stream_set_seed(self._stream, seed))

    def generate(self, max_tokens: int = 2**31 - 1, temperature: float = 0.0, top_p: float = 1.0) -> Generation:
        """Generate token by token until the span is complete, the text ends, or max_tokens are out: see `state`.

        Parameters
        ----------
        max_tokens : int
            Tokens at most.
        temperature : float
            0 takes the best token; above 0 draws, in free text and under a trie in sampled mode.
        top_p : float
            In (0, 1].

        Returns
        -------
        Generation
            An iterator of `Step`, for ``for`` and for ``async for``.

        Raises
        ------
        ArgumentError, ContextError, GrammarError, BusyError
            From the iterator. Tokens it gave so far are part of the sequence, and a further call goes on behind them.
        """
        return Generation(self, max_tokens, temperature, top_p)

    def cancel(self) -> None:
        """End what is under way in another thread, and any `generate` begun, within one forward pass."""
        self._n_cancels += 1
        lib.token_trie_stream_cancel(self._stream)

    @property
    def state(self) -> StreamState:
        """Where the stream stands."""
        state = self._state()
        return StreamState(
            stop="cancelled" if self._cancelled else _STOPS[state.stop],
            span=_SPANS[state.span],
            n_items=state.n_items,
            leaf=None if state.leaf < 0 else int(state.leaf),
            logprob=float(state.logprob),
            **{
                name: int(getattr(state, name))
                for name in (
                    "n_tokens",
                    "n_cached",
                    "n_forced",
                    "n_branches",
                    "n_free",
                    "n_passes",
                    "decode_ns",
                    "generate_ns",
                )
            },
        )

    def _state(self) -> Any:
        state = new_struct("token_trie_stream_state")
        check(lib.token_trie_stream_get_state(self._stream, state))
        return state

    def _vocab(self) -> _core.Vocab:
        address = int(ffi.cast("uintptr_t", check_pointer(lib.token_trie_stream_get_vocab(self._stream))))
        if self._known_vocab is None:
            self._known_vocab = _core.Vocab(address)
        return self._known_vocab

    def _tokenize_prompt(self, prompt: Prompt) -> list[int]:
        if self._llm is not None:
            return tokenize_prompt(self._llm, prompt)
        if isinstance(prompt, str):
            return self._tokenize(prompt)
        return check_tokens(prompt, len(self._vocab()))

    def _beginning(self) -> int:
        """Return the token that begins a text: <s> or the like, or what ends one where there is none."""
        vocab = self._vocab().address
        bos = llama_cpp.llama_vocab_bos(vocab)
        return int(bos if bos >= 0 else llama_cpp.llama_vocab_eos(vocab))

    def _tokenize(self, text: str) -> list[int]:
        encoded = encode(text, "prompt")
        buffer = (llama_cpp.llama_token * (len(encoded) + 8))()
        n = llama_cpp.llama_tokenize(self._vocab().address, encoded, len(encoded), buffer, len(buffer), True, True)
        return list(buffer[: max(n, 0)])


class Generation(Iterator[Step], AsyncIterator[Step]):
    """Steps of one `StreamHandle.generate`, each computed when it is asked for.

    Under ``async for`` a worker thread computes; a task cancelled meanwhile cancels the stream.
    """

    def __init__(self, handle: StreamHandle, max_tokens: int, temperature: float, top_p: float) -> None:
        self._handle = handle
        self._left = max_tokens
        self._options = temperature, top_p
        self._token = new_struct("token_trie_token")
        self._stop = ffi.new("int32_t *")
        self._n_cancels = handle._n_cancels

    def __iter__(self) -> Generation:
        return self

    def __aiter__(self) -> Generation:
        return self

    def __next__(self) -> Step:
        step = self._compute() if self._left > 0 else None
        if step is None:
            raise StopIteration
        return step

    async def __anext__(self) -> Step:
        work = asyncio.get_running_loop().run_in_executor(None, self._compute) if self._left > 0 else None
        try:
            step = None if work is None else await asyncio.shield(work)
        except asyncio.CancelledError:
            self._handle.cancel()
            assert work is not None
            await asyncio.wait([work])
            raise
        if step is None:
            raise StopAsyncIteration
        return step

    def _compute(self) -> Step | None:
        if self._n_cancels != self._handle._n_cancels:
            self._left = 0
            self._handle._cancelled = True
            return None
        self._handle._cancelled = False
        token = self._token
        check(lib.token_trie_stream_next(self._handle._stream, *self._options, token, self._stop))
        self._left = self._left - 1 if self._stop[0] == lib.TOKEN_TRIE_STOP_MAX_TOKENS else 0
        if token.id < 0:
            return None
        text = ffi.buffer(token.text, token.text_len)[:].decode()
        return Step(token.id, text, token.logprob, bool(token.forced))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep llama.cpp's thousands of lines about a model it loads off the terminal, as `Llama(verbose=False)` does."""
    logger = logging.getLogger("llama-cpp-python")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _close(stream: Any, context: int | None) -> None:
    with _quiet():
        lib.token_trie_stream_close(stream)
    if context is not None:
        llama_cpp.llama_free(context)


def _second_context(llm: Llama, n_ctx: int | None) -> Any:
    """Make a context on the weights of a Llama, like its own but for one unified cache."""
    _core.require_same_llama()
    vocab_of(llm)
    if llm.model_params.vocab_only:
        raise ArgumentError("llm: loaded with vocab_only=True, without weights to generate by")
    params = type(llm.context_params).from_buffer_copy(llm.context_params)
    if n_ctx is not None:
        if not 0 < n_ctx < 2**31:
            raise ArgumentError(f"n_ctx: {n_ctx} is not a number of tokens")
        params.n_ctx = n_ctx
    model = ffi.cast("struct llama_model *", ctypes.cast(llm._model.model, ctypes.c_void_p).value)
    own = ffi.cast("struct llama_context_params *", ctypes.addressof(params))
    check(lib.token_trie_stream_context_params(model, own))
    context = llama_cpp.llama_init_from_model(llm._model.model, params)
    if not context:
        raise ContextError(f"no context of {params.n_ctx} tokens could be made")
    if llm._lora_adapter is not None:
        _set_lora(context, llm._lora_adapter, llm.lora_scale)
    return ctypes.cast(context, ctypes.c_void_p).value


def _set_lora(context: Any, adapter: Any, scale: float) -> None:
    # Younger than the oldest llama-cpp-python supported, which has the singular alone.
    if hasattr(llama_cpp, "llama_set_adapters_lora"):
        adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
        llama_cpp.llama_set_adapters_lora(context, adapters, 1, (ctypes.c_float * 1)(scale))
    else:
        llama_cpp.llama_set_adapter_lora(context, adapter, scale)
