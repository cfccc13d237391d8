from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from token_trie import TokenTrie
from token_trie.cli import app
from token_trie.errors import TokenTrieError
from typer.testing import CliRunner

TITLES = ["red lamp", "red lamp, large", "blue kettle"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_titles_become_a_set_that_is_chosen_from(tmp_path: Path, any_path: Path) -> None:
    table, out = tmp_path / "titles.csv", tmp_path / "titles.trie"
    table.write_text("sku,title\n" + "".join(f'{i},"{title}"\n' for i, title in enumerate(TITLES)))
    model = any_path
    built = run("build", table, "--text", "title", "-m", model, "-o", out)
    assert built.exit_code == 0, built.output
    assert "3 members" in built.output
    assert TokenTrie.open(out, verify=True).names == TITLES
    drawn = run("doctor", out, "-m", model)
    assert "3 leaves" in drawn.output
    chosen = run("choose", "-m", model, "--prompt", "I boil water in a", "--choices-file", out, "--json")
    assert json.loads(chosen.stdout)["text"] in TITLES
    explained = run(
        "choose", "--explain", "-m", model, "--prompt", "I boil water in a", "--choices-file", out, "--json"
    )
    assert {answer["text"] for answer in json.loads(explained.stdout)["answers"]} == {*TITLES}


def test_titles_keep_the_names_of_their_rows(tmp_path: Path, any_path: Path) -> None:
    table, out, model = tmp_path / "titles.csv", tmp_path / "titles.trie", any_path
    table.write_text("sku,title\n" + "".join(f'S{i},"{title}"\n' for i, title in enumerate([*TITLES, TITLES[0]])))
    options = ["build", table, "--text", "title", "-m", model]
    assert run(*options, "-o", tmp_path / "texts.trie").exit_code == 0
    built = run(*options, "--name", "sku", "-o", out)
    assert "1 rows have the tokens of another" in built.output
    named, texts = TokenTrie.open(out), TokenTrie.open(tmp_path / "texts.trie")
    assert {leaf.name: leaf.tokens for leaf in named} == {f"S{TITLES.index(leaf.name)}": leaf.tokens for leaf in texts}
    assert named.aliases == {"S3": "S0"}
    assert texts.rows([*TITLES, TITLES[0]]).tolist() == [texts.names.index(title) for title in [*TITLES, TITLES[0]]]
    rows = named.rows(["S0", "S1", "S2", "S3"])
    assert [named[leaf].name for leaf in rows.tolist()] == ["S0", "S1", "S2", "S0"]
    assert named.filtered([False, False, True, True], rows=rows).names == [n for n in named.names if n in ("S0", "S2")]
    chosen = run("choose", "-m", model, "--prompt", "I boil water in a", "--choices-file", out, "--json")
    assert json.loads(chosen.stdout)["text"] in named.names


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_ids_become_a_set_under_their_names(tmp_path: Path, kind: str) -> None:
    ids = {"a": [1, 2], "b": [1, 3, 4], "c": [1, 2]}
    table, out = tmp_path / f"items.{kind}", tmp_path / "items.trie"
    if kind == "jsonl":
        table.write_text("".join(json.dumps({"sku": name, "ids": row}) + "\n" for name, row in ids.items()))
    else:
        table.write_text("sku,ids\n" + "".join(f"{name},{' '.join(map(str, row))}\n" for name, row in ids.items()))
    built = run("build", table, "--ids", "ids", "--name", "sku", "-o", out)
    assert built.exit_code == 0, built.output
    assert "1 rows have the tokens of another" in built.output
    trie = TokenTrie.open(out)
    assert [(leaf.name, leaf.tokens) for leaf in trie] == [("a", (1, 2)), ("b", (1, 3, 4))]
    assert trie.aliases == {"c": "a"}


@pytest.mark.parametrize("named", [True, False])
def test_rows_of_the_same_tokens_or_none_are_counted(tmp_path: Path, named: bool) -> None:
    rows = [([1, 2], "b"), ([], "none"), ([1, 3, 4], "c"), ([1, 2], "a"), ([0], "e"), ([1, 3], "d"), ([], "z")] * 2
    table, out = tmp_path / "items.jsonl", tmp_path / "items.trie"
    table.write_text("".join(json.dumps({"sku": name, "ids": ids}) + "\n" for ids, name in rows))
    built = run("build", table, "--ids", "ids", *(["--name", "sku"] if named else []), "-o", out)
    assert built.exit_code == 0, built.output
    assert "10 rows have the tokens of another, or none" in built.output
    leaves = [(leaf.name, leaf.tokens) for leaf in TokenTrie.open(out, verify=True)]
    names = ["a", "c", "e", "d"] if named else ["0", "2", "4", "5"]
    assert leaves == list(zip(names, [(1, 2), (1, 3, 4), (0,), (1, 3)], strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.jsonl", "items.trie"]


def test_equal_texts_are_one_member(tmp_path: Path, any_path: Path) -> None:
    table, out = tmp_path / "titles.jsonl", tmp_path / "titles.trie"
    table.write_text("".join(json.dumps({"title": title}) + "\n" for title in [*TITLES, TITLES[0]]))
    built = run("build", table, "--text", "title", "-m", any_path, "-o", out)
    assert built.exit_code == 0, built.output
    assert TokenTrie.open(out).names == TITLES


def test_a_table_without_members_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "items.jsonl"
    for rows in ("", '{"ids": []}\n' * 3):
        table.write_text(rows)
        with pytest.raises(TokenTrieError, match="a set needs at least one"):
            run("build", table, "--ids", "ids", "-o", tmp_path / "items.trie")


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        (["[1]", "[-1]"], ["--ids", "ids"], "line 2, ids"),
        (["[1]", '"x y"'], ["--ids", "ids"], "line 2, ids: 'x y' is not a list of token ids"),
        (["[1]", '"1_0"'], ["--ids", "ids"], "line 2, ids: '1_0' is not a list of token ids"),
        (["[1]", '"\u0661"'], ["--ids", "ids"], "line 2, ids: '\u0661' is not a list of token ids"),
        (["[1]", "[1, true]"], ["--ids", "ids"], "line 2, ids: [1, True] is not a list of token ids"),
        (["[1]", f'"{"[" * 50_000}"'], ["--ids", "ids"], "line 2, ids: '[[["),
        (["[1]"], ["--ids", "ids", "--leading-space"], "--leading-space: only with --text"),
        (["[1]", "7"], ["--ids", "ids"], "line 2, ids: 7 is not a list of token ids"),
        (["[1]"], ["--ids", "sku"], "line 1: no column 'sku'; the columns are ids"),
        (["[1]"], [], "--text and --ids: use exactly one of them"),
        (['"a"', '""'], ["--text", "ids"], "line 2, ids: empty; fill the cell, or leave the row out of the table"),
        (['"a"', "null"], ["--text", "ids"], "line 2, ids: empty"),
    ],
)
def test_what_is_no_member_is_reported_and_nothing_written(
    tmp_path: Path, lines: list[str], arguments: list[str], message: str
) -> None:
    table, out = tmp_path / "items.jsonl", tmp_path / "items.trie"
    table.write_text("".join(f'{{"ids": {line}}}\n' for line in lines))
    with pytest.raises(TokenTrieError) as refused:
        run("build", table, *arguments, "-o", out)
    assert message in str(refused.value)
    assert not out.exists()


def test_a_table_is_not_replaced_by_its_set_and_no_device_is(tmp_path: Path) -> None:
    table, link = tmp_path / "items.jsonl", tmp_path / "items.trie"
    table.write_text('{"ids": [1]}\n')
    link.symlink_to(table)
    for out in (table, link):
        with pytest.raises(TokenTrieError, match=r"--output: .* is another file of this command"):
            run("build", table, "--ids", "ids", "-o", out)
    assert table.read_text() == '{"ids": [1]}\n'
    with pytest.raises(TokenTrieError, match="--output: '/dev/null' is not a file"):
        run("build", table, "--ids", "ids", "-o", "/dev/null")
    with pytest.raises(TokenTrieError, match=r"path: .* is not a file: '/dev/null'"):
        TokenTrie.from_sequences({"a": [1]}).save("/dev/null")
    assert not Path("/dev/null").is_file()
