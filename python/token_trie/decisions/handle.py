"""`StreamHandle`, with decisions in the middle of a sequence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.answers import Answers, answers_of
from token_trie.decisions.decision import Decision
from token_trie.decisions.how import HandleOptions, check_decidable, decide, read_options
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.program import Program
from token_trie.sets.choices import ChoicesLike
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
            As of `token_trie.choose`. The sequence is what it was.

        Notes
        -----
        A trie that was set is taken away.
        """
        read, how = read_options(choices, **options)
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
        try:
            decision = decide(self, answers, before[:n_kept], how)
            if self.state.n_tokens == n_kept:
                self._put(n_kept, decision.tokens)
        except BaseException:
            with contextlib.suppress(TokenTrieError):
                self._put(n_kept, before[n_kept:])
            raise
        finally:
            with contextlib.suppress(TokenTrieError):
                self.clear_token_trie()
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
        decision: Decision[Any] = await in_worker(lambda: self.choose(choices, **options), self.cancel)
        return decision
