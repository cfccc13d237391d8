"""`TrieMatcher`: a position in a set, with the methods that engines of constrained decoding use."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from token_trie.engines.masks import Bitmask, host_array
from token_trie.errors import ArgumentError
from token_trie.llama.span import SpanOptions, follow_set, read_span
from token_trie.native.arguments import check_counts
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import lease
from token_trie.native.options import takes
from token_trie.sets.tokens import Tokens, check_start, to_token, to_tokens
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.llama.span import SpanKeywords


class TrieMatcher:
    """One sequence's position in a set, for an engine that has the logits.

    Names and meanings are those of xgrammar's ``GrammarMatcher``, with tokens in the place of texts. No llama.cpp model
    is needed: a set, the number of tokens of the engine's vocabulary and its end tokens are enough.

    Parameters
    ----------
    trie : TokenTrie
        The set.
    vocab_size : int, optional
        Tokens of the vocabulary: a row of a mask has a bit for each. With ``llm`` it is optional, and may be more than
        that model has, for logits that are padded.
    llm : llama_cpp.Llama, optional
        A model whose end tokens, vocabulary and tokenizer are used.
    prompt : sequence of int, optional
        Tokens that the answer follows: a set with a `start_token` refuses those that do not end in it.
    **options
        Those of `constrain`, mode apart. Texts among them need ``llm``, and so does an answer that ends by default
        `end_tokens`.

    Raises
    ------
    ArgumentError, VocabularyError
        Options contradict each other, tokens are outside the vocabulary, or the set is of another vocabulary.

    Notes
    -----
    Several threads may call one matcher; the calls then run one after the other. A call that fails changes nothing.
    """

    __slots__ = ("_handle",)

    _handle: _core.Matcher

    @takes(SpanOptions)
    def __init__(
        self,
        trie: TokenTrie,
        vocab_size: int | None = None,
        *,
        llm: Llama | None = None,
        prompt: Tokens | None = None,
        **options: Unpack[SpanKeywords],
    ) -> None:
        if not isinstance(trie, TokenTrie):
            raise ArgumentError(f"trie: {type(trie).__name__} where a TokenTrie belongs")
        if vocab_size is not None:
            check_counts(vocab_size=vocab_size)
        if prompt is not None:
            check_start(to_tokens(prompt, "prompt").tolist(), trie.start_token)

        rules = SpanOptions.read("TrieMatcher", options)

        def make(vocab: _core.Vocab, n_vocab: int) -> _core.Matcher:
            span = read_span(vocab, "sampled", rules)
            return _core.Matcher(trie.core, follow_set(trie.core, vocab, span), n_vocab)

        if llm is None:
            if vocab_size is None:
                raise ArgumentError("vocab_size: needed where no llm is given")
            self._handle = make(_core.Vocab(0), vocab_size)
            return
        with lease(llm):
            vocab = vocab_of(llm)
            vocab.check(trie.core)
            if vocab_size is not None and vocab_size < len(vocab):
                raise ArgumentError(f"vocab_size: {vocab_size} is less than the model has ({len(vocab)} tokens)")
            self._handle = make(vocab, vocab_size or len(vocab))

    @classmethod
    def _of(cls, handle: _core.Matcher) -> TrieMatcher:
        matcher = object.__new__(cls)
        matcher._handle = handle
        return matcher

    def accept_token(self, token_id: int) -> bool:
        """Step over a token.

        Returns
        -------
        bool
            Whether it was allowed. If not, the matcher stays where it is.

        Raises
        ------
        VocabularyError
            The token is outside the vocabulary.
        ArgumentError
            The matcher is terminated and the token ends nothing, or it is no integer.
        """
        return self._handle.accept(to_token(token_id, self.vocab_size, "token_id"))

    def accept_tokens(self, token_ids: Tokens) -> int:
        """Step over tokens up to the first that is not allowed, and return how many these were.

        Raises
        ------
        VocabularyError
            One of them is outside the vocabulary; then none is taken.
        """
        return self._handle.accept_all(to_tokens(token_ids, "token_ids"))

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last tokens accepted, be they all.

        Raises
        ------
        ArgumentError
            There are fewer.
        """
        check_counts(0, num_tokens=num_tokens)
        self._handle.rollback(num_tokens)

    def is_terminated(self) -> bool:
        """Tell whether an end token was accepted; from then on, end tokens alone are legal.

        False for good where a span ends without one, as with ``on_complete="release"``; then every token is legal.
        """
        return self._handle.is_terminated

    def reset(self) -> None:
        """Return to the beginning."""
        self._handle.reset()

    def fork(self) -> TrieMatcher:
        """Make another matcher where this one stands; the set is shared."""
        return self._of(copy.copy(self._handle))

    __copy__ = fork

    def __deepcopy__(self, memo: object) -> TrieMatcher:
        """Fork: a set never changes."""
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a TrieMatcher cannot be pickled; pickle its TokenTrie, and make a matcher of it there")

    def fill_next_token_bitmask(self, bitmask: Bitmask, index: int = 0) -> bool:
        """Fill a row of a mask with what is legal next.

        Parameters
        ----------
        bitmask : numpy.ndarray or torch.Tensor, int32, shape (rows, ceil(vocab_size / 32))
            In main memory. Bit ``t % 32`` of word ``t // 32`` is set where token ``t`` is legal, and clear elsewhere.
            Bits beyond the vocabulary mean nothing. Rows may stand apart; the words of a row are neighbours.
        index : int
            The row; others are left alone.

        Returns
        -------
        bool
            Whether the row needs to be applied: False where every token is legal.

        Raises
        ------
        ArgumentError
            The mask has another shape, type, device or layout, or fewer rows. Nothing is written.
        """
        return BatchMatcher.batch_fill_next_token_bitmask([self], bitmask, [index])[0]

    def find_jump_forward_tokens(self, max_tokens: int = 1024) -> list[int]:
        """Return the tokens that have to come next, each the only legal one behind those before it.

        Up to the next choice, or the end of the answer; the end token is not among them, nor more than ``max_tokens``.
        Nothing changes.
        """
        check_counts(0, max_tokens=max_tokens)
        return self._handle.forced(max_tokens)

    def allowed_tokens(self) -> npt.NDArray[np.int32]:
        """Return the tokens that are legal next, ascending; where everything is, all of the vocabulary."""
        return self._handle.allowed()

    @property
    def is_free(self) -> bool:
        """Whether the next token is outside the span: before ``start_after``'s marker, or behind a release."""
        return self._handle.is_free

    @property
    def max_rollback_tokens(self) -> int:
        """Tokens that can be taken back at most; -1, as there is no limit."""
        return -1

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._handle.n_vocab

    @property
    def num_accepted(self) -> int:
        """Tokens accepted since the beginning, less those taken back."""
        return self._handle.n_accepted


