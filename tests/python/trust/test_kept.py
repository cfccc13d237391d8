from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, Choice, ContextError, TokenTrie
from token_trie.decisions.calibration import Binding
from token_trie.sets.prompt import Filled
from token_trie.trust import rows as cache
from token_trie.trust.rows import CachedRows, Row, RowOptions, RowReader, digest_of_row, key_of, reader_of

PROMPTS = ["Pizza in Paris:", "A word about Paris:", "Pizza:"]
CHOICES = ["yes", "no", "yes and no"]


class Counting:
    """Reads as another does, counts rows, and may be interrupted."""

    def __init__(self, reader: RowReader, most: int = 10**9) -> None:
        self.each, self.binding, self.prompts = reader.each, reader.binding, reader.prompts
        self._reader, self._most = reader, most
        self.rows: list[Any] = []

    def read(self, rows: Any, **options: Any) -> Any:
        given = list(rows)
        for one, row in zip(given, self._reader.read(given, **options), strict=True):
            if len(self.rows) == self._most:
                raise KeyboardInterrupt
            self.rows.append(one)
            yield row


def read(llm: Any, folder: Any, rows: Any, choices: Any = CHOICES, most: int = 10**9, **options: Any) -> Any:
    """Return readings, the rows that were read by the model, and what is cached."""
    asked = RowOptions(**options)
    reader: Any = Counting(reader_of(llm, choices, asked), most)
    place = CachedRows(folder, key_of(asked, reader.binding))
    try:
        found, n = place.read(reader, rows)
    except KeyboardInterrupt:
        return None, reader.rows, place
    assert n == len(reader.rows)
    return found, reader.rows, place


def test_rows_are_read_once(precise: Any, tmp_path: Path) -> None:
    first, rows, _ = read(precise, tmp_path, PROMPTS)
    assert rows == PROMPTS
    again, rows, _ = read(precise, tmp_path, PROMPTS[::-1])
    assert rows == []
    assert again.raw.tolist() == first.raw[::-1].tolist()
    assert again.mass.tolist() == first.mass[::-1].tolist()
    assert (again.binding, again.texts) == (first.binding, first.texts)
    more, rows, _ = read(precise, tmp_path, [*PROMPTS, "Paris", "Pizza:", "Paris"])
    assert rows == ["Paris"]  # added, and once though it is there twice
    assert more.raw[4].tolist() == first.raw[2].tolist()


def test_an_interrupted_run_goes_on(precise: Any, tmp_path: Path) -> None:
    assert read(precise, tmp_path, PROMPTS, most=2)[1] == PROMPTS[:2]
    found, rows, _ = read(precise, tmp_path, PROMPTS)
    assert rows == PROMPTS[2:]
    assert found.raw == pytest.approx(read(precise, None, PROMPTS)[0].raw, abs=1e-4)


def test_what_is_read_is_written_now_and_then(precise: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cache, "_SECONDS_BETWEEN_WRITES", -1.0)
    written: list[int] = []
    monkeypatch.setattr(cache.CachedRows, "_write", lambda self: written.append(len(self._rows)))
    read(precise, tmp_path, PROMPTS)
    assert written == [1, 2, 3, 3]


def test_a_row_that_cannot_be_read_is_named_by_its_own_position(precise: Any, tmp_path: Path) -> None:
    with pytest.raises(ContextError, match=r"^prompts\[4\]: "):
        read(precise, tmp_path, ["a", "a", "b", "a", "word " * 2000])
    assert read(precise, tmp_path, ["a", "b"])[1] == []


QUESTION = Choice("Which?", {"billing": "Paris", "sales": None})


@pytest.mark.parametrize(
    ("choices", "options"),
    [
        (["yes", "no", "Paris"], {}),
        (CHOICES[::-1], {}),
        (CHOICES, {"leaf_end": "any"}),
        (CHOICES, {"leading_space": False}),
        (QUESTION, {}),
        (QUESTION, {"form": "listed"}),
        (Choice("Whose?", QUESTION.options), {}),
    ],
)
def test_what_is_asked_otherwise_is_read_anew(precise: Any, tmp_path: Path, choices: Any, options: Any) -> None:
    read(precise, tmp_path, PROMPTS)
    for expected in (PROMPTS, []):
        assert read(precise, tmp_path, PROMPTS, choices, **options)[1] == expected


