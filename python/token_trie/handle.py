"""`StreamHandle`: text and decisions one after the other in one sequence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import numpy as np
import numpy.typing as npt

from token_trie.decisions.choose import ChoiceRequest, score_beside
from token_trie.decisions.decision import Decision
from token_trie.decisions.lists import ListDecision, ListRequest
from token_trie.decisions.options import MAX_SCORED, ChooseOptions, ListOptions, RecordOptions, ScoreOptions
from token_trie.errors import ArgumentError
from token_trie.llama.contexts import StreamOptions
from token_trie.llama.query import LeafEnd, Sampling, SpanOptions, StepMode
from token_trie.llama.stream import Generation, Stream, StreamState
from token_trie.llama.text import Text, TextOptions, append, write_text
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.plan import PlanOf, run_after
from token_trie.questions.options import DecideOptions
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from token_trie.decisions.options import ChooseKeywords, ListKeywords, RecordKeywords, ScoreKeywords
    from token_trie.llama.contexts import StreamKeywords
    from token_trie.llama.query import SamplingKeywords, SpanKeywords
    from token_trie.llama.text import TextKeywords
    from token_trie.questions.options import DecideKeywords
    from token_trie.questions.question import (
        Choice,
        ChoiceAnswer,
        Predicate,
        PredicateAnswer,
        Question,
        Score,
        ScoreAnswer,
    )
    from token_trie.records.fill import Record
    from token_trie.records.tools import ToolCall
    from token_trie.show.explain import Explanation

T = TypeVar("T")


@takes(StreamOptions)
class StreamHandle:
    """One sequence of a model, in a context of its own, written piece by piece: text, choices, lists, records.

    Parameters
    ----------
    llm : llama_cpp.Llama or path
        A loaded model, whose weights are shared, or a GGUF file. The context is the handle's own.
    **options
        Those of `StreamOptions`.

    Raises
    ------
    ArgumentError
        The model cannot be loaded, or an option is out of range.
    LlamaVersionError
        Another llama.cpp is loaded than the one compiled against.

    Notes
    -----
    A call that fails raises a TokenTrieError and changes nothing: sequence, trie, grammar and payload stay as they
    were. There are two exceptions. Tokens that `generate` and `text` have written before the failure stay. If a
    decision fails inside the model, the span of the trie and the grammar start again.

    A handle serves one call at a time. Another call in the meantime raises BusyError. So does a call that would change
    the text while a `Generation` of another thread is reading it. `cancel` and `close` may be called from any thread,
    at any time: they end the running call and wait for it. Native calls release the GIL, and Ctrl-C ends them. A handle
    is a context manager, cannot be copied, and refuses to work in a forked process.

    The adapters are those that the Llama was made with. A handle on a Llama is closed when the Llama is closed, and
    raises ArgumentError then. What cannot be seen: a Llama that is closed by another thread or by a signal handler in
    the middle of a call, or used by itself meanwhile. As with llama_cpp, neither is allowed.
    """

    def __init__(self, llm: Llama | str | os.PathLike[str], **options: Unpack[StreamKeywords]) -> None:
        self._stream = Stream(llm, options=StreamOptions.read("StreamHandle", options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End and wait for a running call of another thread, then free the context. Closing twice does nothing.

        If it is called from a signal handler or a log callback during a call of the same thread, it returns at once,
        and the context is freed after that call.
        """
        self._stream.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a StreamHandle cannot be copied or pickled: its context is one; open another")

    def fork(self) -> Self:
        """Make a second handle that continues from here, with the same text, trie, grammar and random draws.

        Both draw the same tokens where nothing else differs; after `set_seed(None)`, a fork draws others.
        Both share the context, and the cache of the common beginning of their sequences. Nothing is evaluated twice,
        and all forks together have `n_ctx` tokens. (With recurrent and hybrid models, each has a state of its own.)
        Each can be forked again and must be closed; the last one that is closed frees what they share.

        Raises
        ------
        ArgumentError
            The handle is closed.
        BusyError
            The handle, or another fork of it, is in a call. Forks share a context, so only one works at a time.
        """
        stream = self._stream.fork()
        other = object.__new__(type(self))
        other._stream = stream
        return other

    def cancel(self) -> None:
        """End the running call of another thread, and any `generate` that has begun, within one forward pass."""
        self._stream.cancel()

    @property
    def tokens(self) -> list[int]:
        """The tokens of the sequence. Raises BusyError during a call of another thread."""
        return self._stream.tokens

    @property
    def state(self) -> StreamState:
        """The state of the stream."""
        return self._stream.state

    def prefill(self, prompt: Prompt) -> None:
        """Replace the sequence by this prompt and evaluate it; a beginning shared with the old one is kept.

        If the Llama itself has evaluated a longer beginning of the prompt, its cache is copied. The Llama does not
        change.

        Parameters
        ----------
        prompt : str, sequence of int, or sequence of chat messages
            A handle on a file takes text or tokens, but no messages.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, CancelledError
        BusyError
            Another call is running, or another thread reads a generation. A generation of this thread ends.
        """
        self._stream.prefill(self._stream.tokenize(prompt, thinks=True))

    def append(self, text: str | Sequence[int]) -> None:
        """Add text or tokens to the sequence; they are evaluated together with what follows.

        A text is tokenized as it follows the sequence. If its beginning merges with the last tokens of the sequence,
        these tokens are replaced. Names of control tokens in it become control tokens. Trie and grammar start again.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, BusyError
            As of `prefill`.
        """
        append(self._stream, text)

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Constrain what is generated from here on by a GBNF grammar; None removes it.

        While a trie is set, it replaces the grammar. Raises GrammarError if the grammar does not parse.
        """
        self._stream.set_grammar(gbnf, root)

    def set_seed(self, seed: int | None) -> None:
        """Restart random draws from a seed in [0, 2**32); None: a new seed each time."""
        self._stream.set_seed(seed)

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Read the sets of a TokenTreePayload, one for each path, for the parameter `path`; None removes them.

        All sets are read now, so using one later takes no time. The trie that is set stays. Errors are those of
        `TokenTrie.from_payload`.
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
        """Constrain what is generated from here on by a trie, from its root.

        Parameters are those of `constrain`. The trie can also be a TokenTreePayload, as JSON or dict, with `path`.
        Without a trie, the set of `path` in the payload of `set_payload` is used, which takes no time.
        `StreamState.n_closed` counts the spans that `max_span` ended. Errors are those of `TokenTrie.from_payload` and
        `constrain`.
        """
        rules = SpanOptions.read("set_token_trie", options)
        self._stream.set_trie(self._stream.read_set(trie, path), mode, rules)

    def clear_token_trie(self) -> None:
        """Remove the trie; a grammar that was set before applies again."""
        self._stream.clear_span()

    @takes(Sampling)
    def generate(self, max_tokens: int = 2**31 - 1, **options: Unpack[SamplingKeywords]) -> Generation:
        """Generate token by token until the span is complete, the text ends, or max_tokens is reached; see `state`.

        Parameters
        ----------
        max_tokens : int
            Largest number of tokens.
        **options
            Those of `Sampling`.

        Returns
        -------
        Generation
            An iterator of `GeneratedToken`.

        Raises
        ------
        ArgumentError
            An option is not a number, or not representable as a float.
        ArgumentError, ContextError, GrammarError, BusyError
            From the iterator; another call continues after the tokens that it yielded.
        """
        sampling = Sampling.read("generate", options)
        sampling.check_drawn(draws=False)
        if sampling.seed is not None:
            self._stream.set_seed(sampling.seed)
        return Generation(self._stream, max_tokens, sampling.settled(draws=False))

    @takes(TextOptions)
    def text(self, max_tokens: int = 2**31 - 1, **options: Unpack[TextKeywords]) -> Text:
        """Let the model write text, freely or by the grammar that is set; a trie is removed first.

        Parameters
        ----------
        max_tokens : int
            Tokens at most; by default as many as fit into the context.
        **options
            Those of `TextOptions`.

        Raises
        ------
        ArgumentError
            An option is out of range, or a stop string empty.
        ContextError
            The context was full already.
        GrammarError, BusyError
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
        """Let the model choose one of several choices after the text so far; the answer is added to the sequence.

        Parameters
        ----------
        choices
            As for `token_trie.choose`. Texts are tokenized as they follow the sequence, whose last tokens may become
            part of the answer.
        path : str
            Instead of choices: the set of this path in the payload of `set_payload`.
        **options
            Those of `token_trie.choose`.

        Returns
        -------
        Decision

            A trie that was set is removed. Errors are those of `token_trie.choose`.
        """
        request = ChoiceRequest.read(self._stream.given(choices, path), ChooseOptions.read("choose", options))
        return run_after(self._stream, request.plan)

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
        """Let the model write a list of choices after the text so far; the list is added to the sequence.

        Parameters, result and errors are those of `token_trie.choose_list`. A trie that was set is removed. `path` is
        as for `choose`.
        """
        request = ListRequest.read(self._stream.given(choices, path), ListOptions.read("choose_list", options))
        return run_after(self._stream, request.plan)

    @overload
    def fill(self, schema: type[T], **options: Unpack[RecordKeywords]) -> Record[T]: ...
    @overload
    def fill(self, schema: Mapping[str, Any], **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    @overload
    def fill(self, schema: object, **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    @takes(RecordOptions)
    def fill(self, schema: object, **options: Any) -> Record[Any]:
        """Let the model write a record after the text so far; it is added to the sequence as the model writes it.

        Parameters and errors are those of `token_trie.fill`. A trie that was set is removed; a grammar starts again
        after the record.
        """
        from token_trie.records.fill import read_template, record_request

        request = record_request(read_template(schema), RecordOptions.read("fill", options))
        return run_after(self._stream, request.plan)

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
        """Let the model call one of several tools; the text so far has to describe the tools to it.

        Parameters
        ----------
        tools : sequence of dict, class or function
            As for `token_trie.choose_tool`.
        **options
            Those of `token_trie.fill`.

        Returns
        -------
        ToolCall
            It is added to the sequence as ``{"name":"…","arguments":{…}}``. Errors are those of `fill`.
        """
        from token_trie.records.tools import read_tools, tool_request

        request = tool_request(read_tools(tools), RecordOptions.read("choose_tool", options))
        return run_after(self._stream, request.plan)

    @takes(ScoreOptions)
    def score(
        self,
        choices: ChoicesLike = None,
        *,
        prompt: Prompt | None = None,
        path: str | None = None,
        **options: Unpack[ScoreKeywords],
    ) -> npt.NDArray[np.float64]:
        """Score every choice after the text so far, or after a separate prompt; the handle does not change.

        Parameters
        ----------
        choices, path
            As for `choose`.
        prompt : str, sequence of int, or sequence of chat messages, optional
            What the choices follow instead of the sequence. It is removed from the context afterwards.
        **options
            Those of `token_trie.score`.

        Returns
        -------
        ndarray of float64, shape (n_choices,)
            As in `token_trie.score`; so are the errors.
        """
        return score_beside(
            self._stream, self._stream.given(choices, path), prompt, ScoreOptions.read("score", options)
        )

    @overload
    def decide(
        self, questions: Choice[T], *, state: object = None, **options: Unpack[DecideKeywords]
    ) -> ChoiceAnswer[T]: ...
    @overload
    def decide(
        self, questions: Predicate, *, state: object = None, **options: Unpack[DecideKeywords]
    ) -> PredicateAnswer: ...
    @overload
    def decide(self, questions: Score, *, state: object = None, **options: Unpack[DecideKeywords]) -> ScoreAnswer: ...
    @overload
    def decide(
        self, questions: Mapping[str, Question], *, state: object = None, **options: Unpack[DecideKeywords]
    ) -> dict[str, Any]: ...
    @takes(DecideOptions)
    def decide(self, questions: object, *, state: object = None, **options: Unpack[DecideKeywords]) -> Any:
        """Answer questions about the text so far, or about a state after it; the sequence does not change.

        A trie that was set is removed, and a grammar starts again.

        Parameters
        ----------
        questions
            As for `token_trie.decide`.
        state : str, JSON value, or sequence of chat messages, optional
            What the questions are about; it comes after the text so far. None, the default: the questions are about
            the text so far. This text then replaces the state in the form, and everything before the state.
        **options
            Those of `token_trie.decide`. Forms with chat=True cannot be used here, and reproducible needs a handle on a
            Llama.

        Returns
        -------
        dict of answers, or an answer
            As in `token_trie.decide`; so are the errors.
        """
        from token_trie.questions.decide import decide_after
        from token_trie.questions.question import state_text

        read = DecideOptions.read("decide", options)
        text = None if state is None else state_text(state)
        return decide_after(self._stream, text, questions, read)

    def run(self, plan: PlanOf[list[int], T]) -> T:
        """Run a plan about the text so far.

        A trie that was set is removed, and a grammar starts again.

        Parameters
        ----------
        plan : function
            Returns the plan, given the `token_trie.plan.Model` and the tokens of the text. The text then ends as the
            plan leaves it: with the tokens of its last `Ask` and of the answer, or with those of its last `Keep`.

        Returns
        -------
        object
            The result of the plan. If it raises an error, the text stays as it was.
        """
        return run_after(self._stream, plan)

    def explain(
        self,
        choices: ChoicesLike = None,
        *,
        path: str | None = None,
        leaf_end: LeafEnd = "longest",
        leading_space: bool | None = None,
        max_scored: int | None = MAX_SCORED,
    ) -> Explanation:
        """Take a decision after the text so far, greedily and exactly; the sequence does not change.

        A trie that was set is removed, and a grammar starts again.

        Parameters
        ----------
        choices, path
            As for `choose`.
        leaf_end, leading_space, max_scored
            As for `token_trie.explain`.

        Returns
        -------
        Explanation
            As in `token_trie.explain`; so are the errors.
        """
        from token_trie.show.explain import ExplainRequest

        given = self._stream.given(choices, path)
        options = ScoreOptions(leaf_end=leaf_end, leading_space=leading_space, max_scored=max_scored)
        return run_after(self._stream, ExplainRequest.read(self._stream.llm, given, options).plan)
