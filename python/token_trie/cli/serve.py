"""``token-trie serve``."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from token_trie.cli.options import SERVED_N_CTX, ModelOptions, command, say
from token_trie.errors import ArgumentError


@dataclass(frozen=True)
class LimitOptions:
    """Limits of requests."""

    requests: Annotated[
        int,
        typer.Option(
            "--max-requests", min=1, help="The largest number of requests in progress; others are told to wait."
        ),
    ] = 256
    options: Annotated[
        int,
        typer.Option("--max-options", min=2, help="The largest number of options per question; 255 in both formats."),
    ] = 255
    questions: Annotated[
        int, typer.Option("--max-questions", min=1, help="The largest number of questions per request.")
    ] = 400
    seconds: Annotated[
        float, typer.Option("--time-limit", min=0.001, help="The longest time of a request, in seconds.")
    ] = 120


@command(
    "token-trie serve",
    "token-trie serve -m model.gguf --port 8080 --api-key secret",
    "token-trie serve -m model.gguf --sets sets --calibration teams.json --calibration moods.json",
)
def serve(
    model: ModelOptions,
    limits: LimitOptions,
    host: Annotated[str, "Address to listen on; 0.0.0.0 accepts other machines."] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TOKEN_TRIE_API_KEY", help="The key that clients must send. Default: none."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        "A name under which clients reach the server, as example.com, and whose pages may ask it, from any "
        "port. Repeat the option for each. Addresses, names without a dot and the name in --host need none to be "
        "reached; with --api-key, no name does.",
    ] = None,
    n_parallel: Annotated[
        int, typer.Option(min=0, help="Number of parallel sequences; 0: as many as suit the model.")
    ] = 0,
    sets: Annotated[
        Path | None,
        typer.Option(file_okay=False, exists=True, help="Folder of sets, which requests name by their file names."),
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A calibration file from `evaluate --fit` or `Calibration.save`, for one question. Repeat the option "
            "for each file.",
        ),
    ] = None,
    reproducible: Annotated[
        bool,
        typer.Option(
            help="Answer requests one at a time, so that an answer is the same, bit by bit, whatever else is asked. "
            "Takes longer."
        ),
    ] = False,
) -> None:
    """Serve decisions over HTTP, in the formats of TypeSafe and OpenAI."""
    try:
        from token_trie.serve.app import run
        from token_trie.serve.limits import Limits
        from token_trie.serve.service import ServerConfig
    except ModuleNotFoundError as error:
        raise ArgumentError(f"serve: {error.name} is missing; pip install 'token-trie[serve]'") from error
    config = ServerConfig(
        load=lambda: model.load(SERVED_N_CTX),
        name=model.name.removesuffix(".gguf"),
        host=host,
        port=port,
        api_key=_read_key(api_key),
        allow_host=_read_hosts(allow_host or []),
        n_parallel=n_parallel,
        reproducible=reproducible,
        sets=sets,
        calibrations=tuple(calibration or ()),
        limits=Limits(**vars(limits)),
    )
    run(config, say)


def _read_key(given: str | None) -> str | None:
    key = None if given is None else given.strip(string.whitespace)
    if key is not None and not (key and key.isprintable()):
        raise ArgumentError("--api-key: empty, or with characters that no client can send; use letters and digits")
    return key


def _read_hosts(given: list[str]) -> tuple[str, ...]:
    from token_trie.serve.origins import name_of

    for name in given:
        if not name or name_of(f"//{name}") != name.lower():
            raise ArgumentError(f"--allow-host: {name!r} is not a name alone, as example.com or localhost")
    return tuple(given)
