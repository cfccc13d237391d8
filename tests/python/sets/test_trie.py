from __future__ import annotations

import json
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_trie import ArgumentError, LimitError, TokenTrie, VocabularyError, cache_clear, cache_stats, choose
from token_trie.errors import PayloadError
from token_trie.native.ffi import set_of
from token_trie.sets.trie import Leaf

sequences = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(tuple)
sets = st.sets(sequences, min_size=1, max_size=40)

LETTERS = {"A": [7], "B": [7, 8], "C": [7, 9], "D": [5]}


def payload_of(*leaves: tuple[str, list[int]], path: str = "") -> dict[str, object]:
    return {"descriptors": [{"path": path, "leaves": [{"name": name, "tokens": tokens} for name, tokens in leaves]}]}


def test_the_tree_at_the_top_of_trie_h() -> None:
    #       .
    #     5/ \7
    #     D   A
    #       8/ \9
    #       B   C
    trie = TokenTrie.from_sequences(LETTERS)
    assert trie.children().tolist() == [5, 7]
    assert trie.children([7]).tolist() == [8, 9]
    assert trie.children([7, 8]).tolist() == []
    assert trie.children([6]).tolist() == []
    assert list(trie) == [Leaf("A", (7,)), Leaf("B", (7, 8)), Leaf("C", (7, 9)), Leaf("D", (5,))]
    assert (len(trie), trie.n_nodes, trie.max_tokens) == (4, 5, 2)


def test_membership_is_by_name_by_tokens_and_by_leaf() -> None:
    trie = TokenTrie.from_sequences(LETTERS)
    assert "A" in trie
    assert "E" not in trie
    assert [7, 8] in trie
    assert (8,) not in trie
    assert [] not in trie
    assert Leaf("D", (5,)) in trie
    assert Leaf("D", (7,)) not in trie
    assert 5 not in trie
    assert [2**40] not in trie


def test_threads_that_need_the_set_of_c_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(core: Any) -> Any:
        time.sleep(0.02)
        return set_of(core)

    monkeypatch.setattr("token_trie.sets.trie.set_of", slow)
    trie = TokenTrie.from_sequences(LETTERS)
    together = threading.Barrier(4)

    def ask() -> Any:
        together.wait()
        return trie.c_set

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(ask) for _ in range(4)]]
    assert all(one is found[0] for one in found)
    assert trie.c_set is found[0]


def test_a_trie_can_be_pickled() -> None:
    trie = TokenTrie.from_sequences(LETTERS)
    assert list(pickle.loads(pickle.dumps(trie))) == list(trie)


def test_indexing_counts_from_both_ends_and_says_what_is_missing() -> None:
    trie = TokenTrie.from_sequences(LETTERS)
    assert trie[-1] == trie[3] == Leaf("D", (5,))
    with pytest.raises(IndexError, match="leaf 4 of 4"):
        trie[4]


def test_repr_shows_size_and_first_names() -> None:
    assert repr(TokenTrie.from_sequences(LETTERS)) == "<TokenTrie: 4 leaves, 5 nodes: 'A', 'B', 'C', …>"
    assert repr(TokenTrie.from_sequences({"A": [1]})) == "<TokenTrie: 1 leaf, 2 nodes: 'A'>"


@given(sets)
def test_any_set_comes_back_whole_and_its_children_are_those_of_a_plain_set(members: set[tuple[int, ...]]) -> None:
    ordered = sorted(members, key=repr)
    trie = TokenTrie.from_sequences({repr(member): member for member in ordered})
    assert [leaf.tokens for leaf in trie] == ordered
    prefixes = {member[:n] for member in members for n in range(len(member) + 1)}
    assert trie.n_nodes == len(prefixes)
    for prefix in prefixes:
        expected = {member[len(prefix)] for member in members if member[: len(prefix)] == prefix and member != prefix}
        assert trie.children(prefix).tolist() == sorted(expected)
        assert (prefix in trie) == (prefix in members)


@given(sets)
def test_every_builder_makes_the_same_set(members: set[tuple[int, ...]]) -> None:
    ordered = sorted(members)
    by_sequences = TokenTrie.from_sequences({str(i): member for i, member in enumerate(ordered)})
    offsets = np.cumsum([0, *map(len, ordered)])
    by_arrays = TokenTrie.from_arrays(np.array([t for member in ordered for t in member]), offsets)
    by_payload = TokenTrie.from_payload(by_sequences.payload())
    assert list(by_sequences) == list(by_arrays) == list(by_payload)


@given(
    st.dictionaries(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20), sequences, min_size=1)
)
def test_payload_and_back_keeps_every_name(members: dict[str, tuple[int, ...]]) -> None:
    trie = TokenTrie.from_sequences(members)
    again = TokenTrie.from_payload(trie.payload(model_id="m", path="p"), path="p")
    assert list(again) == list(trie)


