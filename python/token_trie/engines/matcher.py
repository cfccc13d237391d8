"""`TrieMatcher`, `BatchMatcher`, `UniqueMatchers`: positions in a set, for engines that use masks from the host."""

from __future__ import annotations

import copy
import operator
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.llama.query import SpanOptions, follow_set, read_span
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.options import check_counts, takes
from token_trie.sets.tokenization import Tokens, check_start, to_token, to_tokens
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.llama.query import SpanKeywords

Bitmask: TypeAlias = Any
"""A numpy array, or a tensor with DLPack such as torch's: int32, in main memory, one row for each sequence."""

PUT_BACK = "every token that the set allows had a logit of -inf, by what ran before or by the model; %s"
"""The warning of everything that masks logits; the argument says what was done."""

_HOST_DEVICES = {1, 3, 11}  # of DLPack: main memory, plain or pinned for CUDA or ROCm


def host_array(mask: Bitmask) -> npt.NDArray[Any]:
    """View a mask as an array; ArgumentError if it is not in main memory. C++ checks the shape."""
    if isinstance(mask, np.ndarray):
        return mask
    if not hasattr(mask, "__dlpack__"):
        raise ArgumentError(f"bitmask: {type(mask).__name__} where a numpy array or a tensor belongs")
    try:
        device = int(mask.__dlpack_device__()[0])
        if device in _HOST_DEVICES:
            return np.from_dlpack(mask)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArgumentError(f"bitmask: {error}") from error
    where = getattr(mask, "device", f"device type {device}")
    raise ArgumentError(f"bitmask: on {where}; it is filled in main memory and copied from there")


class TrieMatcher:
    """One sequence's position in a set, for an engine that has the logits.

    Names and meanings are those of xgrammar's ``GrammarMatcher``, with tokens instead of texts. No llama.cpp model is
    needed: a set, the size of the engine's vocabulary and its end tokens are enough.

    Parameters
    ----------
    trie : TokenTrie
        The set.
    vocab_size : int, optional
        Number of tokens of the vocabulary; a row of a mask has a bit for each. With ``llm`` it is optional, and may be
        larger than that model's, for padded logits.
    llm : llama_cpp.Llama, optional
        A model whose end tokens, vocabulary and tokenizer are used.
    prompt : sequence of int, optional
        Tokens that the answer follows: a set with a `start_token` refuses those that do not end in it.
    **options
        Options of `constrain`, except mode. Texts among them need ``llm``, and so do the default `end_tokens`.

    Raises
    ------
    ArgumentError, VocabularyError
        Options contradict each other, tokens are outside the vocabulary, or the set is for another vocabulary.

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
        """Step over a token, and return whether it was allowed; if not, the matcher does not move.

        Raises
        ------
        VocabularyError
            The token is outside the vocabulary.
        ArgumentError
            The matcher is terminated and the token is no end token, or it is no integer.
        """
        return self._handle.accept(to_token(token_id, self.vocab_size))

    def accept_tokens(self, token_ids: Tokens) -> int:
        """Step over tokens up to the first that is not allowed, and return the number of steps.

        Raises
        ------
        VocabularyError
            A token is outside the vocabulary; then the matcher does not move.
        """
        return self._handle.accept_all(to_tokens(token_ids, "token_ids"))

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last accepted tokens.

        Raises
        ------
        ArgumentError
            Fewer tokens were accepted.
        """
        check_counts(0, num_tokens=num_tokens)
        self._handle.rollback(num_tokens)

    def is_terminated(self) -> bool:
        """Tell whether an end token was accepted; after it, only end tokens are legal.

        It stays False where a span ends without one, as with ``on_complete="release"``; then every token is legal.
        """
        return self._handle.is_terminated

    def reset(self) -> None:
        """Return to the beginning."""
        self._handle.reset()

    def fork(self) -> TrieMatcher:
        """Make another matcher at the same position; the set is shared."""
        return self._of(copy.copy(self._handle))

    __copy__ = fork

    def __deepcopy__(self, memo: object) -> TrieMatcher:
        """Fork the matcher; the set, which never changes, is shared."""
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a TrieMatcher cannot be pickled; pickle its TokenTrie, and make a matcher of it there")

    def fill_next_token_bitmask(self, bitmask: Bitmask, index: int = 0) -> bool:
        """Fill a row of a mask with what is legal next; return whether it needs to be applied: not if all tokens are.

        Parameters
        ----------
        bitmask : numpy.ndarray or torch.Tensor, int32, shape (rows, ceil(vocab_size / 32))
            In main memory. Bit ``t % 32`` of word ``t // 32`` is set if token ``t`` is legal, else clear. Bits beyond
            the vocabulary are undefined. Rows may have any stride; the words of a row are contiguous.
        index : int
            The row; others do not change.

        Raises
        ------
        ArgumentError
            The mask has another shape, type, device or layout, or fewer rows. Nothing is written.
        """
        return BatchMatcher.batch_fill_next_token_bitmask([self], bitmask, [index])[0]

    def find_jump_forward_tokens(self, max_tokens: int = 1024) -> list[int]:
        """Return the forced tokens: each is the only legal one after those before it.

        They end before the next choice, before the end token, or after ``max_tokens``. The matcher does not move.
        """
        check_counts(0, max_tokens=max_tokens)
        return self._handle.forced(max_tokens)

    def allowed_tokens(self) -> npt.NDArray[np.int32]:
        """Return the tokens that are legal next, ascending; the whole vocabulary if all are."""
        return self._handle.allowed()

    @property
    def is_free(self) -> bool:
        """Whether the next token is outside the span: before ``start_after``'s marker, or after a release."""
        return self._handle.is_free

    @property
    def max_rollback_tokens(self) -> int:
        """The maximum number of tokens that can be taken back: -1, no limit."""
        return -1

    @property
    def vocab_size(self) -> int:
        """The number of tokens of the vocabulary."""
        return self._handle.n_vocab

    @property
    def num_accepted(self) -> int:
        """The number of accepted tokens, without those taken back."""
        return self._handle.n_accepted


