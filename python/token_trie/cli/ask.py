"""``token-trie choose``, ``decide`` and ``demo``: answers to a prompt, to questions about a state, and to requests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from token_trie.cli.options import (
    LEAF_END_HELP,
    ChoiceOptions,
    Flags,
    JsonOption,
    ModelOptions,
    PromptOptions,
    as_prompt,
    command,
    console,
    print_json,
    read_json,
    read_text,
    status,
)
from token_trie.decisions.calibration import Contextual
from token_trie.decisions.choose import choose as choose_
from token_trie.decisions.decision import Decision
from token_trie.decisions.options import ChooseOptions
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, llama_cpp
from token_trie.progress import Progress
from token_trie.questions.decide import decide as decide_
from token_trie.questions.options import DecideOptions, FormName
from token_trie.questions.question import (
    Answered,
    Choice,
    Predicate,
    Question,
    Score,
    ScoreAnswer,
)
from token_trie.show.explain import explain as explain_
from token_trie.show.trie import (
    describe_certainty,
    describe_mass,
    percent,
    percent_bar,
    plain,
    printable,
    show_bytes,
)
from token_trie.trust.calibration import Calibration

_FLAGS = Flags(
    ChooseOptions,
    without=("probabilities", "calibration", "leading_space", "think"),
    mode="exact: the most probable choice (the default); greedy: the best token at each branch point; sampled: a "
    "random token at each branch point; aligned: a random choice, by the probabilities of whole choices; beam: the "
    "best choice that a beam search finds.",
    temperature="For --mode sampled. Default: 1.",
    top_p="For --mode sampled.",
    seed="For --mode sampled and aligned: the same seed gives the same answer.",
    leaf_end=LEAF_END_HELP,
    n_best="For --mode exact and beam: number of answers to show.",
    beam_width="For --mode beam: number of beginnings that are kept.",
    max_nodes="For --mode exact: number of nodes after which the search ends with the best so far; 0: no limit.",
    max_scored="Refuse to score all choices if the set has more nodes than this; 0: no limit.",
    timeout="For --mode exact: seconds after which the search ends.",
)


@command(
    "token-trie choose --prompt 'The capital of France is' --choice Paris --choice Rome",
    "token-trie choose -m model.gguf --prompt 'Great film!' --chat --choices-file labels.txt --json",
    "token-trie choose --prompt 'Great film! Genre:' --choices-file genres.txt --top 5",
    "token-trie choose -m model.gguf --prompt 'Recommended next:' --choices-file items.trie",
    "token-trie choose --prompt 'The capital of France is' --choice Paris --choice Rome --explain",
    "git log -1 --format=%B | token-trie choose --prompt - --choice fix --choice feature",
)
def choose(
    prompt: PromptOptions,
    choices: ChoiceOptions,
    model: ModelOptions,
    answer: Annotated[dict[str, Any], _FLAGS],
    top: Annotated[
        int | None,
        typer.Option(
            min=1, help="Score all choices, and show this many with probabilities. For large sets use --n-best."
        ),
    ] = None,
    contextual: Annotated[str | None, "The prompt without its content. Its scores are subtracted."] = None,
    calibration: Annotated[Path | None, "A calibration that `evaluate --fit` made for a prompt."] = None,
    explain: Annotated[
        bool,
        "Show the probability at every branch point, and where the greedy and the best answer differ. All "
        "choices are scored.",
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt with one of the choices."""
    mode = answer["mode"]
    if explain:
        _require_defaults({**answer, "top": top, "contextual": contextual, "calibration": calibration})
    if contextual is not None and calibration is not None:
        raise ArgumentError("--contextual and --calibration: use only one of them")
    if top is not None and mode not in (None, "exact", "aligned"):
        raise ArgumentError(f"--top: not with --mode {mode}, which does not score all choices")
    text, texts = prompt.read(choices)
    llm = model.load()
    if explain:
        with status.status(f"scoring {len(texts):,} choices"):
            explanation = explain_(llm, text, texts, leaf_end=answer["leaf_end"], max_scored=answer["max_scored"])
        if as_json:
            print_json(explanation.to_dict() | {"sentence": "".join(part for part, _ in explanation.sentence())})
        else:
            console.print(explanation)
        return
    calibrating = None if calibration is None else Calibration.load(calibration)
    with status.status(f"choosing from {len(texts):,}"):
        decision = choose_(
            llm,
            text,
            texts,
            probabilities=top is not None and mode != "aligned",
            calibration=calibrating if contextual is None else Contextual(as_prompt(contextual, prompt.chat)),
            **answer,
        )
    if as_json:
        print_json(decision.to_dict())
    elif decision.candidates or decision.probabilities is not None:
        console.print(_draw_whole(decision, top or answer["n_best"]), highlight=False)
    else:
        console.print(_draw_steps(decision, llm))


