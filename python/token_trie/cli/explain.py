"""``token-trie explain``."""

from __future__ import annotations

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
    print_json,
    status,
)
from token_trie.decisions.options import MAX_SCORED
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
    max_scored: Annotated[
        int, typer.Option(min=0, help="Refuse a set with more nodes, because each is evaluated; 0: no limit.")
    ] = MAX_SCORED,
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a self-contained HTML page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the probability at every branch, and where greedy and exact choose differently."""
    if html is not None and not html.parent.is_dir():
        raise ArgumentError(f"--html: no folder {str(html.parent)!r}")
    text, texts = prompt.read(choices)
    llm = model.load()
    with status.status(f"scoring {len(texts):,} choices"):
        explanation = explain_(llm, text, texts, leaf_end=leaf_end, max_scored=max_scored or None)
    if html is not None:
        html.write_text(explanation.html(), encoding="utf-8")
    if as_json:
        whole = explanation.to_dict() | {"sentence": "".join(phrase.text for phrase in explanation.sentence())}
        print_json(whole)
        return
    if html is None:
        console.print(explanation)
        return
    console.print(draw_sentence(explanation), highlight=False)
    console.print(f"[dim]{plain(str(html))}", soft_wrap=True)