def test_another_model_reads_anew_and_another_name_for_the_template_does_not(
    precise: Any, byte_level: Any, tmp_path: Path
) -> None:
    read(precise, tmp_path, PROMPTS)
    assert read(byte_level, tmp_path, PROMPTS)[1] == PROMPTS
    found, rows, _ = read(precise, tmp_path, PROMPTS, template="{text}")
    assert (rows, found.binding.wording) == ([], "{text}")


def test_tries_of_the_same_names_and_other_tokens_are_distinct(precise: Any, tmp_path: Path) -> None:
    one, other = (TokenTrie.from_choices(precise, CHOICES, leading_space=space) for space in (True, False))
    assert [leaf.name for leaf in one] == [leaf.name for leaf in other]
    read(precise, tmp_path, PROMPTS, one)
    assert read(precise, tmp_path, PROMPTS, one)[1] == []
    assert read(precise, tmp_path, PROMPTS, other)[1] == PROMPTS


def broken(path: Path, how: str) -> None:
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-100])
        return
    if how == "text":
        path.write_text("no archive")
        return
    with np.load(path) as file:
        arrays = dict(file)
    if how == "short":
        arrays["mass"] = arrays["mass"][:-1]
    elif how == "objects":
        arrays["raw"] = np.array([{}, None], object)
    elif how == "missing":
        del arrays["digests"]
    np.savez(path, **arrays)


@pytest.mark.parametrize("how", ["cut", "text", "short", "objects", "missing"])
def test_a_broken_file_is_reported_and_read_anew(precise: Any, tmp_path: Path, how: str) -> None:
    first, _, place = read(precise, tmp_path, PROMPTS)
    (file,) = tmp_path.iterdir()
    assert file == place.path
    broken(file, how)
    found, rows, place = read(precise, tmp_path, PROMPTS)
    assert rows == PROMPTS
    assert found.raw == pytest.approx(first.raw, abs=1e-4)
    assert f"{file}: broken, and read anew" in place.problem
    assert read(precise, tmp_path, PROMPTS)[1] == []


def test_a_file_that_cannot_be_written_leaves_the_old_one(precise: Any, tmp_path: Path, monkeypatch: Any) -> None:
    read(precise, tmp_path, PROMPTS)
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="full"):
        read(precise, tmp_path, ["Paris"])
    assert [*tmp_path.iterdir()] == [file]
    assert file.read_bytes() == before


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cache must be a folder"):
        CachedRows(tmp_path / "file", "key")


def test_rows_are_equal_if_their_tokens_are(precise: Any) -> None:
    reader = reader_of(precise, CHOICES, RowOptions())
    messages = [[{"role": role, "content": "a"}] for role in ("user", "system")]
    different: list[Any] = ["a", "b", [5, 6], *messages, "\ud800", None]
    assert len({digest_of_row(reader, row) for row in different}) == len(different)
    for equal in ([[5, 6], (5, 6), np.array([5, 6])], ["a", Filled([("a", "")]), Filled([("", "a")])]):
        assert len({digest_of_row(reader, row) for row in equal}) == 1
    states = reader_of(precise, Choice("Which?", ["yes", "no"]), RowOptions())
    assert digest_of_row(states, {"a": 1}) == digest_of_row(states, '{"a": 1}') != digest_of_row(states, '{"a": 2}')


def test_the_file_has_nothing_of_the_prompts(precise: Any, tmp_path: Path) -> None:
    read(precise, tmp_path, ["A secret about Pizza"])
    (file,) = tmp_path.iterdir()
    assert b"secret" not in file.read_bytes()


def test_states_are_kept_and_read_anew_where_they_were_not(tmp_path: Path) -> None:
    class Fake:
        each = "prompt"
        n = 0

        def prompts(self, row: str) -> list[list[int]]:
            return [[ord(row)]]

        def read(self, rows: list[str], *, states: bool, on_error: str) -> Any:
            for _ in rows:
                self.n += 1
                yield Row(np.zeros(2), np.ones(2), 0.5, np.full(4, 7, np.float32) if states else None)

    fake: Any = Fake()
    fake.binding = Binding("m", "l", "", ("a", "b"), "any")
    for states, n in ((False, 2), (True, 4), (True, 4), (False, 4)):
        found, _ = CachedRows(tmp_path, "k").read(fake, ["x", "y"], states=states)
        assert fake.n == n
        assert (found.states is not None) == (n == 4)
        assert found.contextual.tolist() == [[1.0, 1.0]] * 2
