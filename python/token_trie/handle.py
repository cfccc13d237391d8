"""`StreamHandle`: text and decisions one after the other in one sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from token_trie.decisions.choice import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.explain import ExplainRequest
from token_trie.decisions.lists import ListDecision, ListRequest
from token_trie.decisions.options import ChooseOptions, ListOptions, RecordOptions, ScoreOptions
from token_trie.decisions.questions.behind import QuestionsRequest
from token_trie.decisions.questions.decide import read_questions
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.question import Choice, Predicate, Question, Score
from token_trie.decisions.questions.wording import state_text
from token_trie.decisions.records.filling import record_request
from token_trie.decisions.records.record import Record
from token_trie.decisions.records.tools import ToolCall, tool_request
from token_trie.decisions.records.toolset import read_tools
from token_trie.decisions.records.types import read_template
from token_trie.decisions.runner import run_behind
from token_trie.decisions.score import score_beside
from token_trie.llama.asynchronous import Asynchronous
from token_trie.llama.options import StreamOptions
from token_trie.llama.query import LeafEnd
from token_trie.llama.text_handle import TextHandle, cancel_of
from token_trie.native.options import takes
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie
from token_trie.show.explanation import Explanation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords, ListKeywords, RecordKeywords, ScoreKeywords
    from token_trie.decisions.questions.answered import ChoiceAnswer, PredicateAnswer, ScoreAnswer
    from token_trie.decisions.questions.options import DecideKeywords

T = TypeVar("T")


@takes(StreamOptions)
class StreamHandle(TextHandle):
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
    the text while a `Generation` of another thread is reading it. `cancel`, `close` and `Llama.close` may be called
    from any thread, at any time: they end the running call and wait for it. Native calls release the GIL, and Ctrl-C
    ends them. A handle is a context manager. A handle on a Llama is closed at the latest when the Llama is closed. It
    cannot be copied, and refuses to work in a forked process. Each method whose name begins with a, such as `achoose`,
    does the same as the method without the a, on a worker thread, and leaves the event loop free. If its task is
    cancelled, the call ends.
    """

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
            Those of `token_trie.choose`, except a `Contextual` calibration.

        Returns
        -------
        Decision

            A trie that was set is removed. Errors are those of `token_trie.choose`.
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
        """Let the model write a list of choices after the text so far; the list is added to the sequence.

        Parameters, result and errors are those of `token_trie.choose_list`. A trie that was set is removed. `path` is
        as for `choose`.
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
        """Let the model write a record after the text so far; the record is added to the sequence.

        Parameters and errors are those of `token_trie.fill`. A trie that was set is removed; a grammar starts again
        after the record.
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
        """Score every choice after the text so far, or after a separate prompt; the handle does not change.

        Parameters
        ----------
        choices, path
            As for `choose`.
        prompt : str, sequence of int, or sequence of chat messages, optional
            What the choices follow instead of the sequence. It is removed from the context afterwards.
        **options
            Those of `token_trie.score`, except a `Contextual` calibration.

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
        read = DecideOptions.read("decide", options)
        asked = read_questions(questions, read)
        text = None if state is None else state_text(state)
        return run_behind(self._stream, QuestionsRequest(text, asked, read))

    def explain(
        self,
        choices: ChoicesLike = None,
        *,
        path: str | None = None,
        leaf_end: LeafEnd = "longest",
        leading_space: bool | None = None,
    ) -> Explanation:
        """Take a decision after the text so far, greedily and exactly; the sequence does not change.

        A trie that was set is removed, and a grammar starts again.

        Parameters
        ----------
        choices, path
            As for `choose`.
        leaf_end, leading_space
            As for `token_trie.explain`.

        Returns
        -------
        Explanation
            As in `token_trie.explain`; so are the errors.
        """
        request = ExplainRequest.read(self._stream.given(choices, path), leaf_end, leading_space)
        return Explanation.of(run_behind(self._stream, request))

    _form_of = Asynchronous(cancel_of)
    achoose = _form_of(choose)
    achoose_list = _form_of(choose_list)
    aexplain = _form_of(explain)
    afill = _form_of(fill)
    achoose_tool = _form_of(choose_tool)
    ascore = _form_of(score)
    adecide = _form_of(decide)
