"""Options are declared once: signatures, help and table have the names, types and defaults of their dataclass."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import token_trie
import typer.main
from token_trie import ArgumentError, StreamHandle, asynchronous
from token_trie.cli.options import app
from token_trie.decisions.options import ChooseOptions, ListOptions, RecordOptions, ScoreOptions
from token_trie.engines import TrieMatcher
from token_trie.llama.query import SpanOptions
from token_trie.llama.text import TextOptions
from token_trie.native.options import Options, described
from token_trie.questions.options import DecideOptions

ROOT = Path(__file__).parents[2]
FAMILIES: list[type[Options]] = [
    ChooseOptions,
    ListOptions,
    ScoreOptions,
    RecordOptions,
    SpanOptions,
    TextOptions,
    DecideOptions,
]
FUNCTIONS: list[tuple[Callable[..., Any], type[Options]]] = [
    (token_trie.choose, ChooseOptions),
    (token_trie.choose_many, ChooseOptions),
    (StreamHandle.choose, ChooseOptions),
    (token_trie.choose_list, ListOptions),
    (StreamHandle.choose_list, ListOptions),
    (token_trie.score, ScoreOptions),
    (token_trie.score_many, ScoreOptions),
    (StreamHandle.score, ScoreOptions),
    (token_trie.fill, RecordOptions),
    (token_trie.choose_tool, RecordOptions),
    (StreamHandle.fill, RecordOptions),
    (StreamHandle.choose_tool, RecordOptions),
    (token_trie.decide, DecideOptions),
    (token_trie.decide_many, DecideOptions),
    (token_trie.constrain, SpanOptions),
    (StreamHandle.set_token_trie, SpanOptions),
    (StreamHandle.text, TextOptions),
    (TrieMatcher, SpanOptions),
]
# Declared by the function itself, or with a meaning that differs between functions.
OTHER_DEFAULTS = {(name, "leaf_end") for name in ("score", "ascore", "score_many", "StreamHandle.score")} | {
    (name, "calibration") for name in ("decide", "adecide", "decide_many", "adecide_many", "StreamHandle.decide")
}


def defaults_of(family: Any) -> dict[str, Any]:
    return {field.name: field.default for field in fields(family)}


@pytest.mark.parametrize(("function", "family"), FUNCTIONS, ids=lambda value: getattr(value, "__qualname__", None))
def test_a_function_shows_the_options_of_its_family(function: Callable[..., Any], family: type[Options]) -> None:
    shown = inspect.signature(function).parameters
    assert {name: shown[name].default for name in defaults_of(family)} == defaults_of(family)
    assert {p.kind for p in shown.values()}.isdisjoint({inspect.Parameter.VAR_KEYWORD})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_describes_each_of_its_options(family: type[Options]) -> None:
    assert list(described(family)) == list(defaults_of(family))
    assert all(described(family).values())


@pytest.mark.parametrize(
    "function",
    [
        *(getattr(token_trie, name) for name in ("choose", "choose_list", "score", "fill", "choose_tool", "constrain")),
        StreamHandle.text,
    ],
)
def test_help_describes_each_option(function: Callable[..., Any]) -> None:
    family = dict(FUNCTIONS)[function]
    for option in defaults_of(family):
        assert re.search(rf"^(\w+, )*{option}(, \w+)*( :|$)", inspect.getdoc(function) or "", re.MULTILINE), option


def test_what_mypy_knows_of_the_options_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "keywords", "--check"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_options_do_not_change(family: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(family(), next(iter(defaults_of(family))), 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ChooseOptions.read("choose", {"temprature": 1}),
            r"choose\(\) .* 'temprature'; did you mean 'temperature'",
        ),
        (
            lambda: ListOptions.read("choose_list", {"max_item": 1}),
            "did you mean 'max_items' or 'min_items' or 'max_tokens'",
        ),
        (lambda: ScoreOptions.read("score", {"colour": 1}), r"score\(\) got an unexpected keyword argument 'colour'$"),
    ],
)
def test_an_error_for_an_unknown_name_suggests_similar_names(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_every_function_takes_a_llama_first() -> None:
    for name in (
        "choose",
        "choose_list",
        "choose_many",
        "score",
        "score_many",
        "explain",
        "fill",
        "choose_tool",
        "constrain",
    ):
        assert next(iter(inspect.signature(getattr(token_trie, name)).parameters)) == "llm"
        if (twin := getattr(asynchronous, f"a{name}", None)) is not None:
            assert next(iter(inspect.signature(twin).parameters)) == "llm"


def table() -> dict[str, str]:
    """Return the names and defaults in the table of CONTRIBUTING.md."""
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text().partition("## Names of options")[2]
    return dict(re.findall(r"^\| `(\w+)` \|(?: `([^`]*)`)? \|", text, re.MULTILINE))


def test_a_name_has_one_default_everywhere_and_the_table_has_it() -> None:
    said = table()
    public = [
        getattr(token_trie, name) for name in token_trie.__all__ if not inspect.isclass(getattr(token_trie, name))
    ]
    methods = [method for name, method in vars(StreamHandle).items() if callable(method) and not name.startswith("_")]
    seen = set()
    for function in (*public, *methods, token_trie.Think, token_trie.StreamHandle, TrieMatcher):
        for name, parameter in inspect.signature(function).parameters.items():
            if said.get(name) and parameter.default is not parameter.empty:
                seen.add(name)
                if (function.__qualname__, name) not in OTHER_DEFAULTS:
                    assert repr(parameter.default) == said[name].replace('"', "'"), (function, name)
    assert seen == {name for name, default in said.items() if default}


def test_names_of_several_families_are_in_the_table() -> None:
    counted = [name for family in FAMILIES for name in defaults_of(family)]
    assert {name for name in counted if counted.count(name) > 1} <= set(table())


def test_options_of_the_command_line_have_the_names_and_defaults_of_the_family() -> None:
    group: Any = typer.main.get_command(app)
    known = defaults_of(ChooseOptions)
    for command in group.commands.values():
        own = defaults_of(RecordOptions) if command.name == "extract" else known
        for parameter in command.params:
            name = parameter.name
            if name in own and name != "probabilities" and (command.name, name) != ("label", "mode"):
                assert parameter.default == own[name], (command.name, name)
    assert set(known) - {p.name for p in group.commands["choose"].params} == {
        "leading_space",
        "probabilities",
        "think",
    }


def test_a_span_is_checked_where_it_is_made() -> None:
    for wrong in ({"max_items": 0}, {"min_items": 0}, {"unique": 1}, {"on_complete": "stop"}, {"max_span": 0}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            SpanOptions(**wrong)
