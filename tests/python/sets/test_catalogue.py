from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from token_trie import ArgumentError, Catalogue, LimitError, PayloadError, TokenTrie, VocabularyError, choose

KILLS = int(os.environ.get("TOKEN_TRIE_KILLS", "20"))

sequences = st.lists(st.integers(0, 5), min_size=1, max_size=5).map(tuple)
members = st.dictionaries(sequences, st.integers(0, 9).map(str), min_size=1, max_size=12)


def trie_of(of: dict[tuple[int, ...], str]) -> TokenTrie:
    flat = np.array([token for tokens in of for token in tokens], np.int32)
    return TokenTrie.from_arrays(flat, np.cumsum([0, *map(len, of)]), list(of.values()))


def tree_of(trie: TokenTrie, prefix: tuple[int, ...] = ()) -> Any:
    return {token: tree_of(trie, (*prefix, token)) for token in trie.children(prefix).tolist()}


class Changes(RuleBasedStateMachine):
    """Any changes, beside a dict of what is to be there."""

    @initialize(of=members)
    def begin(self, of: dict[tuple[int, ...], str]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "items.trie"
        trie_of(of).save(self.path)
        self.catalogue, self.expected = Catalogue(self.path), dict(of)

    @rule(of=members)
    def add(self, of: dict[tuple[int, ...], str]) -> None:
        self.catalogue.add(trie_of(of))
        self.expected |= of

    @rule(name=st.integers(0, 9).map(str))
    def remove(self, name: str) -> None:
        left = {tokens: its for tokens, its in self.expected.items() if its != name}
        if not left or left == self.expected:
            with pytest.raises(ArgumentError):
                self.catalogue.remove([name])
        else:
            self.catalogue.remove([name])
            self.expected = left

    @rule()
    def compact(self) -> None:
        self.catalogue.compact()
        assert self.catalogue.n_changes == 0

    @rule()
    def reopen(self) -> None:
        n = self.catalogue.n_changes
        self.catalogue.close()
        self.catalogue = Catalogue(self.path)
        assert self.catalogue.n_changes == n

    @invariant()
    def it_is_the_set_of_what_is_there(self) -> None:
        if not hasattr(self, "catalogue"):
            return
        trie = self.catalogue.trie
        assert {leaf.tokens: leaf.name for leaf in trie} == self.expected
        assert len(trie) == len(self.expected)
        assert tree_of(trie) == tree_of(trie_of(self.expected))
        assert all(tokens in trie for tokens in self.expected)

    @invariant()
    def a_pickled_set_has_the_same_indices(self) -> None:
        if not hasattr(self, "catalogue"):
            return
        trie = self.catalogue.trie
        n = trie.core.n_leaves if trie.core.is_view else len(self.expected)
        left = [i for i in range(n) if trie.core.has_leaf(i)]
        for some in (left, left[::2], left[-1:]):
            again = pickle.loads(pickle.dumps(trie.filtered(some) if some is not left else trie))
            assert [(i, again[i]) for i in range(n) if again.core.has_leaf(i)] == [(i, trie[i]) for i in some]
            assert tree_of(again) == tree_of(trie_of({trie[i].tokens: trie[i].name for i in some}))
            assert again.core.n_leaves == n

    def teardown(self) -> None:
        if hasattr(self, "catalogue"):
            self.catalogue.close()
            self.folder.cleanup()


def test_any_changes_make_the_set_of_what_is_there() -> None:
    run_state_machine_as_test(Changes, settings=settings(max_examples=25, stateful_step_count=12, deadline=None))


def catalogue_of(folder: Path, *names: str) -> Catalogue:
    TokenTrie.from_sequences({name: [i, i] for i, name in enumerate(names)}).save(folder / "items.trie")
    return Catalogue(folder / "items.trie")


def test_who_holds_a_set_goes_on_with_it(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a", "b") as catalogue:
        before = catalogue.trie
        catalogue.add({"c": [7]})
        between = catalogue.trie
        catalogue.remove(["a"])
        catalogue.compact()
        assert (before.names, between.names, catalogue.trie.names) == (["a", "b"], ["a", "b", "c"], ["b", "c"])
        assert TokenTrie.open(tmp_path / "items.trie").names == ["b", "c"]
        assert repr(catalogue).endswith("items.trie, 2 members, 0 changes>")


def test_a_changed_set_is_filtered_and_decided_among(tmp_path: Path, llm: Any) -> None:
    TokenTrie.from_choices(llm, ["Lisbon", "Oslo", "Bergen"]).save(tmp_path / "cities.trie")
    with Catalogue(tmp_path / "cities.trie") as catalogue:
        catalogue.remove(["Lisbon"])
        catalogue.add(TokenTrie.from_choices(llm, ["Paris", "Porto"]))
        asked = "The capital of France is"
        assert choose(llm, asked, catalogue.trie, mode="exact").value == "Paris"
        left = catalogue.trie.filtered([True, True, True, False, True])
        assert left.names == ["Oslo", "Bergen", "Porto"]
        assert choose(llm, asked, left, mode="exact").value in left.names


def test_names_of_no_member_remove_nothing(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a", "b", "c") as catalogue:
        with pytest.raises(ArgumentError, match=r"names\[1\]: 'x' is no member of the set"):
            catalogue.remove(["a", "x"])
        with pytest.raises(ArgumentError, match="no member of the set is left"):
            catalogue.remove(["a", "b", "c"])
        assert catalogue.trie.names == ["a", "b", "c"]
        catalogue.remove(["a", "x"], missing_ok=True)
        assert (catalogue.trie.names, catalogue.n_changes) == (["b", "c"], 1)
        catalogue.remove(["a"], missing_ok=True)
        assert catalogue.n_changes == 1


def test_a_file_is_one_catalogue_at_a_time(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a"), pytest.raises(ArgumentError, match="open as a catalogue elsewhere"):
        Catalogue(tmp_path / "items.trie")
    closed = Catalogue(tmp_path / "items.trie")
    closed.close()
    closed.close()
    for change in (lambda: closed.add({"b": [9]}), lambda: closed.compact()):
        with pytest.raises(ArgumentError, match="closed"):
            change()
    assert closed.trie.names == ["a"]


def test_a_closed_catalogue_writes_over_nothing(tmp_path: Path) -> None:
    closed = catalogue_of(tmp_path, "a")
    closed.close()
    with Catalogue(tmp_path / "items.trie") as another:
        another.add({"c": [9]})
        another.compact()
    with pytest.raises(ArgumentError, match="closed"):
        closed.compact()
    assert TokenTrie.open(tmp_path / "items.trie").names == ["a", "c"]


def test_it_stays_with_its_file_wherever_the_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue_of(tmp_path, "a").close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.trie").symlink_to(tmp_path / "items.trie")
    monkeypatch.chdir(tmp_path)
    with Catalogue("items.trie") as catalogue:
        with pytest.raises(ArgumentError, match="elsewhere"):
            Catalogue(elsewhere / "link.trie")
        catalogue.add({"b": [9]})
        monkeypatch.chdir(elsewhere)
        catalogue.compact()
    with Catalogue(elsewhere / "link.trie") as linked:
        linked.add({"c": [8]})
        linked.compact()
    assert TokenTrie.open(tmp_path / "items.trie").names == ["a", "b", "c"]
    assert (elsewhere / "link.trie").is_symlink()
    assert not (elsewhere / "items.trie").exists()


def test_changes_are_to_the_base_they_were_made_to(tmp_path: Path) -> None:
    path = tmp_path / "items.trie"
    with catalogue_of(tmp_path, "a") as catalogue:
        catalogue.add({"b": [9]})
        trie_of({(1,): "x", (2,): "y"}).save(path)
        with pytest.raises(ArgumentError, match="replaced since it was opened"):
            catalogue.compact()
    assert TokenTrie.open(path).names == ["x", "y"]
    with pytest.raises(PayloadError, match=r"items\.trie\.changes: changes to another base"):
        Catalogue(path)
    path.with_name("items.trie.changes").unlink()
    with Catalogue(path) as catalogue:
        assert catalogue.trie.names == ["x", "y"]
        catalogue.compact()  # of no changes
        trie_of({(3,): "z"}).save(path)
    with Catalogue(path) as catalogue:
        assert catalogue.trie.names == ["z"]


def test_what_was_removed_and_comes_back_has_its_old_place(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a", "b", "c") as catalogue:
        tokens = catalogue.trie[1].tokens
        catalogue.remove(["b"])
        catalogue.add({"b": tokens})
        assert (catalogue.trie.names, catalogue.n_changes) == (["a", "b", "c"], 0)
        catalogue.add({"d": tokens})
        assert (catalogue.trie.names, catalogue.n_changes) == (["a", "c", "d"], 1)
    with Catalogue(tmp_path / "items.trie") as again:
        assert (again.trie.names, again.n_changes) == (["a", "c", "d"], 1)


def test_damaged_changes_are_told(tmp_path: Path) -> None:
    catalogue_of(tmp_path, "a").close()
    changes = tmp_path / "items.trie.changes"
    for tokens, name in ((b"123", "x"), (b"", "x"), ("text", "x"), (b"\xff\xff\xff\xff", "x"), (b"1234", b"x")):
        with sqlite3.connect(changes) as database:
            database.execute("DELETE FROM changes")
            database.execute("INSERT INTO changes (tokens, name) VALUES (?, ?)", (tokens, name))
        database.close()
        with pytest.raises(PayloadError):
            Catalogue(tmp_path / "items.trie")
    changes.write_bytes(b"no database at all, and long enough to be looked at" * 40)
    with pytest.raises(PayloadError, match=r"items\.trie\.changes: "):
        Catalogue(tmp_path / "items.trie")


def test_what_does_not_fit_is_refused(tmp_path: Path, precise: Any) -> None:
    with catalogue_of(tmp_path, "a") as catalogue:
        with pytest.raises(ArgumentError, match="any tokenization"):
            catalogue.add(TokenTrie.from_choices(precise, ["band"], tokenization="any"))
        with pytest.raises(ArgumentError, match="sequences"):
            catalogue.add([("b", [1])])  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="'c' and 'b' have the same tokens"):
            catalogue.add({"c": [9], "b": [9]})
        with pytest.raises(LimitError, match="token 5000000 is too large"):
            catalogue.add({"b": [5_000_000]})
        assert catalogue.trie.names == ["a"]
    with pytest.raises(ArgumentError, match="nowhere"):
        Catalogue(tmp_path / "nowhere.trie")
    assert not (tmp_path / "nowhere.trie.changes").exists()
    members = [{"leaves": [{"name": "b", "tokens": [9]}]}]
    ours, theirs = (
        TokenTrie.from_payload(json.dumps({"vocab": "sha256:" + digit * 64, "descriptors": members})) for digit in "ab"
    )
    ours.save(tmp_path / "ours.trie")
    with Catalogue(tmp_path / "ours.trie") as catalogue, pytest.raises(VocabularyError, match="another vocabulary"):
        catalogue.add(theirs)


def test_readers_see_whole_changes_from_any_thread(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a") as catalogue:
        seen: list[list[str]] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen.append(catalogue.trie.names)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for i in range(40):
            catalogue.add({f"x{i}": [9, i], f"y{i}": [8, i]})
            catalogue.remove([f"x{i}", f"y{i}"])
            if i % 10 == 0:
                catalogue.compact()
        stop.set()
        for reader in readers:
            reader.join()
        assert all(len(names) in (1, 3) for names in seen)


CHILD = textwrap.dedent("""
    import random, sys
    from token_trie import Catalogue
    path, seed = sys.argv[1], int(sys.argv[2])
    rng = random.Random(seed)
    with Catalogue(path) as catalogue:
        print("open", flush=True)
        while True:
            i = rng.randrange(20)
            if rng.random() < 0.25:
                catalogue.compact()
            elif f"p{i}" in catalogue.trie:
                catalogue.remove([f"p{i}", f"q{i}"])
            else:
                catalogue.add({f"p{i}": [1, i, i], f"q{i}": [2, i]})
""")


def test_killed_at_any_moment_it_is_the_old_or_the_new(tmp_path: Path) -> None:
    """Each change adds or removes a pair, so that what is neither old nor new shows."""
    catalogue_of(tmp_path, "a", "b").close()
    rng = random.Random(5)
    for kill in range(KILLS):
        command = [sys.executable, "-c", CHILD, str(tmp_path / "items.trie"), str(kill)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            time.sleep(rng.random() * 0.05)
            child.send_signal(signal.SIGKILL)
        with Catalogue(tmp_path / "items.trie", verify=True) as catalogue:
            names = set(catalogue.trie.names)
        assert {"a", "b"} <= names
        pairs = {name[1:] for name in names - {"a", "b"}}
        assert names - {"a", "b"} == {f"{letter}{i}" for i in pairs for letter in "pq"}
