"""`StreamHandle`: text and decisions one after the other in one sequence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import numpy as np
import numpy.typing as npt

from token_trie.decisions.choice import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.lists import ListDecision, ListRequest
from token_trie.decisions.options import ChooseOptions, ListOptions, RecordOptions, ScoreOptions
from token_trie.decisions.records.filling import record_request
from token_trie.decisions.records.record import Record
from token_trie.decisions.records.tools import ToolCall, tool_request
from token_trie.decisions.records.toolset import read_tools
from token_trie.decisions.records.types import read_template
from token_trie.decisions.runner import run_behind
from token_trie.decisions.score import score_beside
from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import Asynchronous
from token_trie.llama.generation import Generation
from token_trie.llama.options import StreamOptions
from token_trie.llama.span import SpanOptions, StepMode
from token_trie.llama.state import StreamState
from token_trie.llama.stream import Stream
from token_trie.llama.text import Text, TextOptions, append, write_text
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords, ListKeywords, RecordKeywords, ScoreKeywords
    from token_trie.llama.options import StreamKeywords
    from token_trie.llama.span import SpanKeywords
    from token_trie.llama.text import TextKeywords

T = TypeVar("T")


@takes(StreamOptions)
class StreamHandle:
    """Generates from a model on a context of its own, and decides in the middle of what it writes.

    Parameters
    ----------
    llm : llama_cpp.Llama or path
        A loaded model, whose weights are shared while the context is the handle's own; or a GGUF file.
    **options
        Those of `StreamOptions`.

    Raises
    ------
    ArgumentError
        The model cannot be loaded, an option is out of range.
    LlamaVersionError
        Another llama.cpp is loaded than the one compiled against.

    Notes
    -----
    What fails raises a TokenTrieError and changes nothing: sequence, trie, grammar and payload are what they were, but
    for tokens that `generate` and `text` have written until then, which stay. Of a decision that failed while the model
    was at it, the trie's span and the grammar begin anew.

    One call at a time: another meanwhile raises BusyError, and so does what would change the text that a `Generation`
    of another thread is reading. `cancel`, `close` and `Llama.close` may come from any thread, at any time: they end
    the call under way and wait for it. Native calls release the GIL, and an interrupt from the keyboard ends them. A
    handle is a context manager; with a Llama, it is closed before the model at the latest. It cannot be copied, and in
    a forked process it refuses to work. Each method whose name begins with a does as the one without, on a worker
    thread, while the event loop goes on; a task that is cancelled ends it.
    """

    def __init__(self, llm: Llama | str | os.PathLike[str], **options: Unpack[StreamKeywords]) -> None:
        self._stream = Stream(llm, options=StreamOptions.read("StreamHandle", options))

    def __enter__(self) -> StreamHandle:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context; a call that another thread is in ends first. Closing twice does nothing.

        From a signal's handler or a log callback inside a call of this very thread, it returns at once, and the context
        is freed after that call.
        """
        self._stream.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a StreamHandle cannot be copied or pickled: its context is one; open another")

    def fork(self) -> StreamHandle:
        """Make a second handle, whose sequence goes on from here: same text, trie, grammar and draws.

        The two share the context, and the cache of what their sequences begin with alike: nothing is evaluated twice,
        and n_ctx is what all forks hold together. (Of recurrent and hybrid models, each has a copy of its state.) Each
        may be forked again, and is closed by itself; what they share goes with the last.

        Raises
        ------
        ArgumentError
            The handle is closed.
        BusyError
            It, or another fork of it, is in a call. As they share a context, one of them is at a time.
        """
        stream = self._stream.fork()
        other = object.__new__(type(self))
        other._stream = stream
        return other

    def cancel(self) -> None:
        """End what is under way in another thread, and any `generate` begun, within one forward pass."""
        self._stream.cancel()

    @property
    def tokens(self) -> list[int]:
        """The sequence; BusyError while a call is under way."""
        return self._stream.tokens

    @property
    def state(self) -> StreamState:
        """Where the stream stands."""
        return self._stream.state

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
        BusyError
            Another call is under way, or a generation of another thread. One of this thread is over.
        """
        self._stream.prefill(self._stream.tokenize(prompt))

    def append(self, text: str | Sequence[int]) -> None:
        """Put text or tokens behind the sequence, to be evaluated with what follows.

        Text is tokenized as it follows what stands there; where its beginning merges with the last tokens, these are
        taken back. Names of control tokens in it become these. Trie and grammar begin anew.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, BusyError
            As of `prefill`.
        """
        append(self._stream, text)

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Put what is generated from here on under a GBNF grammar; None for none. A trie takes its place while set.

        GrammarError where it does not parse.
        """
        self._stream.set_grammar(gbnf, root)

    def set_seed(self, seed: int | None) -> None:
        """Begin draws anew from a seed in [0, 2**32); None for others each time."""
        self._stream.set_seed(seed)

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Give the sets of a TokenTreePayload, one a descriptor's path, to choose from by `path`; None takes them away.

        All are read now, at once; to set one of them later takes no time. The trie that is set stays. Errors are those
        of `TokenTrie.from_payload`.
        """
        self._stream.set_payload(payload)

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
        `StreamState.n_closed` counts the spans that `max_span` ended. Errors are those of `TokenTrie.from_payload` and
        `constrain`.
        """
        rules = SpanOptions.read("set_token_trie", options)
        self._stream.set_trie(self._stream.read_set(trie, path), mode, rules)

    def clear_token_trie(self) -> None:
        """Take the trie away; a grammar set before is back."""
        self._stream.clear_span()

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
            From the iterator; a further call goes on behind the tokens that it gave.
        """
        return Generation(self._stream, max_tokens, temperature, top_p)

    @takes(TextOptions)
    def text(self, max_tokens: int = 2**31 - 1, **options: Unpack[TextKeywords]) -> Text:
        """Let the model go on, freely or under the grammar that is set; a trie is taken away first.

        Parameters
        ----------
        max_tokens : int
            Tokens at most.
        **options
            Those of `TextOptions`.

        Raises
        ------
        ArgumentError
            An option is out of range, or a stop string empty.
        ContextError, GrammarError, BusyError
        """
        return write_text(self._stream, max_tokens, TextOptions.read("text", options))

    @overload
    def choose(
        self, choices: TokenTrie | None = None, *, path: str | None = None, **options: Unpack[ChooseKeywords]
    ) -> Decision[str]: ...
    @overload
    def choose(self, choices: Mapping[str, T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
    @overload
    def choose(self, choices: Iterable[T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
    @overload
    def choose(self, choices: object, **options: Unpack[ChooseKeywords]) -> Decision[Any]: ...
    @takes(ChooseOptions)
    def choose(self, choices: ChoicesLike = None, *, path: str | None = None, **options: Any) -> Decision[Any]:
        """Let the model answer with one of a set behind what stands; the sequence goes on behind the answer.

        Parameters
        ----------
        choices
            As for `token_trie.choose`. Texts are tokenized as they follow the sequence, whose last tokens may become
            part of the answer.
        path : str
            In place of choices: the set of this path in the payload of `set_payload`.
        **options
            Those of `token_trie.choose`, `calibrate` apart.

        Returns
        -------
        Decision

            A trie that was set is taken away. Errors are those of `token_trie.choose`.
        """
        request = ChoiceRequest.read(self._stream.given(choices, path), ChooseOptions.read("choose", options))
        return run_behind(self._stream, request)

    @overload
    def choose_list(
        self, choices: TokenTrie | None = None, *, path: str | None = None, **options: Unpack[ListKeywords]
    ) -> ListDecision[str]: ...
    @overload
    def choose_list(self, choices: Mapping[str, T], **options: Unpack[ListKeywords]) -> ListDecision[T]: ...
    @overload
    def choose_list(self, choices: Iterable[T], **options: Unpack[ListKeywords]) -> ListDecision[T]: ...
    @overload
    def choose_list(self, choices: object, **options: Unpack[ListKeywords]) -> ListDecision[Any]: ...
    @takes(ListOptions)
    def choose_list(self, choices: ChoicesLike = None, *, path: str | None = None, **options: Any) -> ListDecision[Any]:
        """Let the model list several of a set behind what stands; the sequence goes on behind the list.

        Parameters, result and errors are those of `token_trie.choose_list`. A trie that was set is taken away. `path`
        is as for `choose`.
        """
        request = ListRequest.read(self._stream.given(choices, path), ListOptions.read("choose_list", options))
        return run_behind(self._stream, request)

    @overload
    def fill(self, schema: type[T], **options: Unpack[RecordKeywords]) -> Record[T]: ...
    @overload
    def fill(self, schema: Mapping[str, Any], **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    @overload
    def fill(self, schema: object, **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    @takes(RecordOptions)
    def fill(self, schema: object, **options: Any) -> Record[Any]:
        """Let the model write a record behind what stands; the sequence goes on behind it.

        Parameters and errors are those of `token_trie.fill`. A trie that was set is taken away; a grammar begins anew
        behind the record.
        """
        return run_behind(self._stream, record_request(read_template(schema), RecordOptions.read("fill", options)))

    @overload
    def choose_tool(  # type: ignore[overload-overlap]  # a class is a function too
        self, tools: Sequence[type[T]], **options: Unpack[RecordKeywords]
    ) -> ToolCall[T]: ...
    @overload
    def choose_tool(
        self, tools: Sequence[Mapping[str, Any]] | Sequence[Callable[..., Any]], **options: Unpack[RecordKeywords]
    ) -> ToolCall[dict[str, Any]]: ...
    @overload
    def choose_tool(self, tools: Sequence[object], **options: Unpack[RecordKeywords]) -> ToolCall[Any]: ...
    @takes(RecordOptions)
    def choose_tool(self, tools: Sequence[object], **options: Unpack[RecordKeywords]) -> ToolCall[Any]:
        """Let the model call one of some tools behind what stands, which has to tell it of them.

        Parameters
        ----------
        tools : sequence of dict, class or function
            As for `token_trie.choose_tool`.
        **options
            Those of `token_trie.fill`.

        Returns
        -------
        ToolCall
            Written as ``{"name":"…","arguments":{…}}``; the sequence goes on behind it. Errors are those of `fill`.
        """
        return run_behind(self._stream, tool_request(read_tools(tools), RecordOptions.read("choose_tool", options)))

    @takes(ScoreOptions)
    def score(
        self,
        choices: ChoicesLike = None,
        *,
        prompt: Prompt | None = None,
        path: str | None = None,
        **options: Unpack[ScoreKeywords],
    ) -> npt.NDArray[np.float64]:
        """Score every answer behind what stands, or beside it behind a prompt; nothing of the handle changes.

        Parameters
        ----------
        choices, path
            As for `choose`.
        prompt : str, sequence of int, or sequence of chat messages, optional
            What the answers follow in place of the sequence; it is evaluated, and dropped again.
        **options
            Those of `token_trie.score`, calibrate apart.

        Returns
        -------
        ndarray of float64, shape (n_choices,)
            As of `token_trie.score`, and so are the errors.
        """
        return score_beside(
            self._stream, self._stream.given(choices, path), prompt, ScoreOptions.read("score", options)
        )

    def _cancel_of(self, thread: int) -> None:
        self._stream.cancel_of(thread)

    _form_of = Asynchronous(_cancel_of)
    aprefill = _form_of(prefill)
    atext = _form_of(text)
    achoose = _form_of(choose)
    achoose_list = _form_of(choose_list)
    afill = _form_of(fill)
    achoose_tool = _form_of(choose_tool)
    ascore = _form_of(score)
