"""The command ``token-trie``."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

import token_trie
from token_trie.cli import (
    ask,
    doctor,
    evaluate,
    label,
    serve,
    sets,
)
from token_trie.cli.options import app, epilog, status
from token_trie.errors import TokenTrieError, is_too_long
from token_trie.native.core import _core, has_llama, llama_cpp
from token_trie.native.ffi import LIBRARY
from token_trie.show.trie import plain

__all__ = [
    "app",
    "ask",
    "command_line",
    "doctor",
    "evaluate",
    "label",
    "main",
    "serve",
    "sets",
]


@functools.cache
def command_line() -> Callable[[], None]:
    """Return the command with the options of all commands, which take a tenth of a second to make."""
    app.registered_commands.sort(key=lambda one: one.callback.__name__ if one.callback else "")
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line; errors end it with one line and status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals without bars and umlauts
    try:
        command_line()()
    except (TokenTrieError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        if is_too_long(error):
            message += "; --n-ctx sets its size"
        status.print(f"[bold red]error:[/] {plain(message)}", highlight=False, soft_wrap=True)
        sys.exit(1)


@app.callback(
    invoke_without_command=True,
    epilog=epilog(
        "token-trie demo", "token-trie choose --prompt 'The capital of France is' --choice Paris --choice Rome"
    ),
)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the versions and exit.")] = False,
    library: Annotated[
        bool, typer.Option("--library", help="Print the path of the shared library for other programs and exit.")
    ] = False,
    cmake_dir: Annotated[
        bool, typer.Option("--cmake-dir", help="Print the folder for CMake's find_package(token_trie) and exit.")
    ] = False,
) -> None:
    if version:
        beside = (
            f"llama-cpp-python {llama_cpp.__version__}, ggml {_core.llama_loaded()}" if has_llama else llama_cpp.why
        )
        typer.echo(f"token-trie {token_trie.__version__}, {beside}")
        raise typer.Exit
    if library:
        typer.echo(LIBRARY)
        raise typer.Exit
    if cmake_dir:
        typer.echo(Path(token_trie.__file__).parent / "cmake")
        raise typer.Exit
