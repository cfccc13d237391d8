"""``token-trie choose``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from token_trie.cli.app import command, console
from token_trie.cli.declared import Flags, flags_of
from token_trie.cli.options import LEAF_END_HELP, ChoiceOptions, JsonOption, ModelOptions, PromptOptions, as_prompt
from token_trie.decisions.calibrator import Calibrating, Contextual
from token_trie.decisions.choose import choose as choose_
from token_trie.decisions.options import ChooseOptions
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
from token_trie.show.decision import describe_time, draw_whole
from token_trie.show.trie import plain, show_bytes
from token_trie.trust.calibration import Calibration


@flags_of(
    ChooseOptions,
    without=("probabilities", "calibration", "leading_space", "think"),
    mode="exact: the most probable choice (the default); greedy: the best token at each branch point (the default for "
    "--tokenization any); sampled: a random token at each branch point; aligned: a random choice, by the probabilities "
    "of whole choices; beam: the best choice that a beam search finds.",
    temperature="For --mode sampled. Default: 1.",
    top_p="For --mode sampled.",
    seed="For --mode sampled and aligned: the same seed gives the same answer.",
    leaf_end=LEAF_END_HELP,
    n_best="For --mode exact and beam: number of answers to show.",
    beam_width="For --mode beam: number of beginnings that are kept.",
    max_nodes="For --mode exact: number of nodes after which the search ends with the best so far; 0: no limit.",
    timeout="For --mode exact: seconds after which the search ends.",
    tokenization="canonical: a choice has the tokens that the tokenizer makes of it; any: all tokens that spell it.",
    heal="For --tokenization any: the prompt may end inside a token.",
)
class AnswerOptions(Flags):
    """How the answer is taken."""


@command(
    "token-trie choose --prompt 'The capital of France is' --choice Paris --choice Rome",
    "token-trie choose -m model.gguf --prompt 'Great film!' --chat --choices-file labels.txt --json",
    "token-trie choose --prompt 'Great film! Genre:' --choices-file genres.txt --top 5",
    "token-trie choose -m model.gguf --prompt 'Recommended next:' --choices-file items.trie",
    "git log -1 --format=%B | token-trie choose --prompt - --choice fix --choice feature",
)
def choose(
    prompt: PromptOptions,
    choices: ChoiceOptions,
    model: ModelOptions,
    answer: AnswerOptions,
    top: Annotated[
        int | None, typer.Option(min=1, help="Score all choices, and show this many with probabilities.")
    ] = None,
    contextual: Annotated[
        str | None, typer.Option(help="The prompt without its content. Its scores are subtracted.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A calibration that `evaluate --fit` made for a prompt.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt with one of the choices."""
    if contextual is not None and calibration is not None:
        raise ArgumentError("--contextual and --calibration: use only one of them")
    options = answer.given
    mode = options["mode"]
    if top is not None and mode not in (None, "exact", "aligned"):
        raise ArgumentError(f"--top: not with --mode {mode}, which does not score all choices")
    text, texts = prompt.read_beside_set(choices)
    llm = model.load()
    decision = choose_(
        llm,
        text,
        texts,
        probabilities=top is not None and mode != "aligned",
        calibration=_calibrating(contextual, calibration, chat=prompt.chat),
        **options,
    )
    if as_json:
        typer.echo(json.dumps(decision.to_dict(), ensure_ascii=False, allow_nan=False))
        return
    if decision.candidates or decision.probabilities is not None:
        console.print(draw_whole(decision, top or options["n_best"]), highlight=False)
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


def _calibrating(contextual: str | None, file: Path | None, *, chat: bool) -> Calibrating | None:
    if file is not None:
        return Calibration.load(file)
    return None if contextual is None else Contextual(as_prompt(contextual, chat))


def _token_text(llm: Llama, token: int) -> str:
    return f"[cyan]{plain(show_bytes(llm.detokenize([token], special=True)))}[/] [dim]{token}[/]"