class BatchMatcher:
    """Many matchers in one call each, without the interpreter's lock; see xgrammar's ``BatchGrammarMatcher``.

    A matcher may be filled into several rows, but stepped only once a call. A call that fails changes nothing.
    """

    @staticmethod
    def batch_fill_next_token_bitmask(
        matchers: Sequence[TrieMatcher], bitmask: Bitmask, indices: Sequence[int] | None = None
    ) -> list[bool]:
        """Fill a row for each matcher, as `TrieMatcher.fill_next_token_bitmask` does.

        Parameters
        ----------
        matchers : sequence of TrieMatcher
            All of one ``vocab_size``.
        bitmask : numpy.ndarray or torch.Tensor, int32, shape (rows, ceil(vocab_size / 32))
            Rows that no matcher fills are left alone.
        indices : sequence of int, optional
            The row of each; by default matcher ``i`` fills row ``i``.

        Returns
        -------
        list of bool
            Whether the row of each needs to be applied.
        """
        rows = None if indices is None else _integers(indices, "indices")
        return _core.fill_masks(_handles(matchers), host_array(bitmask), rows)

    @staticmethod
    def batch_accept_token(matchers: Sequence[TrieMatcher], tokens: Sequence[int]) -> list[bool]:
        """Step each matcher over its token; returns whether each was allowed.

        Raises
        ------
        VocabularyError, ArgumentError
            As of `TrieMatcher.accept_token`, for the row that the message names; then no matcher has moved.
        """
        handles = _handles(matchers)
        return _core.accept_each(handles, to_tokens(tokens, "tokens").tolist())

    @staticmethod
    def batch_rollback(matchers: Sequence[TrieMatcher], num_tokens: Sequence[int] | int = 1) -> None:
        """Take back the last tokens of each matcher: as many of each, or one number for all.

        Raises
        ------
        ArgumentError
            One has fewer, which the message names; then no matcher has moved.
        """
        handles = _handles(matchers)
        if isinstance(num_tokens, (int, np.integer)):
            num_tokens = [num_tokens] * len(handles)
        counts = _integers(num_tokens, "num_tokens")
        for i, count in enumerate(counts):
            check_counts(0, **{f"num_tokens[{i}]": count})
        _core.rollback_each(handles, counts)


def _handles(matchers: Sequence[TrieMatcher]) -> list[_core.Matcher]:
    try:
        listed = list(matchers)
    except TypeError as error:
        raise ArgumentError(f"matchers: {type(matchers).__name__} where a list of matchers belongs") from error
    for i, matcher in enumerate(listed):
        if not isinstance(matcher, TrieMatcher):
            raise ArgumentError(f"matchers[{i}]: {type(matcher).__name__} where a TrieMatcher belongs")
    return [matcher._handle for matcher in listed]


def _integers(numbers: Sequence[int], what: str) -> list[int]:
    return [int(n) for n in to_tokens(numbers, what)]
