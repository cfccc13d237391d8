"""``token-trie choose``."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
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
    status,
)
from token_trie.decisions.calibration import CalibrationLike, Contextual
from token_trie.decisions.choose import choose as choose_
from token_trie.decisions.decision import Decision
from token_trie.decisions.options import ChooseOptions
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
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


def draw_whole(decision: Decision[str], n: int) -> Group:
    """Draw the n best answers of a decision between whole answers."""
    known = decision.probabilities is not None
    weighed = [(c.value, c.share) for c in decision.candidates if c.share is not None]
    best = decision.top(n) if known else weighed or [(c.value, math.exp(c.logprob)) for c in decision.candidates]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
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
    work = f"{nodes} in {passes}; {describe_time(decision)}"
    answer = Text.assemble("answer  ", (printable(decision.text), "bold green"), "\n")
    return Group(answer, table, "", *lines, Text(work, "dim"))


def describe_time(decision: Decision[str]) -> str:
    """Return the time of a decision as a sentence."""
    stats = decision.stats
    return f"{stats.decide_ms:.1f} ms after {stats.prompt_ms:.1f} ms for {stats.n_prompt} prompt tokens"


def _describe_gap(decision: Decision[str]) -> str:
    if decision.gap == 0:
        return "It is proved that no answer left out is more probable."
    if decision.calibration != "raw":  # the gap is that of calibrated scores
        return "An answer left out may be more probable."
    bound = min(0.0, decision.candidates[-1].logprob + decision.gap)
    return f"An answer left out has {percent(math.exp(bound))} at most."


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

_DEFAULTS = {field.name: field.default for field in fields(ChooseOptions)}


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
    contextual: Annotated[
        str | None, typer.Option(help="The prompt without its content. Its scores are subtracted.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A calibration that `evaluate --fit` made for a prompt.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show the probability at every branch point, and where the greedy and the best answer differ. All "
            "choices are scored.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt with one of the choices."""
    if explain:
        others = {**answer, "top": top, "contextual": contextual, "calibration": calibration}
        _explain(prompt, choices, model, others, as_json)
        return
    if contextual is not None and calibration is not None:
        raise ArgumentError("--contextual and --calibration: use only one of them")
    mode = answer["mode"]
    if top is not None and mode not in (None, "exact", "aligned"):
        raise ArgumentError(f"--top: not with --mode {mode}, which does not score all choices")
    text, texts = prompt.read(choices)
    llm = model.load()
    calibrating: CalibrationLike | None = None if calibration is None else Calibration.load(calibration)
    if contextual is not None:
        calibrating = Contextual(as_prompt(contextual, prompt.chat))
    with status.status(f"choosing from {len(texts):,}"):
        decision = choose_(
            llm,
            text,
            texts,
            probabilities=top is not None and mode != "aligned",
            calibration=calibrating,
            **answer,
        )
    if as_json:
        print_json(decision.to_dict())
        return
    if decision.candidates or decision.probabilities is not None:
        console.print(draw_whole(decision, top or answer["n_best"]), highlight=False)
        return
    stats = decision.stats
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("answer", f"[bold green]{plain(decision.text)}")
    table.add_row("tokens", " ".join(_token_text(llm, token) for token in decision.tokens))
    table.add_row(
        "", f"{stats.n_branches} chosen, {stats.n_forced} forced, {stats.n_passes} forward passes after the prompt"
    )
    table.add_row("log-probability", f"{decision.branch_logprob:.3f} of {len(texts)} choices, branch by branch")
    table.add_row("time", describe_time(decision))
    console.print(table)


def _explain(
    prompt: PromptOptions, choices: ChoiceOptions, model: ModelOptions, answer: dict[str, Any], as_json: bool
) -> None:
    """Show how the answer is found; of the options of an answer, these are --leaf-end and --max-scored."""
    leaf_end, max_scored = answer.pop("leaf_end"), answer.pop("max_scored")
    for name, value in answer.items():
        if value != _DEFAULTS.get(name):
            raise ArgumentError(f"--explain: not with --{name.replace('_', '-')}")
    text, texts = prompt.read(choices)
    llm = model.load()
    with status.status(f"scoring {len(texts):,} choices"):
        explanation = explain_(llm, text, texts, leaf_end=leaf_end, max_scored=max_scored)
    if as_json:
        print_json(explanation.to_dict() | {"sentence": "".join(text for text, _ in explanation.sentence())})
    else:
        console.print(explanation)


def _token_text(llm: Llama, token: int) -> str:
    return f"[cyan]{plain(show_bytes(llm.detokenize([token], special=True)))}[/] [dim]{token}[/]"
