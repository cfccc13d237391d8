"""``token-trie explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from token_trie.cli.options import (
    ChoiceOptions,
    JsonOption,
    LeafEndOption,
    ModelOptions,
    PromptOptions,
    command,
    console,
)
from token_trie.errors import ArgumentError
from token_trie.show.explain import draw_sentence
from token_trie.show.explain import explain as explain_
from token_trie.show.trie import plain


@command(
    "token-trie explain --prompt 'The capital of France is' --choice Paris --choice Rome",
    "token-trie explain -m model.gguf --prompt 'Great film!' --chat --choices-file labels.txt --html why.html",
)
def explain(
    prompt: PromptOptions,
    choices: ChoiceOptions,
    model: ModelOptions,
    leaf_end: LeafEndOption = "longest",
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a self-contained HTML page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the probability at every branch, and where greedy and exact choose differently."""
    if html is not None and not html.parent.is_dir():
        raise ArgumentError(f"--html: no folder {str(html.parent)!r}")
    text, texts = prompt.read(choices)
    explanation = explain_(model.load(), text, texts, leaf_end=leaf_end)
    if html is not None:
        html.write_text(explanation.html(), encoding="utf-8")
    if as_json:
        whole = explanation.to_dict() | {"sentence": "".join(phrase.text for phrase in explanation.sentence())}
        typer.echo(json.dumps(whole, ensure_ascii=False, allow_nan=False))
        return
    if html is None:
        console.print(explanation)
        return
    console.print(draw_sentence(explanation), highlight=False)
    console.print(f"[dim]{plain(str(html))}", soft_wrap=True)
