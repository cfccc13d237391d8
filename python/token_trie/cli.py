"""The command ``token-trie``."""

from __future__ import annotations

import io
import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from token_trie._native import Llama
from token_trie.draw import count_leaves, draw, draw_sentence, plain, show_bytes
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.prompt import Prompt
from token_trie.report import describe_time, draw_whole, to_dict

app = typer.Typer(
    help="llama.cpp answers with one of a known set.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console()
status = Console(stderr=True)


class Mode(str, Enum):
    """How to pick."""

    greedy = "greedy"
    sampled = "sampled"
    exact = "exact"
    aligned = "aligned"
    beam = "beam"


class Tokenization(str, Enum):
    """How choices may be spelled."""

    canonical = "canonical"
    any = "any"


class End(str, Enum):
    """What the probability of an answer has beside its tokens."""

    longest = "longest"
    any = "any"
    follow = "follow"


PromptOption = Annotated[
    str, typer.Option("--prompt", "-p", help="Text that the answer follows; - reads standard input.")
]
ChoiceOption = Annotated[list[str] | None, typer.Option("--choice", "-c", help="One answer; repeat for each.")]
FileOption = Annotated[Path | None, typer.Option(help="A text file with one answer a line; - for standard input.")]
ChatOption = Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")]
EndOption = Annotated[
    End,
    typer.Option(
        help="What the probability of a whole answer has beside its tokens: that no longer answer goes on from it; "
        "nothing; that the text ends there."
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", "-m", metavar="FILE.gguf", help="By default the SmolLM2-135M of `token-trie[demo]`."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command(
    epilog="**Examples**\n\n"
    "`token-trie choose --prompt 'The capital of France is' --choice Paris --choice Rome`\n\n"
    "`token-trie choose -m model.gguf --prompt 'Great film!' --chat --choices-file labels.txt --json`\n\n"
    "`token-trie choose --prompt 'Great film! Genre:' --choices-file genres.txt --mode exact --top 5`\n\n"
    "`git log -1 --format=%B | token-trie choose --prompt - --choice fix --choice feature`"
)
def choose(
    prompt: PromptOption,
    choice: ChoiceOption = None,
    choices_file: FileOption = None,
    model: ModelOption = None,
    chat: ChatOption = False,
    mode: Annotated[
        Mode,
        typer.Option(
            help="The best answer step by step, or one drawn at random that way; the most probable whole answer, or "
            "one drawn from the probabilities of whole answers; the best that a beam search finds."
        ),
    ] = Mode.greedy,
    temperature: Annotated[float, typer.Option(help="For --mode sampled.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="For --mode sampled.")] = 1.0,
    tokenization: Annotated[
        Tokenization, typer.Option(help="The tokenizer's spelling of each choice, or any.")
    ] = Tokenization.canonical,
    heal: Annotated[
        bool, typer.Option("--heal", help="For --tokenization any: the prompt may end inside a token.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="For --mode sampled and aligned: the same seed draws the same answer.")
    ] = None,
    n_best: Annotated[
        int, typer.Option("--n-best", "--top", help="For --mode exact, aligned and beam: answers to show.")
    ] = 10,
    beam_width: Annotated[int, typer.Option(help="For --mode beam.")] = 16,
    max_nodes: Annotated[
        int | None, typer.Option(help="For --mode exact: search, and stop after so many nodes once there is an answer.")
    ] = None,
    end: EndOption = End.longest,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt with one of the choices."""
    from token_trie import choose as choose_

    _check_inputs(prompt, choices_file)
    choices = _choices(choice, choices_file)
    text = _prompt(prompt, chat)
    llm = _load(model)
    decision = choose_(
        llm,
        text,
        choices,
        mode=mode.value,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        tokenization=tokenization.value,
        heal=heal,
        end=end.value,
        n_best=n_best,
        beam_width=beam_width,
        max_nodes=max_nodes,
    )
    if as_json:
        typer.echo(json.dumps(to_dict(decision, choices), ensure_ascii=False, allow_nan=False))
        return
    if mode not in (Mode.greedy, Mode.sampled):
        console.print(draw_whole(decision, n_best), highlight=False)
        return
    stats = decision.stats
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("answer", f"[bold green]{plain(decision.value)}")
    table.add_row("tokens", " ".join(_token_text(llm, token) for token in decision.tokens))
    table.add_row(
        "", f"{stats.n_branches} chosen, {stats.n_forced} forced, {stats.n_passes} forward passes after the prompt"
    )
    table.add_row("log-probability", f"{decision.logprob:.3f} of {len(choices)} choices, branch by branch")
    table.add_row("time", describe_time(decision))
    console.print(table)


@app.command(
    epilog="**Examples**\n\n"
    "`token-trie explain --prompt 'The capital of France is' --choice Paris --choice Rome`\n\n"
    "`token-trie explain -m model.gguf --prompt 'Great film!' --chat --choices-file labels.txt --html why.html`"
)
def explain(
    prompt: PromptOption,
    choice: ChoiceOption = None,
    choices_file: FileOption = None,
    model: ModelOption = None,
    chat: ChatOption = False,
    end: EndOption = End.longest,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write it as a page, which needs nothing beside itself.")
    ] = None,
) -> None:
    """Show the probability at every branch, and where greedy and exact part ways."""
    from token_trie import explain as explain_

    _check_inputs(prompt, choices_file)
    choices = _choices(choice, choices_file)
    text = _prompt(prompt, chat)
    explanation = explain_(_load(model), text, choices, end=end.value)
    if html is None:
        console.print(explanation)
        return
    html.write_text(explanation.html(), encoding="utf-8")
    console.print(draw_sentence(explanation), highlight=False)
    console.print(f"[dim]{plain(str(html))}", soft_wrap=True)


@app.command(
    epilog="**Examples**\n\n"
    "`token-trie inspect payload.json`\n\n"
    "`token-trie inspect payload.json --model model.gguf --path action`"
)
def inspect(
    payload: Annotated[Path, typer.Argument(metavar="PAYLOAD.json", help="A TokenTreePayload; - for standard input.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="FILE.gguf", help="Show token texts, check the vocabulary, spell texts."),
    ] = None,
    path: Annotated[str | None, typer.Option(help="Only the descriptors of this path.")] = None,
    max_lines: Annotated[int, typer.Option(min=1, help="Lines drawn at most.")] = 200,
) -> None:
    """Draw the trie of a payload, with names, tokens and counts."""
    from token_trie import TokenTrie
    from token_trie.models import Vocabulary

    vocabulary = None if model is None else Vocabulary(model)
    trie = TokenTrie._read(_read(payload), path, None if vocabulary is None else vocabulary.vocab)
    piece = None
    if vocabulary is not None:
        vocabulary.check(trie)
        piece = vocabulary.piece
    console.print(draw(trie, piece, max_lines))
    console.print(
        f"{count_leaves(trie)}, {trie.n_nodes:,} nodes, longest leaf {trie.max_tokens:,} tokens, {trie.nbytes:,} bytes"
    )
    for dropped, kept in trie.aliases.items():
        console.print(f"[yellow]{plain(dropped)} has the same tokens as {plain(kept)}")


@app.command(epilog="**Example**\n\n`token-trie demo --model model.gguf`")
def demo(model: ModelOption = None) -> None:
    """Answer agent requests with one of 30 actions, beside the same job by a GBNF grammar."""
    from token_trie.demo import run

    run(_load(model, n_ctx=2048), console)


def main() -> None:
    """Run the command line; errors end it with one line and status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where a terminal has no bars and no umlauts
    try:
        app()
    except (TokenTrieError, OSError) as error:
        status.print(f"[bold red]error:[/] {plain(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)


@app.callback(
    invoke_without_command=True,
    epilog="**Examples**\n\n`token-trie demo`\n\n"
    "`token-trie choose --prompt 'The capital of France is' --choice Paris --choice Rome`",
)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show versions and exit.")] = False,
    cmake_dir: Annotated[
        bool, typer.Option("--cmake-dir", help="Show where find_package(token_trie) finds it, and exit.")
    ] = False,
) -> None:
    import llama_cpp

    import token_trie
    from token_trie._native import _core

    if version:
        typer.echo(
            f"token-trie {token_trie.__version__}, llama-cpp-python {llama_cpp.__version__}, "
            f"ggml {_core.llama_loaded()}"
        )
        raise typer.Exit
    if cmake_dir:
        typer.echo(Path(token_trie.__file__).parent / "cmake")
        raise typer.Exit


def _choices(choice: list[str] | None, choices_file: Path | None) -> list[str]:
    choices = list(choice or []) + (_read_lines(choices_file) if choices_file else [])
    if not choices:
        raise ArgumentError("no choices: give some with --choice or --choices-file")
    return choices


def _check_inputs(prompt: str, choices_file: Path | None) -> None:
    if prompt == "-" and str(choices_file) == "-":
        raise ArgumentError("--prompt and --choices-file: standard input is one; give the other another way")


def _prompt(prompt: str, chat: bool) -> Prompt:
    text = _read(Path("-")) if prompt == "-" else prompt
    return [{"role": "user", "content": text}] if chat else text


def _load(model: Path | None, n_ctx: int = 0) -> Llama:
    import llama_cpp

    from token_trie.models import bundled_model

    path = bundled_model() if model is None else model
    if not path.is_file():
        raise ArgumentError(f"--model: no file {str(path)!r}")
    with status.status(f"loading {path.name}"):
        try:
            return llama_cpp.Llama(str(path), n_ctx=n_ctx, verbose=False)
        except ValueError as error:
            raise ArgumentError(f"--model: {error}") from error


def _read(path: Path) -> str:
    try:
        if str(path) != "-":
            return path.read_text(encoding="utf-8-sig")
        if sys.stdin is None:
            raise ArgumentError("-: standard input is closed")
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path}: not UTF-8 ({error})") from error


def _read_lines(path: Path) -> list[str]:
    return [line for line in (raw.rstrip("\r") for raw in _read(path).split("\n")) if line]


def _token_text(llm: Llama, token: int) -> str:
    return f"[cyan]{plain(show_bytes(llm.detokenize([token], special=True)))}[/] [dim]{token}[/]"
