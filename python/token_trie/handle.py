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
from token_trie.decisions.options import ChooseOptions, LeafEnd, ListOptions, RecordOptions, ScoreOptions
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
            Those of `token_trie.choose`, a `Contextual` calibration apart.

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
            Those of `token_trie.score`, a `Contextual` calibration apart.

        Returns
        -------
        ndarray of float64, shape (n_choices,)
            As of `token_trie.score`, and so are the errors.
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
        """Answer questions about what stands, or about a state behind it; the sequence stays as it is.

        A trie that was set is taken away, and a grammar begins anew.

        Parameters
        ----------
        questions
            As for `token_trie.decide`.
        state : str, JSON value, or sequence of chat messages, optional
            What the questions are about; what stands is then the same text before all states. None, the default: they
            are about what stands, which takes the place of the state in a form, and of all that comes before it.
        **options
            Those of `token_trie.decide`. Forms with chat=True do not go behind what stands, and reproducible wants a
            handle on a Llama.

        Returns
        -------
        dict of answers, or an answer
            As of `token_trie.decide`, and so are the errors.
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
        """Take a decision behind what stands greedily and exactly; the sequence stays as it is.

        A trie that was set is taken away, and a grammar begins anew.

        Parameters
        ----------
        choices, path
            As for `choose`.
        leaf_end, leading_space
            As for `token_trie.explain`.

        Returns
        -------
        Explanation
            As of `token_trie.explain`, and so are the errors.
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
