"""``token-trie inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from token_trie.cli.app import command, console
from token_trie.cli.models import Vocabulary
from token_trie.cli.options import read
from token_trie.sets.trie import TokenTrie
from token_trie.show.trie import count_leaves, draw, plain


@command("token-trie inspect payload.json", "token-trie inspect payload.json --model model.gguf --path action")
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
    vocabulary = None if model is None else Vocabulary(model)
    trie = TokenTrie.read_payload(read(payload), path, None if vocabulary is None else vocabulary.vocab)
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
