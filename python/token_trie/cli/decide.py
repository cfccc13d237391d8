"""``token-trie decide``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from token_trie.cli.options import Flags, ModelOptions, command, console, print_json, read_json, read_text
from token_trie.decisions.calibration import AloneName
from token_trie.errors import ArgumentError
from token_trie.questions.decide import decide as decide_
from token_trie.questions.options import DecideOptions, FormName
from token_trie.show.trie import percent, percent_bar, plain

_NO_LIMIT = 1 << 20


_FLAGS = Flags(
    DecideOptions,
    without=("form", "calibration", "orders", "examples"),
    reproducible="Give bit-identical answers, whatever other questions are asked. Takes longer.",
)


@command(
    "echo 'I was charged twice!' | token-trie decide --choice 'team=Which team should handle this?:billing,technical'",
    "token-trie decide --state 'I was charged twice!' --predicate 'urgent=Is it urgent?' --score 'mood=How angry is "
    "the customer?:calm,annoyed,furious'",
    "token-trie decide --state-file ticket.txt --choice 'team=Which team?:billing=payments and charges,sales'",
    "token-trie decide --request request.json --form letters --orders 4 --json",
    needs="serve",
)
def decide(
    model: ModelOptions,
    ask: Annotated[dict[str, Any], _FLAGS],
    choice: Annotated[
        list[str] | None,
        typer.Option("--choice", "-c", help="NAME=QUESTION:OPTION,OPTION… An option may be OPTION=DESCRIPTION."),
    ] = None,
    predicate: Annotated[list[str] | None, typer.Option("--predicate", help="NAME=QUESTION for yes or no.")] = None,
    score: Annotated[
        list[str] | None, typer.Option("--score", help="NAME=QUESTION:LEVEL,LEVEL… with the lowest level first.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="The text that the questions are about.")] = None,
    state_file: Annotated[
        Path | None, typer.Option(help="A file with the state. Default: - for standard input.")
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option(
            help="A file with a body of POST /v1/systemone, which has state and questions; - reads standard input."
        ),
    ] = None,
    form: Annotated[
        FormName | None,
        typer.Option(help="The form of the questions. Default: what suits the model, by what its file says."),
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="For forms that list the options: the number of orders to average over.")
    ] = 1,
    raw: Annotated[
        bool, typer.Option("--raw", help="Give the model's own probabilities, without the correction by the prior.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON. Default if the output is not a terminal.")
    ] = False,
) -> None:
    """Answer questions about a state, with a probability for each option."""
    from token_trie.serve.bodies import parse
    from token_trie.serve.decisions import answer_json, pose, state_of
    from token_trie.serve.errors import RefusedError
    from token_trie.serve.limits import Limits
    from token_trie.serve.sets import Sets
    from token_trie.serve.shapes import SystemOneRequest

    questions = _questions(choice or [], predicate or [], score or [])
    if request is not None:
        if questions or state is not None or state_file is not None:
            raise ArgumentError("--request: not with options for the state or questions, which the file has")
        given = read_json(request, "--request")
    elif not questions:
        raise ArgumentError("no question: use --choice, --predicate, --score or --request")
    elif state is not None and state_file is not None:
        raise ArgumentError("--state and --state-file: use only one of them")
    else:
        text = read_text(state_file or Path("-")) if state is None else state
        if not text.strip():
            raise ArgumentError("the state is empty; give it with --state, --state-file or on standard input")
        given = {"state": text, "questions": questions}
    try:
        body = parse(SystemOneRequest, given)
        limits = Limits(questions=_NO_LIMIT, options=_NO_LIMIT, levels=_NO_LIMIT)
        posed = dict(zip(body.questions, pose(body, Sets(), limits).values(), strict=True))
        about = state_of(body) if body.context else body.state
    except RefusedError as refused:
        raise ArgumentError(refused.placed) from refused
    calibration: AloneName | None = None if raw else "contextual"
    questions = {name: one.question for name, one in posed.items()}
    answers = decide_(model.load(4096), about, questions, form=form, calibration=calibration, orders=orders, **ask)
    shown = {name: answer_json(one, answers[name]) for name, one in posed.items()}
    if as_json or not console.is_terminal:
        print_json(shown)
        return
    for name, one in shown.items():
        console.print(_drawn(name, one), highlight=False)


def _questions(choices: list[str], predicates: list[str], scores: list[str]) -> dict[str, Any]:
    questions: dict[str, Any] = {}

    def add(option: str, given: str, **question: Any) -> None:
        name, equals, instructions = given.partition("=")
        if not (name.strip() and equals and instructions.strip()):
            raise ArgumentError(f"{option}: {given!r} is not NAME=QUESTION")
        if name.strip() in questions:
            raise ArgumentError(f"{option}: the name {name.strip()!r} occurs twice")
        questions[name.strip()] = {"instructions": instructions.strip(), **question}

    for given in choices:
        asked, options = _split(given, "--choice", "OPTION")
        described = [option.partition("=") for option in options]
        if len({name.strip() for name, _, _ in described}) < len(described):
            raise ArgumentError(f"--choice: an option of {given!r} occurs twice")
        criteria = {name.strip(): text.strip() or None for name, _, text in described}
        add("--choice", asked, type="choice", criteria=criteria)
    for given in predicates:
        add("--predicate", given, type="noul")
    for given in scores:
        asked, levels = _split(given, "--score", "LEVEL")
        add("--score", asked, type="score", criteria=levels)
    return questions


def _split(given: str, option: str, what: str) -> tuple[str, list[str]]:
    asked, colon, listed = given.rpartition(":")
    texts = [text.strip() for text in listed.split(",")]
    if not colon or len(texts) < 2 or not all(texts):
        raise ArgumentError(f"{option}: {given!r} is not NAME=QUESTION:{what},{what}…")
    if re.search(r":\S", asked):
        raise ArgumentError(
            f"{option}: {given!r}: not clear which colon ends the question; put a space after others, or use --request"
        )
    return asked, texts


def _drawn(name: str, answer: dict[str, Any]) -> Table:
    table = Table(title=plain(name), title_justify="left", title_style="bold", show_header=False, box=None)
    shares: dict[str, float] = answer.get("probabilities") or {"yes": answer["noul"], "no": 1 - answer["noul"]}
    legend = answer.get("legend", {})
    best = max(shares.values())
    for text, share in sorted(shares.items(), key=lambda one: -one[1]) if not legend else shares.items():
        label = plain(str(legend.get(text, text)))
        table.add_row(f"[bold green]{label}" if share == best else label, percent_bar(share), percent(share))
    return table
