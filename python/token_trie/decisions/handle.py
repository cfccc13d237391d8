"""`StreamHandle`, with decisions in the middle of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.answers import Answers, answers_of
from token_trie.decisions.decision import Decision
from token_trie.decisions.how import HandleOptions, How, check_decidable, decide, read_options
from token_trie.decisions.lists import ListDecision, ListHow, ListOptions, read_list_options, write_list
from token_trie.decisions.records.handle import RecordHandle
from token_trie.decisions.think import think_first
from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.chooser import check_room
from token_trie.native.arguments import check_names
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.trie import TokenTrie, fit

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class StreamHandle(RecordHandle):
    """Generates from a model on a context of its own, and decides in the middle of what it writes.

    Parameters, errors and threads are those of `token_trie.llama.stream.StreamHandle`, which is its ground:

    ``StreamHandle(llm_or_gguf_file, n_ctx=None, seed=0, top_k=0, min_p=0.0, jump_forward=True, …)``
    """

    @overload
    def choose(self, choices: TokenTrie, **options: Unpack[HandleOptions]) -> Decision[str]: ...
    @overload
    def choose(self, choices: Mapping[str, T], **options: Unpack[HandleOptions]) -> Decision[T]: ...
    @overload
    def choose(self, choices: Iterable[T], **options: Unpack[HandleOptions]) -> Decision[T]: ...
    @overload
    def choose(self, choices: object, **options: Unpack[HandleOptions]) -> Decision[Any]: ...
    @overload
    def choose(self, *, path: str, **options: Unpack[HandleOptions]) -> Decision[str]: ...
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
        check_names("choose", options, HandleOptions.__annotations__)
        read, how = read_options(self._given(choices, path), **options)
        with self._native.own():
            return self._choose(read, how)

    def _given(self, choices: ChoicesLike, path: str | None) -> ChoicesLike:
        if path is None:
            return choices
        if choices is not None:
            raise ArgumentError("choices and path: one of the two")
        return self._set_of(path)

    def _choose(self, read: TokenTrie | Choices[Any], how: How) -> Decision[Any]:
        with self._restored() as before:
            thought, before = self._think(how, before)
            spelled = how.leading_space, how.tokenization, how.heal
            answers, n_kept = self._answers(before, read, *spelled)
            check_decidable(answers, how)
            decision = decide(self, answers, before[:n_kept], how)
            n_now = self.state.n_tokens
            # Also of nothing: the grammar begins anew behind the answer.
            self._put(n_now, decision.tokens if n_now == n_kept else [])
            self.clear_token_trie()
            return replace(decision, thought=thought)

    def _think(self, how: How | ListHow, before: list[int]) -> tuple[str | None, list[int]]:
        """Return what the model thinks first, if it is to, and the sequence to answer behind."""
        if how.think is None or not before:
            return None, before
        return think_first(self, how.think, how.seed), self.tokens

    def _answers(self, before: list[int], read: TokenTrie | Choices[Any], *spelled: Any) -> tuple[Answers[Any], int]:
        """Return a set as it follows the sequence, and how many tokens of that it leaves."""
        if not before:
            raise ArgumentError("nothing to choose behind: prefill first")
        if isinstance(read, TokenTrie):
            answers: Answers[Any] = Answers(read)
            n_kept = len(before)
        else:
            fitted = self._with_model(lambda vocab, known: fit(vocab, known, before, read.texts, *spelled))
            answers, n_kept = answers_of(read, fitted), len(before) - fitted.n_moved
        check_room(self._native.room, n_kept, answers.trie, "handle")
        return answers, n_kept

    @overload
    def choose_list(self, choices: TokenTrie, **options: Unpack[ListOptions]) -> ListDecision[str]: ...
    @overload
    def choose_list(self, choices: Mapping[str, T], **options: Unpack[ListOptions]) -> ListDecision[T]: ...
    @overload
    def choose_list(self, choices: Iterable[T], **options: Unpack[ListOptions]) -> ListDecision[T]: ...
    @overload
    def choose_list(self, choices: object, **options: Unpack[ListOptions]) -> ListDecision[Any]: ...
    @overload
    def choose_list(self, *, path: str, **options: Unpack[ListOptions]) -> ListDecision[str]: ...
    def choose_list(self, choices: ChoicesLike = None, *, path: str | None = None, **options: Any) -> ListDecision[Any]:
        """Let the model list several of a set behind what stands; the sequence goes on behind the list.

        Parameters, result and errors are those of `token_trie.choose_list`; on failure the sequence and the trie are
        what they were. A trie that was set is taken away. `path` is as for `choose`.
        """
        check_names("choose_list", options, ListOptions.__annotations__)
        read, how = read_list_options(self._given(choices, path), **options)
        with self._native.own(), self._restored() as before:
            thought, before = self._think(how, before)
            answers, n_kept = self._answers(before, read, *how.spelled.values())
            decision = write_list(self, answers, before[:n_kept], how)
            self.clear_token_trie()
            return replace(decision, thought=thought)

    @overload
    async def achoose(self, choices: TokenTrie, **options: Unpack[HandleOptions]) -> Decision[str]: ...
    @overload
    async def achoose(self, choices: Mapping[str, T], **options: Unpack[HandleOptions]) -> Decision[T]: ...
    @overload
    async def achoose(self, choices: Iterable[T], **options: Unpack[HandleOptions]) -> Decision[T]: ...
    @overload
    async def achoose(self, choices: object, **options: Unpack[HandleOptions]) -> Decision[Any]: ...
    @overload
    async def achoose(self, *, path: str, **options: Unpack[HandleOptions]) -> Decision[str]: ...
    async def achoose(self, choices: ChoicesLike = None, **options: Any) -> Decision[Any]:
        """Do as `choose` does, on a worker thread; a task that is cancelled ends it."""
        decision: Decision[Any] = await in_worker(lambda: self.choose(choices, **options), self._cancel_of)
        return decision

    @overload
    async def achoose_list(self, choices: TokenTrie, **options: Unpack[ListOptions]) -> ListDecision[str]: ...
    @overload
    async def achoose_list(self, choices: Mapping[str, T], **options: Unpack[ListOptions]) -> ListDecision[T]: ...
    @overload
    async def achoose_list(self, choices: Iterable[T], **options: Unpack[ListOptions]) -> ListDecision[T]: ...
    @overload
    async def achoose_list(self, choices: object, **options: Unpack[ListOptions]) -> ListDecision[Any]: ...
    @overload
    async def achoose_list(self, *, path: str, **options: Unpack[ListOptions]) -> ListDecision[str]: ...
    async def achoose_list(self, choices: ChoicesLike = None, **options: Any) -> ListDecision[Any]:
        """Do as `choose_list` does, on a worker thread; a task that is cancelled ends it."""
        decision: ListDecision[Any] = await in_worker(lambda: self.choose_list(choices, **options), self._cancel_of)
        return decision
