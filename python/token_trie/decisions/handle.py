"""`StreamHandle`, with decisions in the middle of a sequence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.answers import Answers, answers_of
from token_trie.decisions.decision import Decision
from token_trie.decisions.how import HandleOptions, How, check_decidable, decide, read_options
from token_trie.errors import ArgumentError, ContextError, TokenTrieError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.program import Program
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.trie import TokenTrie, fit

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class StreamHandle(Program):
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
    def choose(self, choices: ChoicesLike, **options: Any) -> Decision[Any]:
        """Let the model answer with one of a set behind what stands; the sequence goes on behind the answer.

        Parameters
        ----------
        choices
            As for `token_trie.choose`. Texts are tokenized as they follow the sequence, whose last tokens may become
            part of the answer.
        **options
            Those of `token_trie.choose`, `calibrate` apart.

        Returns
        -------
        Decision

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, CancelledError, BusyError
            As of `token_trie.choose`. The sequence and the trie are what they were.

        Notes
        -----
        A trie that was set is taken away.
        """
        for name in options:
            if name not in HandleOptions.__annotations__:
                raise TypeError(f"choose() got an unexpected keyword argument {name!r}")
        read, how = read_options(choices, **options)
        with self._native.own():
            return self._choose(read, how)

    def _choose(self, read: TokenTrie | Choices[Any], how: How) -> Decision[Any]:
        before = self.tokens
        if not before:
            raise ArgumentError("nothing to choose behind: prefill first")
        if isinstance(read, TokenTrie):
            answers: Answers[Any] = Answers(read)
            n_kept = len(before)
        else:
            spelled = how.leading_space, how.tokenization, how.heal
            fitted = self._with_model(lambda vocab, known: fit(vocab, known, before, read.texts, *spelled))
            answers, n_kept = answers_of(read, fitted), len(before) - fitted.n_moved
        check_decidable(answers, how)
        room = self.state.n_context_max
        if n_kept + answers.trie.max_tokens > room:
            raise ContextError(
                f"{n_kept} tokens and an answer of up to {answers.trie.max_tokens} do not fit the context of {room}"
            )
        put_back = self._put_trie
        try:
            decision = decide(self, answers, before[:n_kept], how)
            n_now = self.state.n_tokens
            # Also of nothing: the grammar begins anew behind the answer.
            self._put(n_now, decision.tokens if n_now == n_kept else [])
            self.clear_token_trie()
        except BaseException:
            with contextlib.suppress(TokenTrieError):
                self._put(n_kept, before[n_kept:])
                if put_back is None:
                    self.clear_token_trie()
                else:
                    put_back()
            raise
        return decision

    @overload
    async def achoose(self, choices: TokenTrie, **options: Unpack[HandleOptions]) -> Decision[str]: ...
    @overload
    async def achoose(self, choices: Mapping[str, T], **options: Unpack[HandleOptions]) -> Decision[T]: ...
    @overload
    async def achoose(self, choices: Iterable[T], **options: Unpack[HandleOptions]) -> Decision[T]: ...
    @overload
    async def achoose(self, choices: object, **options: Unpack[HandleOptions]) -> Decision[Any]: ...
    async def achoose(self, choices: ChoicesLike, **options: Any) -> Decision[Any]:
        """Do as `choose` does, on a worker thread; a task that is cancelled ends it."""
        decision: Decision[Any] = await in_worker(lambda: self.choose(choices, **options), self._cancel_of)
        return decision
