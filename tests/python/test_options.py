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
ANY: Any = None
TOOL = {"type": "function", "function": {"name": "look"}}
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


# An option that differs from its default, and the modes in which it has an effect.
DRAWN: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1}
CHOOSE: dict[str, tuple[Any, str]] = {
    **{name: (value, "sampled aligned") for name, value in DRAWN.items()},
    "probabilities": (True, "exact aligned"),
    "calibration": (token_trie.Contextual("A:"), "exact aligned beam"),
    "leaf_end": ("any", "exact aligned beam"),
    "n_best": (2, "exact beam"),
    "beam_width": (4, "beam"),
    "max_nodes": (64, "exact"),
    "timeout": (1.0, "exact"),
    "max_scored": (9, "aligned"),
    "leading_space": (True, "exact greedy sampled aligned beam"),
    "think": (token_trie.Think(), "exact greedy sampled aligned beam"),
}
LIST: dict[str, tuple[Any, str]] = {name: (value, "sampled") for name, value in DRAWN.items()}
RECORD: dict[str, tuple[Any, str]] = {
    **{name: (value, "sampled") for name, value in DRAWN.items()},
    "temperature": (0.5, "exact greedy sampled"),
    "max_nodes": (9, "exact"),
    "max_tokens": (9, "exact greedy sampled"),
    "indent": (2, "exact greedy sampled"),
    "on_text": (print, "exact greedy sampled"),
    "think": (token_trie.Think(), "exact greedy sampled"),
    "text": ("Oslo", "exact greedy sampled"),
}
SPAN: dict[str, tuple[Any, str]] = {
    "end_tokens": ([1], "end restart"),
    "separator": (", ", "restart"),
    "max_items": (2, "restart"),
    "min_items": (2, "restart"),
    "unique": (False, "restart"),
    "exclude": (("a",), "end release restart"),
    "start_after": ("</think>", "end release restart"),
    "max_span": (9, "restart"),
}
MODES = [
    *((ChooseOptions, "mode", mode, CHOOSE) for mode in ("exact", "greedy", "sampled", "aligned", "beam")),
    *((ListOptions, "mode", mode, LIST) for mode in ("greedy", "sampled")),
    *((RecordOptions, "mode", mode, RECORD) for mode in ("exact", "greedy", "sampled")),
    *((SpanOptions, "on_complete", mode, SPAN) for mode in ("end", "release", "restart")),
]


@pytest.mark.parametrize(
    ("family", "by", "mode", "name", "value", "is_used"),
    [
        pytest.param(family, by, mode, name, value, mode in modes.split(), id=f"{family.__name__}-{mode}-{name}")
        for family, by, mode, table in MODES
        for name, (value, modes) in table.items()
    ],
)
def test_an_option_that_the_mode_does_not_use_is_refused_by_name(
    family: Any, by: str, mode: str, name: str, value: Any, is_used: bool
) -> None:
    if is_used:
        assert getattr(family(**{by: mode, name: value}), name) == value
    else:
        with pytest.raises(ArgumentError, match=f"^{name}: has no effect"):
            family(**{by: mode, name: value})


def test_the_table_of_modes_has_every_option() -> None:
    assert {*defaults_of(ChooseOptions)} == {*CHOOSE, "mode"}
    assert {*defaults_of(RecordOptions)} == {*RECORD, "mode"}
    assert {*defaults_of(SpanOptions)} == {*SPAN, "on_complete", "max_before"}


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "seed"])
def test_free_text_without_a_temperature_refuses_what_draws(name: str) -> None:
    for family in (TextOptions, token_trie.Think, RecordOptions):
        assert getattr(family(temperature=0.7, **{name: DRAWN[name]}), name) == DRAWN[name]  # type: ignore[operator]
        for cold in ({}, {"temperature": 0.0}):
            with pytest.raises(ArgumentError, match=f"^{name}: has no effect without a temperature"):
                family(**cold, **{name: DRAWN[name]})  # type: ignore[operator]


def test_a_seed_is_that_of_a_thought_that_is_drawn() -> None:
    drawn = token_trie.Think(temperature=0.7)
    for family in (ChooseOptions, ListOptions, RecordOptions):
        assert family(think=drawn, seed=1).seed == 1
        for wrong in ({"think": token_trie.Think(), "seed": 1}, {"think": drawn, "top_k": 5}):
            with pytest.raises(ArgumentError, match="has no effect"):
                family(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("temperature", lambda trie: token_trie.choose(ANY, "A:", ["a"], temperature=0.5)),
        ("temperature", lambda trie: token_trie.choose_many(ANY, ["A:"], ["a"], temperature=0.5)),
        ("top_p", lambda trie: token_trie.choose_list(ANY, "A:", ["a"], top_p=0.5)),
        ("seed", lambda trie: token_trie.fill(ANY, "A:", {"enum": [1]}, seed=1)),
        ("max_nodes", lambda trie: token_trie.fill_many(ANY, ["A:"], {"enum": [1]}, mode="greedy", max_nodes=1)),
        ("max_nodes", lambda trie: token_trie.choose_tool_many(ANY, [], [TOOL], mode="greedy", max_nodes=1)),
        ("leaf_end", lambda trie: token_trie.score(ANY, "A:", ["a"], branches=True, leaf_end="longest")),
        ("max_before", lambda trie: token_trie.constrain(ANY, trie, max_before=9)),
        ("leading_space", lambda trie: token_trie.choose(ANY, "A:", trie, leading_space=True)),
        ("leading_space", lambda trie: token_trie.choose_list(ANY, "A:", trie, leading_space=True)),
        ("leading_space", lambda trie: token_trie.score(ANY, "A:", trie, leading_space=True)),
    ],
)
def test_functions_refuse_them_before_a_model_runs(name: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: has no effect"):
        call(token_trie.TokenTrie.from_sequences({"a": [1]}))


def test_a_handle_refuses_them_and_stays_as_it_is(llm: Any) -> None:
    with StreamHandle(llm, n_ctx=64) as stream:
        stream.prefill("A:")
        before = stream.tokens
        for name, call in (
            ("top_p", lambda: stream.text(4, top_p=0.5)),
            ("min_p", lambda: stream.generate(4, min_p=0.5)),
            ("temperature", lambda: stream.choose(["a", "b"], temperature=0.5)),
            ("max_span", lambda: stream.set_token_trie({"a": [1]}, max_span=9)),
            ("orders", lambda: stream.decide(token_trie.Predicate("Is it?"), orders=2)),
        ):
            with pytest.raises(ArgumentError, match=f"{name}: has no effect"):
                call()
        assert stream.tokens == before


def test_a_span_is_checked_where_it_is_made() -> None:
    for wrong in ({"max_items": 0}, {"min_items": 0}, {"unique": 1}, {"on_complete": "stop"}, {"max_span": 0}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            SpanOptions(**wrong)