class BatchMatcher:
    """Calls for many matchers at once, without the interpreter lock; see xgrammar's ``BatchGrammarMatcher``.

    A matcher may fill several rows, but step only once in a call. A call that fails changes nothing.
    """

    @staticmethod
    def batch_fill_next_token_bitmask(
        matchers: Sequence[TrieMatcher], bitmask: Bitmask, indices: Sequence[int] | None = None
    ) -> list[bool]:
        """Fill a row for each matcher, as `TrieMatcher.fill_next_token_bitmask` does, with the same results.

        All have the same ``vocab_size``. By default, matcher ``i`` fills row ``i``; rows that none fills do not change.
        """
        rows = None if indices is None else to_tokens(indices, "indices").tolist()
        return _core.fill_masks(_handles(matchers), host_array(bitmask), rows)

    @staticmethod
    def batch_accept_token(matchers: Sequence[TrieMatcher], tokens: Sequence[int]) -> list[bool]:
        """Step each matcher over its token, and return whether each was allowed.

        Raises
        ------
        VocabularyError, ArgumentError
            As for `TrieMatcher.accept_token`, for the row that the message names; then no matcher has moved.
        """
        return _core.accept_each(_handles(matchers), to_tokens(tokens, "tokens").tolist())

    @staticmethod
    def batch_rollback(matchers: Sequence[TrieMatcher], num_tokens: Sequence[int] | int = 1) -> None:
        """Take back the last tokens of each matcher: a number for each, or one for all.

        Raises
        ------
        ArgumentError
            The matcher that the message names has fewer; then no matcher has moved.
        """
        handles = _handles(matchers)
        if isinstance(num_tokens, (int, np.integer)):
            num_tokens = [num_tokens] * len(handles)
        counts = to_tokens(num_tokens, "num_tokens").tolist()
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


_ENDED = -1


