"""`StreamHandle`, with decisions in the middle of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from token_trie.decisions.choice import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.lists import ListDecision, ListRequest
from token_trie.decisions.options import ChooseOptions, ListOptions, ScoreOptions
from token_trie.decisions.records.handle import RecordHandle
from token_trie.decisions.runner import run_behind
from token_trie.decisions.score import score_beside
from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import in_worker
from token_trie.native.options import takes
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords, ListKeywords, ScoreKeywords

T = TypeVar("T")


class StreamHandle(RecordHandle):
    """Generates from a model on a context of its own, and decides in the middle of what it writes.

    Parameters, errors and threads are those of `token_trie.llama.stream.StreamHandle`, which is its ground:

    ``StreamHandle(llm_or_gguf_file, n_ctx=None, seed=None, top_k=0, min_p=0.0, jump_forward=True, …)``
    """

    @overload
    def choose(self, choices: TokenTrie, **options: Unpack[ChooseKeywords]) -> Decision[str]: ...
    @overload
    def choose(self, choices: Mapping[str, T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
    @overload
    def choose(self, choices: Iterable[T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
    @overload
    def choose(self, choices: object, **options: Unpack[ChooseKeywords]) -> Decision[Any]: ...
    @overload
    def choose(self, *, path: str, **options: Unpack[ChooseKeywords]) -> Decision[str]: ...
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

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, CancelledError, BusyError
            As of `token_trie.choose`. The sequence and the trie are what they were; of a decision that failed while the
            model was at it, the trie's span and the grammar begin anew.

        Notes
        -----
        A trie that was set is taken away.
        """
        read = ChooseOptions.read("choose", options)
        return run_behind(self, ChoiceRequest.read(self._given(choices, path), read))

    def _given(self, choices: ChoicesLike, path: str | None) -> ChoicesLike:
        if path is None:
            return choices
        if choices is not None:
            raise ArgumentError("choices and path: one of the two")
        return self._set_of(path)

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
            As of `token_trie.score`.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, CancelledError, BusyError
            As of `token_trie.score`.
        """
        return score_beside(self, self._given(choices, path), prompt, ScoreOptions.read("score", options))

    @overload
    def choose_list(self, choices: TokenTrie, **options: Unpack[ListKeywords]) -> ListDecision[str]: ...
    @overload
    def choose_list(self, choices: Mapping[str, T], **options: Unpack[ListKeywords]) -> ListDecision[T]: ...
    @overload
    def choose_list(self, choices: Iterable[T], **options: Unpack[ListKeywords]) -> ListDecision[T]: ...
    @overload
    def choose_list(self, choices: object, **options: Unpack[ListKeywords]) -> ListDecision[Any]: ...
    @overload
    def choose_list(self, *, path: str, **options: Unpack[ListKeywords]) -> ListDecision[str]: ...
    @takes(ListOptions)
    def choose_list(self, choices: ChoicesLike = None, *, path: str | None = None, **options: Any) -> ListDecision[Any]:
        """Let the model list several of a set behind what stands; the sequence goes on behind the list.

        Parameters, result and errors are those of `token_trie.choose_list`; on failure the sequence and the trie are
        what they were. A trie that was set is taken away. `path` is as for `choose`.
        """
        read = ListOptions.read("choose_list", options)
        return run_behind(self, ListRequest.read(self._given(choices, path), read))

    @overload
    async def achoose(self, choices: TokenTrie, **options: Unpack[ChooseKeywords]) -> Decision[str]: ...
    @overload
    async def achoose(self, choices: Mapping[str, T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
    @overload
    async def achoose(self, choices: Iterable[T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
    @overload
    async def achoose(self, choices: object, **options: Unpack[ChooseKeywords]) -> Decision[Any]: ...
    @overload
    async def achoose(self, *, path: str, **options: Unpack[ChooseKeywords]) -> Decision[str]: ...
    async def achoose(self, choices: ChoicesLike = None, **options: Any) -> Decision[Any]:
        """Do as `choose` does, on a worker thread; a task that is cancelled ends it."""
        decision: Decision[Any] = await in_worker(lambda: self.choose(choices, **options), self._cancel_of)
        return decision

    @overload
    async def achoose_list(self, choices: TokenTrie, **options: Unpack[ListKeywords]) -> ListDecision[str]: ...
    @overload
    async def achoose_list(self, choices: Mapping[str, T], **options: Unpack[ListKeywords]) -> ListDecision[T]: ...
    @overload
    async def achoose_list(self, choices: Iterable[T], **options: Unpack[ListKeywords]) -> ListDecision[T]: ...
    @overload
    async def achoose_list(self, choices: object, **options: Unpack[ListKeywords]) -> ListDecision[Any]: ...
    @overload
    async def achoose_list(self, *, path: str, **options: Unpack[ListKeywords]) -> ListDecision[str]: ...
    async def achoose_list(self, choices: ChoicesLike = None, **options: Any) -> ListDecision[Any]:
        """Do as `choose_list` does, on a worker thread; a task that is cancelled ends it."""
        decision: ListDecision[Any] = await in_worker(lambda: self.choose_list(choices, **options), self._cancel_of)
        return decision
