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


def test_titles_become_a_set_that_is_chosen_from(tmp_path: Path, model_paths: dict[str, Path]) -> None:
    table, out = tmp_path / "titles.csv", tmp_path / "titles.trie"
    table.write_text("sku,title\n" + "".join(f'{i},"{title}"\n' for i, title in enumerate(TITLES)))
    model = model_paths["smollm2"]
    built = run("build", table, "--text", "title", "-m", model, "-o", out)
    assert built.exit_code == 0, built.output
    assert "3 members" in built.output
    assert TokenTrie.open(out, verify=True).names == TITLES
    drawn = run("inspect", out, "--verify", "-m", model)
    assert "3 leaves" in drawn.output
    chosen = run("choose", "-m", model, "--prompt", "I boil water in a", "--choices-file", out, "--json")
    assert json.loads(chosen.output)["text"] in TITLES


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_ids_become_a_set_under_their_names(tmp_path: Path, kind: str) -> None:
    ids = {"a": [1, 2], "b": [1, 3, 4], "c": [1, 2]}
    table, out = tmp_path / f"items.{kind}", tmp_path / "items.trie"
    if kind == "jsonl":
        table.write_text("".join(json.dumps({"sku": name, "ids": row}) + "\n" for name, row in ids.items()))
    elif kind == "csv":
        table.write_text("sku,ids\n" + "".join(f"{name},{' '.join(map(str, row))}\n" for name, row in ids.items()))
    else:
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pa.table({"sku": list(ids), "ids": list(ids.values())}), table
        )
    built = run("build", table, "--ids", "ids", "--name", "sku", "-o", out)
    assert built.exit_code == 0, built.output
    assert "1 rows have the tokens of another" in built.output
    trie = TokenTrie.open(out)
    assert [(leaf.name, leaf.tokens) for leaf in trie] == [("a", (1, 2)), ("b", (1, 3, 4))]
    assert trie.aliases == {"c": "a"}


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        (["[1]", "[-1]"], ["--ids", "ids"], "line 2, ids"),
        (["[1]", '"x y"'], ["--ids", "ids"], "line 2, ids: 'x y' where token ids belong"),
        (["[1]", "7"], ["--ids", "ids"], "line 2, ids: 7 where a list of token ids belongs"),
        (["[1]"], ["--ids", "sku"], "line 1: no column 'sku'; there are ids"),
        (["[1]"], [], "--text and --ids: one of them"),
        (["[1]"], ["--text", "ids"], "--text: goes with --model"),
    ],
)
def test_what_is_no_member_is_told_and_nothing_written(
    tmp_path: Path, lines: list[str], arguments: list[str], message: str
) -> None:
    table, out = tmp_path / "items.jsonl", tmp_path / "items.trie"
    table.write_text("".join(f'{{"ids": {line}}}\n' for line in lines))
    with pytest.raises(TokenTrieError) as refused:
        run("build", table, *arguments, "-o", out)
    assert message in str(refused.value)
    assert not out.exists()
