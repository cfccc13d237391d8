"""`TrieMatcher`, `BatchMatcher`: positions in a set, for engines that use masks from the host."""

from __future__ import annotations

import copy
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

_HOST_DEVICES = {1, 3, 11}  # DLPack's numbers for main memory, plain or pinned for CUDA or ROCm


def host_array(mask: Bitmask) -> npt.NDArray[Any]:
    """View a mask as an array; ArgumentError if it is not in main memory. C++ checks the shape."""
    if isinstance(mask, np.ndarray):
        return mask
    if not hasattr(mask, "__dlpack__"):
        raise ArgumentError(f"bitmask must be a numpy array or a tensor, not {type(mask).__name__}")
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
            raise ArgumentError(f"trie must be a TokenTrie, not {type(trie).__name__}")
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
    """A call for many matchers at once, without the interpreter lock; see xgrammar's ``BatchGrammarMatcher``."""

    @staticmethod
    def batch_fill_next_token_bitmask(
        matchers: Sequence[TrieMatcher], bitmask: Bitmask, indices: Sequence[int] | None = None
    ) -> list[bool]:
        """Fill a row for each matcher, as `TrieMatcher.fill_next_token_bitmask` does, with the same results.

        All have the same ``vocab_size``; one may fill several rows. By default, matcher ``i`` fills row ``i``. Rows
        that none fills do not change; a call that fails changes nothing.
        """
        rows = None if indices is None else to_tokens(indices, "indices").tolist()
        return _core.fill_masks(_handles(matchers), host_array(bitmask), rows)


def _handles(matchers: Sequence[TrieMatcher]) -> list[_core.Matcher]:
    try:
        listed = list(matchers)
    except TypeError as error:
        raise ArgumentError(f"matchers must be a list of matchers, not {type(matchers).__name__}") from error
    for i, matcher in enumerate(listed):
        if not isinstance(matcher, TrieMatcher):
            raise ArgumentError(f"matchers[{i}] must be a TrieMatcher, not {type(matcher).__name__}")
    return [matcher._handle for matcher in listed]
