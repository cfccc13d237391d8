from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_wrong_types import try_each
from token_trie import ArgumentError, TokenTrie, VocabularyError
from token_trie.engines import BatchMatcher, TrieMatcher

END, COMMA, V = 2, 3, 40
#    .
#   7|
#  (READ)
#   8|
#  (READ_FILE)
TRIE = TokenTrie.from_sequences({"READ": [7], "READ_FILE": [7, 8]})


def matcher(**options: Any) -> TrieMatcher:
    return TrieMatcher(TRIE, V, **{"end_tokens": [END], **options})


def mask(rows: int = 1, n_vocab: int = V) -> np.ndarray:
    return np.full((rows, (n_vocab + 31) // 32), 0x55555555, np.int32)


def tokens_of(row: np.ndarray, n_vocab: int = V) -> list[int]:
    bits = np.unpackbits(row.astype("<i4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:n_vocab]).tolist()


def test_a_walk_by_hand() -> None:
    m = matcher()
    assert m.allowed_tokens().tolist() == m.find_jump_forward_tokens() == [7]
    assert m.accept_token(8) is False
    assert m.accept_tokens([7, 9]) == 1
    rows = mask()
    assert m.fill_next_token_bitmask(rows) is True
    assert tokens_of(rows[0]) == m.allowed_tokens().tolist() == [END, 8]
    assert m.find_jump_forward_tokens() == []
    assert not m.is_terminated()
    assert m.accept_token(END)
    assert m.is_terminated()
    assert m.allowed_tokens().tolist() == [END]
    assert (m.num_accepted, m.vocab_size, m.max_rollback_tokens) == (2, V, -1)


def test_what_was_accepted_is_taken_back() -> None:
    m = matcher()
    assert m.accept_tokens([7, 8, END, END, 7]) == 4
    m.rollback()
    assert m.is_terminated()
    m.rollback(2)
    fork = m.fork()
    assert m.allowed_tokens().tolist() == [END, 8]
    m.reset()
    assert m.allowed_tokens().tolist() == [7]
    assert fork.allowed_tokens().tolist() == copy.copy(fork).allowed_tokens().tolist() == [END, 8]


def test_a_released_span_allows_everything_and_its_mask_need_not_be_applied() -> None:
    m = matcher(on_complete="release", end_tokens=None)
    assert m.accept_tokens([7, 30, 31]) == 3
    rows = mask()
    assert m.fill_next_token_bitmask(rows) is False
    assert (rows == -1).all()
    assert not m.is_terminated()


def test_lists_and_thinking_go_by_tokens_without_a_model() -> None:
    m = matcher(on_complete="restart", separator=[COMMA], unique=True, start_after=[20], max_before=0)
    assert m.find_jump_forward_tokens() == [20, 7]
    assert m.accept_tokens([20, 7]) == 2
    assert m.allowed_tokens().tolist() == [END, COMMA, 8]
    assert m.accept_tokens([COMMA, 7]) == 2
    assert m.allowed_tokens().tolist() == [8], "READ has been"


def test_before_the_marker_an_end_token_is_not_legal() -> None:
    m = matcher(start_after=[20])
    assert m.allowed_tokens().tolist() == [t for t in range(V) if t != END]


def test_a_model_brings_its_end_tokens_and_its_vocabulary(precise: Any, smollm2: Any) -> None:
    trie = TokenTrie.from_choices(precise, ["yes", "no"])
    m = TrieMatcher(trie, llm=precise)
    assert m.vocab_size == precise.n_vocab()
    assert m.accept_tokens(trie[0].tokens) == len(trie[0].tokens)
    assert precise.token_eos() in m.allowed_tokens()
    assert TrieMatcher(trie, precise.n_vocab() + 64, llm=precise).vocab_size == precise.n_vocab() + 64
    with pytest.raises(ArgumentError, match="is less than the model has"):
        TrieMatcher(trie, 5, llm=precise)
    with pytest.raises(VocabularyError, match="another vocabulary"):
        TrieMatcher(trie, llm=smollm2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrieMatcher(TRIE, end_tokens=[END]), "vocab_size: needed"),
        (lambda: TrieMatcher(TRIE, V), "on_complete end needs end_tokens"),
        (lambda: TrieMatcher(TRIE, 8, end_tokens=[END]), r'leaf "READ_FILE": tokens\[1\]: 8 is outside'),
        (lambda: matcher(end_tokens=[V]), r"end_tokens\[0\]: 40 is outside"),
        (lambda: matcher(separator=",", on_complete="restart"), "separator: this model has no tokenizer"),
        (lambda: matcher().accept_token(V), r"token_id: 40 is outside the vocabulary \(40 tokens\)"),
        (lambda: matcher().accept_tokens([7, -1]), r"tokens\[1\]: -1 is outside"),
        (lambda: matcher().rollback(1), "1 tokens to take back of 0 accepted"),
    ],
)
def test_what_cannot_be_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises((ArgumentError, VocabularyError), match=message):
        make()


def test_after_the_end_only_end_tokens_come_and_nothing_moves() -> None:
    ended = matcher()
    ended.accept_tokens([7, END])
    with pytest.raises(ArgumentError, match="7 comes after the end"):
        ended.accept_token(7)
    assert ended.num_accepted == 2


class Elsewhere:
    """A tensor on a device, as far as DLPack tells."""

    device = "npu:0"

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("not from here")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 12, 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((1, 2), np.int64), "must be int32, not int64"),
        (np.zeros((1, 2), ">i4"), "must be int32, not >i4"),
        (np.zeros((1, 3), np.int32), r"must have shape \(rows, 2\), not \(1, 3\)"),
        (np.zeros(2, np.int32), r"not \(2,\)"),
        (np.zeros((2, 1), np.int32).T[:, ::-1], "strides"),
        (np.zeros((1, 4), np.int32)[:, ::2], "strides"),
        (np.broadcast_to(np.int32(0), (1, 2)), "strides"),
        (np.frombuffer(bytes(8), np.int32).reshape(1, 2), "read-only"),
        (np.frombuffer(bytearray(9), np.int8)[1:].view(np.int32).reshape(1, 2), "strides .* aligned"),
        (np.zeros((0, 2), np.int32), "row 0 of 0"),
        ([[0, 0]], "must be a numpy array or a tensor, not list"),
        (Elsewhere(), "on npu:0"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"(bitmask|indices).*{message}"):
        matcher().fill_next_token_bitmask(wrong)


def test_a_batch_fills_the_given_rows_and_no_other() -> None:
    one, two = matcher(), matcher()
    assert one.accept_token(7)
    wide = mask(8)
    rows = wide[::2]  # rows may stand apart
    assert BatchMatcher.batch_fill_next_token_bitmask([one, two, one], rows, [3, 1, 2]) == [True, True, True]
    assert [tokens_of(row) for row in rows[1:]] == [[7], [END, 8], [END, 8]]
    assert (rows[0] == 0x55555555).all()
    assert (wide[1::2] == 0x55555555).all()
    one.rollback()
    BatchMatcher.batch_fill_next_token_bitmask([one, two], rows)
    assert [tokens_of(row) for row in rows[:2]] == [[7], [7]]
    assert BatchMatcher.batch_fill_next_token_bitmask([], rows) == []


@pytest.mark.parametrize("index", [-1, 1, 2**40])
def test_a_row_that_is_not_there_is_refused(index: int) -> None:
    rows = mask()
    with pytest.raises(ArgumentError, match=r"indices"):
        matcher().fill_next_token_bitmask(rows, index)
    assert (rows == 0x55555555).all()


def test_threads_may_share_a_matcher() -> None:
    shared = [matcher() for _ in range(8)]
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(order: list[TrieMatcher]) -> None:
        rows = mask(len(order))
        try:
            while not stop.is_set():
                BatchMatcher.batch_fill_next_token_bitmask(order, rows)
                for m in order:
                    m.reset()
                    m.accept_tokens([7, 8])
                    m.find_jump_forward_tokens()
                    m.fork().rollback(0)
        except ArgumentError:
            errors.append(AssertionError("a step came after the end, where there was none"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in (shared, shared[::-1], shared[3:])]
    for thread in threads:
        thread.start()
    stop.wait(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(m.num_accepted <= 3 for m in shared)


def test_whatever_is_given_the_error_is_ours() -> None:
    m = matcher()
    try_each(TrieMatcher, trie=TRIE, vocab_size=V, end_tokens=[END], llm=None)
    for call in (m.accept_token, m.accept_tokens, m.rollback, m.find_jump_forward_tokens):
        try_each(call)
    m.reset()
    try_each(m.fill_next_token_bitmask, bitmask=mask(), index=0)
    try_each(BatchMatcher.batch_fill_next_token_bitmask, matchers=[m], bitmask=mask(), indices=[0])


def test_a_copy_goes_its_own_way_and_a_pickle_is_refused_by_name() -> None:
    matcher = TrieMatcher(TRIE, V, end_tokens=[END])
    first = int(matcher.allowed_tokens()[0])
    copies = [copy.copy(matcher), copy.deepcopy([matcher])[0]]
    assert matcher.accept_token(first)
    assert [one.num_accepted for one in copies] == [0, 0]
    assert all(one.accept_token(first) for one in copies)
    with pytest.raises(ArgumentError, match="a TrieMatcher cannot be pickled; pickle its TokenTrie"):
        pickle.dumps(matcher)
