from __future__ import annotations

import copy
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from token_trie import ArgumentError, TokenTrie, choose, constrain
from token_trie.engines.rtp_llm import write_prefix_dict
from token_trie.errors import PayloadError

members = st.sets(st.lists(st.integers(3, 9), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12)
settings = st.tuples(st.integers(0, 300), st.sampled_from([0, 2, 250]), st.sampled_from(["_", ",", " | ", "é"]))


def sequences(trie: TokenTrie) -> set[tuple[int, ...]]:
    return {leaf.tokens for leaf in trie}


def test_an_example_by_hand() -> None:
    config = {"prefix_dict": {"225": [7, 9], "225_7": [2, 8]}}
    trie = TokenTrie.from_prefix_dict(config)
    assert [leaf.tokens for leaf in trie] == [(7,), (7, 8), (9,)]
    assert trie.start_token == 225
    written = write_prefix_dict(trie)
    lists = {"225": [7, 9], "225_7": [2, 8], "225_9": [2], "225_7_8": [2]}
    assert written == {"start_token_id": 225, "end_token_id": 2, "sep": "_", "prefix_dict": lists}


@given(members, settings)
def test_sets_go_both_ways_without_loss(leaves: set[tuple[int, ...]], how: tuple[int, int, str]) -> None:
    assume(how[0] != how[1])
    trie = TokenTrie.from_sequences({repr(leaf): leaf for leaf in sorted(leaves)})
    config = write_prefix_dict(trie, *how)
    again = TokenTrie.from_prefix_dict(json.loads(json.dumps(config)))
    assert sequences(again) == leaves
    assert again.start_token == how[0]
    assert write_prefix_dict(again, None, *how[1:]) == config


def test_a_file_is_read_as_the_same_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 50, 30_000).astype(np.int32)
    trie = TokenTrie.from_arrays(tokens, np.arange(0, 30_001, 3))
    file = tmp_path / "items.json"
    file.write_text(json.dumps(write_prefix_dict(trie, 1)))
    for given_as in (file, str(file)):
        read = TokenTrie.from_prefix_dict(given_as)
        assert sequences(read) == sequences(trie)
        assert read.start_token == 1


def test_a_skipped_file_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    config = {"prefix_dict": {"225": [7, -1, 2**31], "8": [1], "225_9": [1]}}
    with caplog.at_level(logging.WARNING, "token_trie"):
        assert sequences(TokenTrie.from_prefix_dict(config)) == {(7,)}
    assert [record.getMessage() for record in caplog.records] == [
        "prefix_dict: 2 ids in lists are no tokens (negative, or beyond 32 bits) and were skipped",
        "prefix_dict: nothing leads to 2 of the keys: '8', '225_9'",
    ]


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"file: .*none\.json.*: No such file"):
        TokenTrie.from_prefix_dict(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"prefix_dict": {"225": [7')
    with pytest.raises(PayloadError, match="broken JSON"):
        TokenTrie.from_prefix_dict(tmp_path / "cut.json")
    with pytest.raises((ArgumentError, PayloadError)):
        TokenTrie.from_prefix_dict(tmp_path)
    with pytest.raises(PayloadError, match=r'prefix_dict\["225"\]\[0\]: a string where a token id belongs'):
        TokenTrie.from_prefix_dict({"prefix_dict": {"225": ["7"]}})
    for wrong in (None, 7, [], {"prefix_dict": object()}, {1: 2}):
        with pytest.raises((ArgumentError, PayloadError)):
            TokenTrie.from_prefix_dict(wrong)  # type: ignore[arg-type]


def test_what_cannot_be_written_is_refused() -> None:
    trie = TokenTrie.from_sequences({"a": [7], "b": [7, 2, 8]})
    with pytest.raises(ArgumentError, match="end: 2 is a token of the member 'b'"):
        write_prefix_dict(trie)
    with pytest.raises(ArgumentError, match="end: 9 is the start token too"):
        write_prefix_dict(trie, start=9, end=9)
    for sep in ("", "1", "-"):
        with pytest.raises(ArgumentError, match="does not separate token ids"):
            write_prefix_dict(trie, end=0, sep=sep)
    for wrong in (-1, 2**31, None, "2"):
        with pytest.raises(ArgumentError, match="end"):
            write_prefix_dict(trie, end=wrong)  # type: ignore[arg-type]


def test_a_copy_remembers_the_start_token() -> None:
    trie = TokenTrie.from_prefix_dict({"prefix_dict": {"225": [7]}})
    assert copy.deepcopy(trie).start_token == pickle.loads(pickle.dumps(trie)).start_token == 225
    assert TokenTrie.from_sequences({"a": [7]}).start_token is None


def test_a_prompt_has_to_end_in_the_start_token(precise: Any) -> None:
    start, first = 40, 45
    trie = TokenTrie.from_prefix_dict({"start_token_id": start, "prefix_dict": {str(start): [first, first + 1]}})
    assert choose(precise, [41, start], trie).tokens in ((first,), (first + 1,))
    with pytest.raises(ArgumentError, match="prompt: ends in token 41; the set begins after its start token, 40"):
        choose(precise, [start, 41], trie)
    with constrain(precise, trie):
        text = precise.create_completion([41, start], max_tokens=3)["choices"][0]["text"]
        assert text == llama_cpp.Llama.detokenize(precise, [first]).decode() or text
        with pytest.raises(ArgumentError, match="prompt: ends in token 41"):
            precise.create_completion([start, 41], max_tokens=3)