class UniqueMatchers:
    """Positions of several sequences in one set: no two finish the same member, and each finds one.

    A node has as many seats as members below it that can end, and a sequence takes one at each node of its path. A
    token is legal for a sequence if the others have left a seat after it. There are no more sequences than such
    members, so each has at least one legal token at each step. A member cannot end if each end token continues a longer
    member, as with the members ``[1]`` and ``[1, 0]`` and the end token 0.

    Parameters
    ----------
    trie : TokenTrie
        The set.
    n : int
        Number of sequences; at most the number of members that can end.
    vocab_size : int
        Number of tokens of the vocabulary; a row of a mask has a bit for each.
    end_tokens : sequence of int
        The tokens that end an answer.

    Raises
    ------
    ArgumentError, VocabularyError
        There are more sequences than members that can end, or as for `TrieMatcher`.

    Notes
    -----
    It is not thread-safe. A step of a row costs O(n²) in the worst case, with all sequences at one node, whatever the
    size of the set.

    Examples
    --------
    >>> rows = UniqueMatchers(trie, 4, vocab_size, end_tokens=[eos])           # doctest: +SKIP
    >>> rows.fill_next_token_bitmask(bitmask)                                  # doctest: +SKIP
    >>> accepted = [rows.accept_token(i, token) for i, token in enumerate(drawn)]    # doctest: +SKIP
    """

    def __init__(self, trie: TokenTrie, n: int, vocab_size: int, *, end_tokens: Sequence[int]) -> None:
        check_counts(n=n)
        self._matchers = [TrieMatcher(trie, vocab_size, end_tokens=end_tokens) for _ in range(n)]
        if n > len(trie):
            raise ArgumentError(f"n: {n} sequences, and {len(trie)} members")
        self._trie = trie
        self._ends = to_tokens(end_tokens, "end_tokens").tolist()
        if not self._has_more_than(n - 1, 0):
            raise ArgumentError(
                f"n: {n} sequences, and fewer members that can end; each of end_tokens continues a longer member there"
            )
        self._nodes = [0] * n
        # The number of sequences that left a node by a token.
        self._gone: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._matchers)

    def accept_token(self, row: int, token_id: int) -> bool:
        """Step one sequence over a token, and return whether it was allowed; if not, the sequence does not move.

        If two sequences draw the last seat in one step, the second is refused: fill its mask again, and draw again.

        Raises
        ------
        ArgumentError, VocabularyError
            There is no such row, or as for `TrieMatcher.accept_token`.
        """
        row = self._row(row)
        matcher, node = self._matchers[row], self._nodes[row]
        token_id = to_token(token_id, matcher.vocab_size)
        is_over = matcher.is_terminated()
        if not is_over and token_id in self._closed(row):
            return False
        if not matcher.accept_token(token_id):
            return False
        if is_over:
            return True
        if matcher.is_terminated():
            self._gone[node][_ENDED] += 1
            return True
        child = self._trie.core.child(node, token_id)
        assert child is not None
        self._gone[node][token_id] += 1
        self._nodes[row] = child
        return True

    def allowed_tokens(self, row: int) -> list[int]:
        """Return the tokens that are legal next for one sequence, ascending."""
        row = self._row(row)
        closed = self._closed(row)
        return [token for token in self._matchers[row].allowed_tokens().tolist() if token not in closed]

    def fill_next_token_bitmask(self, bitmask: Bitmask, indices: Sequence[int] | None = None) -> None:
        """Fill a row for each sequence, as `BatchMatcher.batch_fill_next_token_bitmask` does."""
        BatchMatcher.batch_fill_next_token_bitmask(self._matchers, bitmask, indices)
        rows = host_array(bitmask).view(np.uint32)
        for i in range(len(self)):
            row = i if indices is None else indices[i]
            for token in self._closed(i):
                rows[row, token // 32] &= ~np.uint32(1 << token % 32)

    def is_terminated(self, row: int) -> bool:
        """Tell whether a sequence has accepted an end token."""
        return self._matchers[self._row(row)].is_terminated()

    def _row(self, row: int) -> int:
        try:
            number = operator.index(row)
        except TypeError as error:
            raise ArgumentError(f"row: {type(row).__name__} where an integer belongs") from error
        if not 0 <= number < len(self):
            raise ArgumentError(f"row: {number} of {len(self)}")
        return number

    def _closed(self, row: int) -> set[int]:
        """Return the tokens after which the other sequences have taken every seat."""
        node = self._nodes[row]
        gone = self._gone.get(node)
        if gone is None or self._matchers[row].is_terminated():
            return set()
        closed: set[int] = set()
        for token, n_held in gone.items():
            if token == _ENDED:
                # An end token that continues a member here is not an end.
                closed.update(end for end in self._ends if self._trie.core.child(node, end) is None)
            else:
                child = self._trie.core.child(node, token)
                assert child is not None
                if not self._has_more_than(n_held, child):
                    closed.add(token)
        return closed

    def _has_more_than(self, n: int, node: int) -> bool:
        """Tell whether more than n members at a node or below it can end."""
        waiting, found = [node], 0
        while waiting:
            at = waiting.pop()
            is_end = self._trie.core.leaf(at) is not None and any(
                self._trie.core.child(at, end) is None for end in self._ends
            )
            found += is_end
            if found > n:
                return True
            for child in self._trie.core.children(at)[: n + 1].tolist():
                below = self._trie.core.child(at, child)
                assert below is not None
                waiting.append(below)
        return False
