"""``token-trie inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from token_trie.cli.app import command, console
from token_trie.cli.models import Vocabulary
from token_trie.cli.options import is_set, read
from token_trie.errors import ArgumentError
from token_trie.sets.trie import TokenTrie
from token_trie.show.trie import count_leaves, draw, plain


@command(
    "token-trie inspect payload.json",
    "token-trie inspect payload.json --model model.gguf --path action",
    "token-trie inspect items.trie --verify",
)
def inspect(
    payload: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A payload in JSON (- reads standard input), or a .trie file of `token-trie build`."
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", metavar="FILE.gguf", help="Show the tokens' texts, check the vocabulary, and spell texts."
        ),
    ] = None,
    path: Annotated[str | None, typer.Option(help="Use only the descriptors of this path.")] = None,
    max_lines: Annotated[int, typer.Option(min=1, help="The largest number of lines.")] = 200,
    verify: Annotated[bool, typer.Option("--verify", help="Check all checksums of a .trie file.")] = False,
) -> None:
    """Draw a set with its names, tokens and counts."""
    vocabulary = None if model is None else Vocabulary(model)
    if is_set(payload):
        if path is not None:
            raise ArgumentError("--path: not with a .trie file, which is one set")
        trie = TokenTrie.open(payload, verify=verify)
    elif verify:
        raise ArgumentError("--verify: only with a .trie file")
    else:
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
