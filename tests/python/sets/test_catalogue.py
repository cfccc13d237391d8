from __future__ import annotations

import base64
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Command
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from token_trie import ArgumentError, LimitError, TokenTrie, VocabularyError, choose
from token_trie.errors import PayloadError
from token_trie.sets.catalogue import Catalogue

KILLS = int(os.environ.get("TOKEN_TRIE_KILLS", "20"))
ROUNDS = int(os.environ.get("CATALOGUE_ROUNDS", "10"))

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
        for tokens, name in of.items():
            if self.expected.get(tokens) != name:
                self.expected.pop(tokens, None)
                self.expected[tokens] = name  # after all others

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
        assert [(leaf.tokens, leaf.name) for leaf in trie] == list(self.expected.items())
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


def test_catalogues_of_one_file_take_up_what_the_others_change(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a") as one, Catalogue(tmp_path / "items.trie") as two:
        one.add({"b": [9]})
        assert two.trie.names == ["a"]
        two.add({"c": [8]})
        assert two.trie.names == ["a", "b", "c"]
        with pytest.raises(ArgumentError, match="'x' is no member"):
            one.remove(["x"])
        assert one.trie.names == ["a", "b", "c"]
        one.remove(["a"])
        two.compact()
        one.add({"d": [7]})
        two.refresh()
        assert one.trie.names == two.trie.names == ["b", "c", "d"]
        assert (one.n_changes, two.n_changes) == (1, 1)
        pickle.loads(pickle.dumps(one)).add({"e": [6]})
    with Catalogue(tmp_path / "items.trie") as again:
        assert again.trie.names == ["b", "c", "d", "e"]


def test_a_closed_catalogue_changes_nothing(tmp_path: Path) -> None:
    closed = catalogue_of(tmp_path, "a")
    closed.close()
    closed.close()
    for change in (lambda: closed.add({"b": [9]}), lambda: closed.remove(["a"]), closed.compact, closed.refresh):
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
        catalogue.add({"b": [9]})
        monkeypatch.chdir(elsewhere)
        catalogue.compact()
    with Catalogue(elsewhere / "link.trie") as linked:
        linked.add({"c": [8]})
        linked.compact()
    assert TokenTrie.open(tmp_path / "items.trie").names == ["a", "b", "c"]
    assert (elsewhere / "link.trie").is_symlink()
    assert not (elsewhere / "items.trie").exists()


# What version 1 of the formats writes: a set of red, green and blue, and two changes.
SET = (
    "c-kw;&rZ!NDavGIU|?WmVrFsRU;qPV2*tnzrCHEuHU?Ax<MTslZU*cCWNr(PV1)7=pau#+`6<iy%kK=^8Q6LH#^j*qQ`f#znX2{1"
    "zby1l&#kKu{0cf6pz0l<>hmnT6&P|d>Yqtix!Bf=W=i=s?u&msx9fE8yzeWN8^sTxsSmVw=lJ?1qCI@eZ^ir<kJp5HtXb6Owe`oI"
    "yZZmmbrw1>u%fyrJ7474dNp;4>>o?x+<njIeg1Z?aeWx?io!R6uhSU|S30nwns0x2cKS-r&$Dv>35MR=t~^!k*teB08NKIb2JbNE"
    "{lopD0ZskarGK3+W+@n`&v>7AnREJVX9inkg_|E<yqaOSQa$pw_W?BZMKAt~2s2f99gv&G)0DEuvf91sPn_SaM=b%Fg(|-nzlTKx"
    "%>9v9r{zprUw7*2$x9P^Q=2X_Z8}z;T^6^f>yUHdYX8am9MB^2@rEN#Gycek%=-Q1#LWDiD(dSTpQOy5?6YL*OzDcC9ia|r=C^KF"
    "dHn6sT{Vwo(<0-xnQt<=^XBO3a;~V~A0{O`zP`VufeqFD7e1@B9V{rj)tT&MzcJa@qb%ghv6eW073R3hCE6Rb{~tgzpRN9z_WbwT"
    "E`JXY`|mL)wVTm<{`s>H{Yu^UBv{^*dfCswPMZ74RS(S;4C_M+zAkL!uKM1y-upOL8b9w>Ij3DeWqqG+GU|Qs!uF2?iRv3jRDXa("
    "^)Q8!Q1$!oEn>b@Zo6*U9pm-)c=UYFT+%%LI(oK++O#aYT`Avms&p1>y|<hb>+$Nco%uEUojx~@J^n7Y?ft4NTi1(C-&TyCpV^V}"
    "GZO>(fRTYRz(uA$76$47U50@L++^xwrqEsvD!IRt%!nvTO<_ncN=?mUNXjWqWf%n{f@-D2oXo`H)M6#8=vW=4vi#)4Bqb{)rCK8O"
    "0|30`Y+C"
)
CHANGES = """\
{"base": "7a2ca32aef399c5d48ead33e37d63fb94cd9c6e3f71eb6efaad4b5af1697b673", "id": "95121f91", "version": 1} 06ad461e
{"changes": [["05000000", "bl\\u00e5"]]} 7c017728
{"changes": [["070000000200000003000000", null]]} 51f703f3
"""


def test_files_that_an_earlier_release_wrote_open(tmp_path: Path) -> None:
    path = tmp_path / "items.trie"
    path.write_bytes(zlib.decompress(base64.b85decode(SET)))
    assert [(leaf.name, leaf.tokens) for leaf in TokenTrie.open(path, verify=True)] == [
        ("red", (7, 1)),
        ("green", (7, 2, 3)),
        ("blue", (900,)),
    ]
    path.with_name("items.trie.changes").write_text(CHANGES)
    with Catalogue(path) as catalogue:
        assert catalogue.trie.names == ["red", "blue", "blå"]


def test_changes_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.trie.changes"
    with catalogue_of(tmp_path, "a"):
        text = path.read_text().rpartition(" ")[0].replace('"version": 1', '"version": 2')
    path.write_text(f"{text} {zlib.crc32(text.encode()):08x}\n")
    with pytest.raises(
        PayloadError, match=r"items\.trie\.changes: version 2 of the format, where this release reads 1"
    ):
        Catalogue(tmp_path / "items.trie")


FORKS = """
import os, sys, threading
from token_trie.sets.catalogue import Catalogue

catalogue = Catalogue(sys.argv[1])


def change(i):
    while True:
        catalogue.add({str(i): [1000 + i]})
        catalogue.remove([str(i)])


for i in range(3):
    threading.Thread(target=change, args=(i,), daemon=True).start()
n_kept = 0
for _ in range(200):
    child = os.fork()
    if not child:
        files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        os._exit(any(file.endswith(".changes") for file in files))
    n_kept += os.waitpid(child, 0)[1] != 0
print(n_kept, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads Linux's own figures")
def test_a_forked_process_has_no_copy_of_a_file_that_another_thread_locks(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a", "b"):
        command = [sys.executable, "-c", FORKS, str(tmp_path / "items.trie")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_changes_are_to_the_base_they_were_made_to(tmp_path: Path) -> None:
    path = tmp_path / "items.trie"
    with catalogue_of(tmp_path, "a") as catalogue:
        catalogue.add({"b": [9]})
        trie_of({(1,): "x", (2,): "y"}).save(path)
        for change in (catalogue.compact, catalogue.refresh, lambda: catalogue.add({"c": [10]})):
            with pytest.raises(PayloadError, match="changes to another base"):
                change()
        assert catalogue.trie.names == ["a", "b"]
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
        trie_of({(4,): "w"}).save(path)
        catalogue.add({"v": [5]})  # to the new base, as none was made to the old one
    with Catalogue(path) as catalogue:
        assert catalogue.trie.names == ["w", "v"]


@pytest.mark.parametrize("is_compacted_between", [False, True])
def test_a_removed_member_that_is_added_again_comes_after_all_others(
    tmp_path: Path, is_compacted_between: bool
) -> None:
    with catalogue_of(tmp_path, "a", "b", "c") as catalogue:
        tokens = catalogue.trie[1].tokens
        catalogue.remove(["b"])
        if is_compacted_between:
            catalogue.compact()
        catalogue.add({"b": tokens})
        assert catalogue.trie.names == ["a", "c", "b"]
        catalogue.add({"d": tokens})
        assert (catalogue.trie.names, catalogue.n_changes) == (["a", "c", "d"], 1)
    with Catalogue(tmp_path / "items.trie") as again:
        assert (again.trie.names, again.n_changes) == (["a", "c", "d"], 1)


def test_adding_an_alias_that_exists_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "items.trie"
    TokenTrie.from_sequences({"main": [1], "other": [2], "zalias": [1]}).save(path)
    with Catalogue(path) as catalogue:
        for known in ({"zalias": [1]}, {"main": [1]}, {"other": [2]}):
            catalogue.add(known)
            assert (catalogue.trie.names, catalogue.trie.aliases) == (["main", "other"], {"zalias": "main"})
            assert catalogue.n_changes == 0
        catalogue.compact()
        assert catalogue.trie.aliases == {"zalias": "main"}
        catalogue.remove(["zalias"])
        catalogue.add({"zalias": [1]})
        assert (catalogue.trie.names, catalogue.trie.aliases) == (["other", "zalias"], {})


def line_of(record: Any) -> bytes:
    text = json.dumps(record).encode()
    return b"%b %08x\n" % (text, zlib.crc32(text))


def test_damaged_changes_are_reported(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a") as catalogue:
        catalogue.add({"b": [9]})
    path, changes = tmp_path / "items.trie", tmp_path / "items.trie.changes"
    sound = changes.read_bytes()
    head = sound.splitlines(keepends=True)[0]
    for bad in (
        ["", "x"],
        ["0900", "x"],
        ["text", "x"],
        [[9], "x"],
        ["09000000", 5],
        ["09000000", "\ud800"],
        ["09000000"],
        5,
    ):
        changes.write_bytes(head + line_of({"changes": [bad]}))
        with pytest.raises(PayloadError, match="a change that is none"):
            Catalogue(path)
    changes.write_bytes(head + line_of({"changes": [["ffffffff", "x"]]}))
    with pytest.raises(PayloadError, match="-1 is not a token id"):
        Catalogue(path)
    for damaged in (
        sound.replace(b"09000000", b"08000000") + line_of({"changes": []}),
        head + line_of([]) + line_of({"changes": []}),
        head[1:] + sound,
        line_of({"changes": []}) + sound,
        b"SQLite format 3\0" + bytes(4080),
        b"no changes at all, and long enough to be looked at" * 40,
    ):
        changes.write_bytes(damaged)
        with pytest.raises(PayloadError, match=r"items\.trie\.changes: damaged at byte"):
            Catalogue(path)
        assert changes.read_bytes() == damaged


def test_a_change_that_was_cut_off_at_any_byte_is_absent(tmp_path: Path) -> None:
    with catalogue_of(tmp_path, "a") as catalogue:
        catalogue.add({"b": [9]})
        first = (tmp_path / "items.trie.changes").stat().st_size
        catalogue.add({"c": [8]})
    changes = tmp_path / "items.trie.changes"
    sound = changes.read_bytes()
    for n in range(0, len(sound), 7):
        for rest in (b"", bytes(50), bytes(len(sound) - n - 1) + b"\n"):  # as a power failure may leave it
            names = ["a", "b"] if n >= first else ["a"]
            changes.write_bytes(sound[:n] + rest)
            with Catalogue(tmp_path / "items.trie") as catalogue:
                assert catalogue.trie.names == names
                catalogue.add({"d": [7]})
            with Catalogue(tmp_path / "items.trie") as catalogue:
                assert catalogue.trie.names == [*names, "d"]


def test_what_does_not_fit_is_refused(tmp_path: Path, precise: Any) -> None:
    with catalogue_of(tmp_path, "a") as catalogue:
        with pytest.raises(ArgumentError, match="sequences"):
            catalogue.add([("b", [1])])  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="'c' and 'b' have the same tokens"):
            catalogue.add({"c": [9], "b": [9]})
        with pytest.raises(LimitError, match="token 5000000 is too large"):
            catalogue.add({"b": [5_000_000]})
        assert catalogue.trie.names == ["a"]
    nowhere = tmp_path / ("folder" * 20) / "nowhere.trie"
    with pytest.raises(ArgumentError, match=re.escape(f'"{nowhere}"')):
        Catalogue(nowhere)
    assert not nowhere.parent.exists()
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
    from token_trie.sets.catalogue import Catalogue
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
        with Command(["-c", CHILD, tmp_path / "items.trie", kill], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            time.sleep(rng.random() * 0.05)
            child.send_signal(signal.SIGKILL)
        with Catalogue(tmp_path / "items.trie", verify=True) as catalogue:
            names = set(catalogue.trie.names)
        assert {"a", "b"} <= names
        pairs = {name[1:] for name in names - {"a", "b"}}
        assert names - {"a", "b"} == {f"{letter}{i}" for i in pairs for letter in "pq"}


WRITERS = textwrap.dedent("""
    import multiprocessing, os, random, shutil, sys, threading, time
    from token_trie import TokenTrie
    from token_trie.sets.catalogue import Catalogue

    def change(catalogue, writer):
        rng = random.Random(writer)
        with open(catalogue.path + ".reports", "ab", buffering=0) as reports:
            for i in range(4):
                name = f"{writer}-{i}"
                catalogue.add({name: [1 + int(digit) for digit in name if digit != "-"]})
                reports.write(f"added {name}\\n".encode())
                if rng.random() < 0.3:
                    reports.write(f"removing {name}\\n".encode())
                    catalogue.remove([name])
                    reports.write(f"removed {name}\\n".encode())
                elif rng.random() < 0.2:
                    catalogue.compact()

    def copy(catalogue, stop):
        while not stop.wait(0.001):
            TokenTrie.open(catalogue.path)
            for name in (catalogue.path, catalogue.path + ".changes"):
                shutil.copyfile(name, catalogue.path + ".copy")

    def fail(failed):
        sys.__excepthook__(failed.exc_type, failed.exc_value, failed.exc_traceback)
        os._exit(1)

    def write(catalogue, writer):
        threading.excepthook = fail
        stop = threading.Event()
        threading.Thread(target=copy, args=(catalogue, stop)).start()
        threads = [threading.Thread(target=change, args=(catalogue, f"{writer}-{i}")) for i in range(2)]
        for thread in threads:
            thread.start()
        child = os.fork()
        if child == 0:
            try:
                change(catalogue, f"{writer}-2")
                os._exit(0)
            finally:
                os._exit(1)
        for thread in threads:
            thread.join()
        assert os.waitpid(child, 0)[1] == 0
        stop.set()

    def check(catalogue):
        reported = {"added": {"a"}, "removing": set(), "removed": set()}
        for line in open(catalogue.path + ".reports"):
            what, name = line.split()
            reported[what].add(name)
        with Catalogue(catalogue.path, verify=True) as again:
            names = set(again.trie.names)
        catalogue.refresh()
        assert names == set(catalogue.trie.names)
        assert reported["added"] - reported["removing"] <= names, "lost"
        assert not reported["removed"] & names, "back again"
        os.remove(catalogue.path + ".reports")
        catalogue.remove(names - {"a"})
        return len(reported["added"]) - 1 + len(reported["removed"])

    if __name__ == "__main__":
        rng, n_changes = random.Random(3), 0
        catalogue = Catalogue(sys.argv[1])
        for number in range(int(sys.argv[2])):
            is_over, held = os.pipe()
            kinds = ["fork", "fork", *["spawn"][: number % 20 == 0]]
            writers = [
                multiprocessing.get_context(kind).Process(target=write, args=(catalogue, f"{number}-{i}"))
                for i, kind in enumerate(kinds)
            ]
            for writer in writers:
                writer.start()
            os.close(held)
            time.sleep(rng.random() * 0.1)
            writers[0].kill()
            for writer in writers[1:]:
                writer.join()
                assert writer.exitcode == 0
            os.read(is_over, 1)  # at the end of all forks, those of the killed one as well
            os.close(is_over)
            n_changes += check(catalogue)
        print(n_changes)
""")


def test_no_acknowledged_change_of_threads_forks_and_processes_is_lost(tmp_path: Path) -> None:
    """Processes, of which one is killed each time, change the set in threads and forks, read it and copy its files."""
    trie_of({(0,): "a"}).save(tmp_path / "items.trie")
    (tmp_path / "writers.py").write_text(WRITERS)
    command = [sys.executable, str(tmp_path / "writers.py"), str(tmp_path / "items.trie"), str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 10 * ROUNDS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 12 * ROUNDS


def test_a_fork_holds_no_lock_of_its_parent(tmp_path: Path) -> None:
    """The parent is killed while another of its threads changes; its child does not keep others from changing."""
    command = textwrap.dedent("""
        import os, signal, sys, threading, time
        from token_trie.sets.catalogue import Catalogue
        from token_trie.sets import catalogue as module
        catalogue = Catalogue(sys.argv[1])

        def change():
            with catalogue._exclusively():
                changing.set()
                time.sleep(60)

        changing = threading.Event()
        threading.Thread(target=change, daemon=True).start()
        changing.wait()
        if os.fork() == 0:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    catalogue_of(tmp_path, "a").close()
    with subprocess.Popen(
        [sys.executable, "-c", command, str(tmp_path / "items.trie")], start_new_session=True
    ) as child:
        child.wait()
        began = time.monotonic()
        with Catalogue(tmp_path / "items.trie") as catalogue:
            catalogue.add({"b": [9]})
        assert time.monotonic() - began < 10
        os.killpg(child.pid, signal.SIGKILL)


def test_interrupts_lose_no_acknowledged_change_and_hold_no_lock(tmp_path: Path) -> None:
    command = textwrap.dedent("""
        import random, signal, sys, threading
        from token_trie.sets.catalogue import Catalogue

        def hear(*_):
            if is_changing[0]:  # once for each change
                is_changing[0] = False
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, hear)
        is_changing = [False]
        main, rng, stop = threading.get_ident(), random.Random(3), threading.Event()

        def interrupt():
            while not stop.wait(rng.random() * 0.02):
                signal.pthread_kill(main, signal.SIGINT)

        catalogue, another, added, n_interrupts = Catalogue(sys.argv[1]), Catalogue(sys.argv[1]), {"a"}, 0
        threading.Thread(target=interrupt).start()
        for i in range(10_000):
            if n_interrupts == 50:
                stop.set()
                break
            try:
                is_changing[0] = True
                (catalogue, another)[i % 2].add({str(i): [1, i]})
                added.add(str(i))
                if i % 10 == 0:
                    catalogue.compact()
                is_changing[0] = False
            except KeyboardInterrupt:
                n_interrupts += 1
        another.refresh()
        assert stop.is_set() and added <= set(another.trie.names), added - set(another.trie.names)
    """)
    catalogue_of(tmp_path, "a").close()
    done = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path / "items.trie")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
