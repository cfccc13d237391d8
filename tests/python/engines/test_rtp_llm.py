from __future__ import annotations

import copy
import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rtp_llm import prefix_dict_of
from token_trie import ArgumentError, TokenTrie, choose, constrain
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


@given(members, settings)
def test_any_set_is_read_without_loss(leaves: set[tuple[int, ...]], how: tuple[int, int, str]) -> None:
    assume(how[0] != how[1])
    read = TokenTrie.from_prefix_dict(prefix_dict_of(leaves, *how))
    assert sequences(read) == leaves
    assert read.start_token == how[0]


def test_a_file_is_read_as_the_same_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 50, 30_000).astype(np.int32)
    trie = TokenTrie.from_arrays(tokens, np.arange(0, 30_001, 3))
    file = tmp_path / "items.json"
    file.write_text(json.dumps(prefix_dict_of(sequences(trie), 1)))
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
    with pytest.raises(PayloadError, match=r'prefix_dict\["225"\]\[0\] must be a token id, not a string'):
        TokenTrie.from_prefix_dict({"prefix_dict": {"225": ["7"]}})
    for wrong in (None, 7, [], {"prefix_dict": object()}, {1: 2}):
        with pytest.raises((ArgumentError, PayloadError)):
            TokenTrie.from_prefix_dict(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "configuration must be an object, not an array"),
        ("7", "configuration must be an object, not a number"),
        ("{}", 'configuration: the key "prefix_dict" is missing'),
        ('{"prefix_dict": []}', "prefix_dict must be an object, not an array"),
        ('{"prefix_dict": null}', "prefix_dict must be an object, not null"),
        ('{"prefix_dict": {}}', "prefix_dict: no key"),
        ('{"prefix_dict": {"225": 7}}', 'prefix_dict["225"] must be an array, not a number'),
        ('{"prefix_dict": {"225": {}}}', 'prefix_dict["225"] must be an array, not an object'),
        ('{"prefix_dict": {"225": [7, [8]]}}', 'prefix_dict["225"][1] must be a token id, not an array'),
        ('{"prefix_dict": {"225": [7, -3, "8"]}}', 'prefix_dict["225"][2] must be a token id, not a string'),
        ('{"prefix_dict": {"225": [1.5]}}', 'prefix_dict["225"][0] must be a token id, not a fraction'),
        ('{"prefix_dict": {"225": [true]}}', 'prefix_dict["225"][0] must be a token id, not a boolean'),
        ('{"prefix_dict": {"9": [7]}}', 'prefix_dict: no key "225", which start_token_id begins with'),
        (
            '{"prefix_dict": {"225": [2, 7]}}',
            'prefix_dict["225"]: may end at once; an empty answer is no member of a set',
        ),
        ('{"prefix_dict": {"225": [7], "225": [8]}}', "prefix_dict: 1 of its keys come twice"),
        ('{"sep": "|", "prefix_dict": {"225": [7]}, "sep": "_"}', "sep: the key comes twice"),
        (
            '{"start_token_id": 1, "start_token_id": 1, "prefix_dict": {"1": [7]}}',
            "start_token_id: the key comes twice",
        ),
        ('{"end_token_id": 1, "prefix_dict": {"225": [7]}, "end_token_id": 2}', "end_token_id: the key comes twice"),
        ('{"prefix_dict": {"225": [7]}, "prefix_dict": {"225": [8]}}', "prefix_dict: the key comes twice"),
        ('{"start_token_id": "1", "prefix_dict": {"1": [7]}}', "start_token_id must be a token id, not a string"),
        ('{"end_token_id": -1, "prefix_dict": {"225": [7]}}', "end_token_id: -1 is not a token id"),
        ('{"end_token_id": 225, "prefix_dict": {"225": [7]}}', "end_token_id: 225 is the start token too"),
        ('{"sep": 1, "prefix_dict": {"225": [7]}}', "sep must be a string, not a number"),
        ('{"sep": "", "prefix_dict": {"225": [7]}}', 'sep: "": it does not separate token ids'),
        ('{"sep": "1", "prefix_dict": {"225": [7]}}', 'sep: "1": it does not separate token ids'),
        ("[" * 100_000, "configuration: broken JSON: "),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(PayloadError, match=re.escape(message)):
        TokenTrie.from_prefix_dict(file)


@pytest.mark.parametrize("first", [True, False])
def test_settings_may_stand_on_either_side_of_the_keys(tmp_path: Path, first: bool) -> None:
    keys, rest = '"prefix_dict": {"1": [7], "1, 7": [8, 0]}', '"start_token_id": 1, "end_token_id": 0, "sep": ", "'
    (tmp_path / "config.json").write_text("{" + (f"{rest}, {keys}" if first else f"{keys}, {rest}") + "}")
    trie = TokenTrie.from_prefix_dict(tmp_path / "config.json")
    assert [(leaf.name, leaf.tokens) for leaf in trie] == [("0", (7,)), ("1", (7, 8))]


def test_what_nothing_leads_to_and_what_is_unknown_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    lists = {"225": [7, 7, 2**31 - 1, 10**20], "225_7": [2]}
    lists |= {key: [1] for key in ("225_7_2", "225_8", "225_07", "x", "225_7_", "", "224")}
    config = {"other": {"prefix_dict": {"225": "x"}, "sep": 1}, "list": [[{"sep": None}]], "prefix_dict": lists}
    with caplog.at_level(logging.WARNING, "token_trie"):
        trie = TokenTrie.from_prefix_dict({**config, "more": 1.5})
    assert [leaf.tokens for leaf in trie] == [(7,), (2**31 - 1,)]
    skipped, unreached = (record.getMessage() for record in caplog.records)
    assert skipped.startswith("prefix_dict: 1 ids in lists are no tokens")
    assert unreached == "prefix_dict: nothing leads to 7 of the keys: '225_7_2', '225_8', '225_07', 'x', '225_7_', …"


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