def _require_defaults(given: dict[str, Any]) -> None:
    """Raise ArgumentError for an option of `choose` that --explain does not take."""
    defaults = {field.name: field.default for field in fields(ChooseOptions)}
    for name, value in given.items():
        if name not in ("leaf_end", "max_scored") and value != defaults.get(name):
            raise ArgumentError(f"--explain: not with --{name.replace('_', '-')}")


def _draw_steps(decision: Decision[str], llm: Llama) -> Table:
    """Draw a decision that was made token by token."""
    stats = decision.stats
    pieces = [(plain(show_bytes(llm.detokenize([token], special=True))), token) for token in decision.tokens]
    table = _table()
    table.add_row("answer", f"[bold green]{plain(decision.text)}")
    table.add_row("tokens", " ".join(f"[cyan]{piece}[/] [dim]{token}[/]" for piece, token in pieces))
    table.add_row(
        "", f"{stats.n_branches} chosen, {stats.n_forced} forced, {stats.n_passes} forward passes after the prompt"
    )
    n = len(decision.trie)
    table.add_row("log-probability", f"{decision.branch_logprob:.3f} of {n} choices, branch by branch")
    table.add_row("time", _describe_time(decision))
    return table


def _table() -> Table:
    return Table(show_header=False, box=None, padding=(0, 2, 0, 0))


def _draw_whole(decision: Decision[str], n: int) -> Group:
    """Draw the n best answers of a decision between whole answers."""
    known = decision.probabilities is not None
    weighed = [(c.value, c.share) for c in decision.candidates if c.share is not None]
    best = decision.top(n) if known else weighed or [(c.value, math.exp(c.logprob)) for c in decision.candidates]
    table = _table()
    for value, p in best:
        name = plain(value)
        table.add_row(f"[bold green]{name}" if value == decision.value else name, percent_bar(p), percent(p))
    lines: list[Text] = []
    if known:
        if (n_more := len(decision.trie) - len(best)) > 0:
            table.add_row(f"[dim]… {n_more:,} more", "", f"[dim]{percent(max(0.0, 1 - sum(p for _, p in best)))}")
        if decision.mass is not None:  # a head needs none
            lines.append(Text(describe_mass(decision.mass), "" if decision.fits else "yellow"))
        lines.append(Text(describe_certainty(decision)))
    elif weighed:
        lines.append(Text("Of the answers that the search found, weighed against the prompt without its content."))
    else:
        lines.append(Text(f"Of all that the model could write here. {_describe_gap(decision)}"))
    stats = decision.stats
    passes = f"{stats.n_passes:,} forward pass{'es' if stats.n_passes != 1 else ''}"
    nodes = f"{stats.n_evaluated:,} node{'s' if stats.n_evaluated != 1 else ''}"
    work = f"{nodes} in {passes}; {_describe_time(decision)}"
    answer = Text.assemble("answer  ", (printable(decision.text), "bold green"), "\n")
    return Group(answer, table, "", *lines, Text(work, "dim"))


def _describe_time(decision: Decision[str]) -> str:
    stats = decision.stats
    return f"{stats.decide_ms:.1f} ms after {stats.prompt_ms:.1f} ms for {stats.n_prompt} prompt tokens"


def _describe_gap(decision: Decision[str]) -> str:
    if decision.gap == 0:
        return "It is proved that no answer left out is more probable."
    if decision.calibration != "raw":  # the gap is that of calibrated scores
        return "An answer left out may be more probable."
    bound = min(0.0, decision.candidates[-1].logprob + decision.gap)
    return f"An answer left out has {percent(math.exp(bound))} at most."