def test_order_is_the_callers_and_not_the_tokens() -> None:
    assert TokenTrie.from_sequences({"late": [9], "early": [1]}).names == ["late", "early"]


def test_leaves_without_tokens_are_skipped() -> None:
    trie = TokenTrie.from_arrays(np.array([1, 2]), np.array([0, 1, 1, 2]))
    assert list(trie) == [Leaf("0", (1,)), Leaf("2", (2,))]


def test_equal_sequences_become_one_leaf_under_the_smallest_name() -> None:
    trie = TokenTrie.from_sequences({"b": [1], "c": [2], "a": [1], "d": [1]})
    assert list(trie) == [Leaf("a", (1,)), Leaf("c", (2,))]
    assert trie.aliases == {"b": "a", "d": "a"}


def test_memory_is_at_most_16_bytes_a_node() -> None:
    rng = np.random.default_rng(3)
    for n_leaves in (1, 2, 100, 20_000):
        tokens = rng.integers(0, 50, n_leaves * 6)
        trie = TokenTrie.from_arrays(tokens, np.arange(0, len(tokens) + 1, 6))
        assert trie.core.structure_bytes <= 16 * trie.n_nodes


def test_a_million_leaves_are_a_matter_of_seconds() -> None:
    tokens = np.random.default_rng(1).integers(0, 262_144, 4_000_000, dtype=np.int32)
    trie = TokenTrie.from_arrays(tokens, np.arange(0, 4_000_001, 4))
    assert len(trie) == 1_000_000
    assert trie[123_456].tokens == tuple(tokens[4 * 123_456 : 4 * 123_457].tolist())


def test_descriptors_are_one_set_unless_a_path_selects() -> None:
    payload = {
        "descriptors": [
            {"path": "x", "leaves": [{"name": "a", "tokens": [1]}]},
            {"path": "y", "leaves": [{"name": "b", "tokens": [2]}]},
        ]
    }
    assert TokenTrie.from_payload(payload).names == ["a", "b"]
    assert TokenTrie.from_payload(payload, path="y").names == ["b"]
    with pytest.raises(PayloadError, match=r'no descriptor has the path "z"; there is "x", "y"'):
        TokenTrie.from_payload(payload, path="z")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("", "broken JSON at byte 1"),
        ("[]", "payload must be an object, not an array"),
        ("{}", 'payload: the key "descriptors" is missing'),
        ('{"descriptors": []}', "no leaf with tokens"),
        ('{"vocab": "zzz"}', 'vocab: "zzz" is not "sha256:" and 64 hex digits'),
        ('{"descriptors": [{"leaves": [{"name": "a", "tokens": []}]}]}', "no leaf with tokens"),
        (
            '{"descriptors": [{"leaves": [{"name": "a", "tokens": [1, -2]}]}]}',
            r"descriptors\[0\].leaves\[0\].tokens\[1\]: -2",
        ),
        (
            '{"descriptors": [{"leaves": [{"name": "a", "tokens": [1.5]}]}]}',
            r"tokens\[0\] must be a token id, not a fraction",
        ),
        (
            '{"descriptors": [{"leaves": [{"name": 1, "tokens": [1]}]}]}',
            r"leaves\[0\].name must be a string, not a number",
        ),
        ('{"descriptors": [{"leaves": [{"tokens": [1]}]}]}', r'leaves\[0\]: the key "name" is missing'),
        ('{"descriptors": [{"leaves": [{"name": "a"}]}]}', r'leaves\[0\]: the key "tokens" is missing'),
        ('{"descriptors": [{"path": "p"}]}', r'descriptors\[0\]: the key "leaves" is missing'),
        ('{"descriptors": [{"leaves": [{"name": "a\\u0000", "tokens": [1]}]}]}', r"leaves\[0\].name: holds a NUL"),
        ('{"descriptors": [{"leaves": [{"name": "a", "name": "b", "tokens": [1]}]}]}', "the key comes twice"),
        ("[" * 100, "must be an object, not an array"),
        ('{"x": ' + "[" * 100, "more than 64 levels"),
        (b'{"descriptors": [{"leaves": [{"name": "\xff", "tokens": [1]}]}]}', "broken JSON"),
        (b'{"descriptors"\x00: []}', "a NUL at byte 15"),
    ],
)
def test_a_bad_payload_is_refused_by_a_message_that_names_the_position(payload: str | bytes, message: str) -> None:
    before = cache_stats().entries
    with pytest.raises((PayloadError, LimitError), match=message):
        TokenTrie.from_payload(payload)
    assert cache_stats().entries == before


def test_a_payload_cut_off_at_any_byte_is_refused() -> None:
    whole = json.dumps(payload_of(('Zoë "x" \\ \u0001', [1, 20]), ("b", [3]), path="p"), ensure_ascii=False).encode()
    TokenTrie.from_payload(whole)
    for end in range(len(whole)):
        with pytest.raises(PayloadError):
            TokenTrie.from_payload(whole[:end])