_QUESTION_FLAGS = Flags(
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
)
def decide(
    model: ModelOptions,
    ask: Annotated[dict[str, Any], _QUESTION_FLAGS],
    choice: Annotated[
        list[str] | None,
        typer.Option("--choice", "-c", help="NAME=QUESTION:OPTION,OPTION… An option may be OPTION=DESCRIPTION."),
    ] = None,
    predicate: Annotated[list[str] | None, "NAME=QUESTION for yes or no."] = None,
    score: Annotated[list[str] | None, "NAME=QUESTION:LEVEL,LEVEL… with the lowest level first."] = None,
    state: Annotated[str | None, "The text that the questions are about."] = None,
    state_file: Annotated[Path | None, "A file with the state. Default: - for standard input."] = None,
    request: Annotated[
        Path | None, "A file with a body of POST /v1/systemone, which has state and questions; - reads standard input."
    ] = None,
    form: Annotated[
        FormName | None, "The form of the questions. Default: what suits the model, by what its file says."
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="For forms that list the options: the number of orders to average over.")
    ] = 1,
    raw: Annotated[bool, "Give the model's own probabilities, without the correction by the prior."] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON. Default if the output is not a terminal.")
    ] = False,
) -> None:
    """Answer questions about a state, with a probability for each option."""
    questions = _questions_given(choice or [], predicate or [], score or [])
    if request is not None:
        if questions or state is not None or state_file is not None:
            raise ArgumentError("--request: not with options for the state or questions, which the file has")
        about, questions = _read_request(request)
    elif not questions:
        raise ArgumentError("no question: use --choice, --predicate, --score or --request")
    elif state is not None and state_file is not None:
        raise ArgumentError("--state and --state-file: use only one of them")
    else:
        about = read_text(state_file or Path("-")) if state is None else state
        if not about.strip():
            raise ArgumentError("the state is empty; give it with --state, --state-file or on standard input")
    calibration = None if raw else DecideOptions.calibration
    answers = decide_(model.load(4096), about, questions, form=form, calibration=calibration, orders=orders, **ask)
    if as_json or not console.is_terminal:
        print_json({name: one.to_dict() for name, one in answers.items()})
        return
    for name, one in answers.items():
        console.print(_draw_answer(name, one), highlight=False)


def _questions_given(choices: list[str], predicates: list[str], scores: list[str]) -> dict[str, Question]:
    """Return the questions of options, by name."""
    questions: dict[str, Question] = {}

    def named(option: str, given: str) -> tuple[str, str]:
        name, equals, instructions = map(str.strip, given.partition("="))
        if not (name and equals and instructions):
            raise ArgumentError(f"{option}: {given!r} is not NAME=QUESTION")
        if name in questions:
            raise ArgumentError(f"{option}: the name {name!r} occurs twice")
        return name, instructions

    for given in choices:
        asked, options = _split(given, "--choice", "OPTION")
        described = [[*map(str.strip, option.partition("="))] for option in options]
        texts = {option: text or None for option, _, text in described}
        if len(texts) < len(described):
            raise ArgumentError(f"--choice: an option of {given!r} occurs twice")
        name, instructions = named("--choice", asked)
        questions[name] = Choice(instructions, texts)
    for given in predicates:
        name, instructions = named("--predicate", given)
        questions[name] = Predicate(instructions)
    for given in scores:
        asked, levels = _split(given, "--score", "LEVEL")
        name, instructions = named("--score", asked)
        questions[name] = Score(instructions, levels)
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


def _read_request(path: Path) -> tuple[str, dict[str, Question]]:
    """Return the state and the questions of a body of ``POST /v1/systemone``, as the server reads it."""
    try:
        from token_trie.serve.bodies import parse
        from token_trie.serve.decisions import pose, state_of
        from token_trie.serve.errors import RefusedError
        from token_trie.serve.limits import Limits
        from token_trie.serve.sets import Sets
        from token_trie.serve.shapes import SystemOneRequest
    except ModuleNotFoundError as error:
        raise ArgumentError(f"--request: {error.name} is missing; pip install 'token-trie[serve]'") from error
    try:
        body = parse(SystemOneRequest, read_json(path, "--request"))
        for name in sorted(body.model_fields_set):
            if name.startswith("x_"):
                raise ArgumentError(f"--request: {name}: use the option of this command instead")
        posed = pose(body, Sets(), Limits())
        return state_of(body), {name: posed["questions", name].question for name in body.questions}
    except RefusedError as refusal:
        raise ArgumentError(f"--request: {refusal.placed}") from refusal


def _draw_answer(name: str, answer: Answered[Any]) -> Table:
    table = Table(title=plain(name), title_justify="left", title_style="bold", show_header=False, box=None)
    shares = list(answer.probabilities.items())
    labels = answer.legend if isinstance(answer, ScoreAnswer) else {True: "yes", False: "no"}
    if not isinstance(answer, ScoreAnswer):
        shares.sort(key=lambda one: -one[1])
    for value, share in shares:
        label = plain(labels.get(value, value))
        table.add_row(f"[bold green]{label}" if value == answer.value else label, percent_bar(share), percent(share))
    return table