def test_a_name_of_ten_megabytes_is_refused() -> None:
    with pytest.raises(LimitError, match=r"leaves\[0\].name: a string of 10000000 bytes; at most 65535"):
        TokenTrie.from_payload(payload_of(("x" * 10_000_000, [1])))


def test_a_dict_that_is_no_json_is_refused() -> None:
    with pytest.raises(PayloadError, match="payload: Object of type set"):
        TokenTrie.from_payload({"descriptors": {1, 2}})


@pytest.mark.parametrize(
    ("tokens", "offsets", "names", "message"),
    [
        ([1, 2], [0, 1], None, "end with len"),
        ([1, 2], [1, 2], None, r"offsets\[0\] must be 0, not 1"),
        ([1, 2], [0, 3, 2], None, r"offsets\[2\]: 2 is less"),
        ([1, 2], [], None, "dtype float64"),
        ([1.5], [0, 1], None, "tokens: not a sequence of token ids"),
        ([[1]], [0, 1], None, "tokens: not a sequence of token ids"),
        ([2**31], [0, 1], None, "does not fit 32 bits"),
        ([1], [0.0, 1.0], None, "offsets: dtype float64"),
        ([1], [0, 1], ["a", "b"], "names: 2 for 1 leaves"),
        ([1], [0, 1], [3], r"names\[0\] must be str"),
        ([1], [0, 1], ["a\0"], r"names\[0\]: holds a NUL"),
        ([1], [0, 1], ["\ud800"], r"names\[0\]: .*surrogates"),
    ],
)
def test_bad_arrays_are_refused(tokens: object, offsets: object, names: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TokenTrie.from_arrays(np.array(tokens), np.array(offsets), names)  # type: ignore[arg-type]


def test_sequences_without_any_token_or_with_a_negative_one_are_refused() -> None:
    with pytest.raises(PayloadError, match="no leaf with tokens"):
        TokenTrie.from_sequences({})
    with pytest.raises(PayloadError, match=r'leaf "a": tokens\[1\]: -1 is not a token id'):
        TokenTrie.from_sequences({"a": [1, -1]})


def test_the_constructor_points_to_the_builders() -> None:
    with pytest.raises(TypeError, match="from_choices"):
        TokenTrie()


def test_equal_payloads_are_read_once() -> None:
    cache_clear()
    text = TokenTrie.from_sequences({"cached": [4, 2]}).payload()
    before = cache_stats()
    TokenTrie.from_payload(text)
    TokenTrie.from_payload(text)
    after = cache_stats()
    assert (after.hits - before.hits, after.misses - before.misses, after.entries) == (1, 1, 1)
    assert after.capacity == 128
    cache_clear()
    assert cache_stats().entries == 0


def test_a_set_made_for_one_vocabulary_is_refused_with_another(smollm2: object, gemma: object) -> None:
    from token_trie import constrain

    trie = TokenTrie.from_payload(TokenTrie.from_choices(smollm2, ["yes", "no"]).payload())
    constrain(smollm2, trie)
    with pytest.raises(VocabularyError, match="made for another vocabulary"):
        constrain(gemma, trie)


@pytest.mark.parametrize(
    "build",
    [
        TokenTrie.from_choices,
        lambda llm, texts: TokenTrie.from_choices(llm, texts, prompt="A title:"),
        lambda llm, texts: choose(llm, "A title:", texts),
    ],
)
def test_an_interrupt_ends_the_building_of_a_set_of_many_texts(
    smollm2: Any, build: Any, request: pytest.FixtureRequest
) -> None:
    # A process that a shell has started in the background ignores it.
    request.addfinalizer(
        partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
    )
    texts = [f"The {i}th of so many titles that the tokenizer is busy with them for seconds" for i in range(150_000)]
    sent: list[float] = []

    def interrupt() -> None:
        time.sleep(0.5)
        sent.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    def build_and_wait() -> None:
        build(smollm2, texts)
        time.sleep(5)  # where that was faster than the interrupt

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        build_and_wait()
    assert time.monotonic() - sent[0] < 2  # the rest of all texts takes longer
    assert len(TokenTrie.from_choices(smollm2, texts[:2000])) == 2000


@pytest.mark.parametrize("name", ["n" * 243, "n" * 255, "é" * 127, "\U0001f600" * 63])
def test_a_set_is_saved_under_each_name_that_a_file_may_have(tmp_path: Path, name: str) -> None:
    trie = TokenTrie.from_sequences(LETTERS)
    for _ in range(2):
        trie.save(tmp_path / name)
    assert TokenTrie.open(tmp_path / name).names == trie.names
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(ArgumentError, match="too long"):
        trie.save(tmp_path / ("n" * 256))
    assert len(list(tmp_path.iterdir())) == 1