ACTIONS = {
    "add_contact": "Save Maria's new phone number.",
    "add_to_cart": "Put two litres of milk in my shopping cart.",
    "archive_email": "Archive the email from the bank.",
    "book_flight": "I need a plane ticket to Rome.",
    "book_hotel": "Find me a hotel room in Berlin for two nights.",
    "book_table": "We want to eat at the Italian restaurant at eight.",
    "call_contact": "Phone my mother.",
    "cancel_meeting": "Cancel tomorrow's call with Bob.",
    "cancel_order": "I do not want the shoes I ordered any more.",
    "convert_currency": "How much is 20 pounds in yen?",
    "create_meeting": "Schedule a meeting with Ann at noon.",
    "create_note": "Write down: buy stamps.",
    "create_reminder": "Remind me to call the dentist.",
    "delete_email": "Delete that spam email.",
    "delete_file": "Remove the file old.txt.",
    "find_route": "How do I get to the airport?",
    "get_weather": "Is it sunny in Madrid today?",
    "list_meetings": "What is on my calendar today?",
    "open_app": "Open the camera app.",
    "pay_bill": "Pay the electricity bill.",
    "play_music": "Play a song by Queen.",
    "read_email": "Read me the latest email.",
    "read_file": "Show me what is in notes.txt.",
    "search_web": "Who won the match last night?",
    "send_email": "Send Tom an email about the invoice.",
    "send_message": "Text Sam that I am late.",
    "set_alarm": "Wake me at seven.",
    "set_timer": "Tell me when five minutes are over.",
    "track_order": "When will my package arrive?",
    "translate_text": "What is 'thank you' in Spanish?",
}
"""Each action with an example request."""

REQUESTS = {
    "Wake me up at 6:30 tomorrow.": "set_alarm",
    "Will it rain in Oslo this weekend?": "get_weather",
    "Put on some Miles Davis.": "play_music",
    "Book me a flight to Lisbon on Friday.": "book_flight",
    "How do I say 'good morning' in Japanese?": "translate_text",
    "Where is the parcel I ordered last week?": "track_order",
    "Reserve a table for four at Luigi's tonight.": "book_table",
    "What is 250 dollars in euros?": "convert_currency",
    "Remind me to water the plants on Sunday.": "create_reminder",
    "Set a timer for ten minutes.": "set_timer",
}
"""Each request with the right action."""


def prompt_for(request: str) -> str:
    """Return the prompt for one of the actions."""
    examples = "".join(f"Request: {example}\nAction: {name}\n\n" for name, example in ACTIONS.items())
    return f"{examples}Request: {request}\nAction:"


@command("token-trie demo --model model.gguf")
def demo(model: ModelOptions) -> None:
    """Answer agent requests with one of 30 actions, and compare with a GBNF grammar."""
    llm = model.load(2048)
    names = list(ACTIONS)
    grammar_text = "root ::= " + " | ".join(json.dumps(f" {name}") for name in names)
    grammar = llama_cpp.LlamaGrammar.from_string(grammar_text, verbose=False)

    def by_grammar(prompt: str) -> str:
        answer = llm.create_completion(prompt, max_tokens=24, temperature=0.0, grammar=grammar)
        return str(answer["choices"][0]["text"]).strip()

    ways: dict[str, Callable[[str], str]] = {
        "exact (default)": lambda prompt: choose_(llm, prompt, names).value,
        "greedy": lambda prompt: choose_(llm, prompt, names, mode="greedy").value,
        "GBNF grammar": by_grammar,
    }
    table = Table(title=f"{len(names)} actions, {llm.n_vocab():,} tokens of vocabulary, prompt evaluated beforehand")
    table.add_column("request")
    for way in ways:
        table.add_column(way)
        table.add_column("ms", justify="right")
    times: dict[str, list[float]] = {way: [] for way in ways}
    n_right = dict.fromkeys(ways, 0)
    with Progress(len(REQUESTS), "requests") as shown:
        for n, (request, expected) in enumerate(REQUESTS.items(), 1):
            prompt = prompt_for(request)
            row = [plain(request)]
            for way, decide in ways.items():
                decide(prompt)
                started = perf_counter()
                answer = decide(prompt)
                times[way].append((perf_counter() - started) * 1e3)
                n_right[way] += answer == expected
                row += [f"[{'green' if answer == expected else 'yellow'}]{plain(answer)}", f"{times[way][-1]:.1f}"]
            table.add_row(*row)
            shown.move(n)
    console.print(table)
    console.print("Prompts are plain text with an example of each action, without a chat template.", highlight=False)
    medians = {way: median(column) for way, column in times.items()}
    for way, ms in medians.items():
        faster = medians["GBNF grammar"] / ms
        much = "" if way == "GBNF grammar" else f", {faster:.1f} times as fast as the grammar"
        console.print(
            f"{way}: what a person would pick {n_right[way]} times in {len(REQUESTS)}; median {ms:.1f} ms{much}",
            highlight=False,
        )
