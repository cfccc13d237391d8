"""``token-trie serve``."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from token_trie.cli.app import command, status
from token_trie.cli.options import SERVED_N_CTX, ModelOptions
from token_trie.errors import ArgumentError

if TYPE_CHECKING:
    from token_trie.serve.engine import Engine


@command(
    "token-trie serve",
    "token-trie serve -m model.gguf --port 8080 --api-key secret",
    "token-trie serve -m model.gguf --calibration teams.json --calibration moods.json",
    "token-trie serve -m model.gguf --calibration running --priors priors.json",
)
def serve(
    model: ModelOptions,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TOKEN_TRIE_API_KEY", help="What clients have to send; by default nothing."),
    ] = None,
    n_parallel: Annotated[int, typer.Option(min=0, help="Sequences at once; 0: as many as suit the model.")] = 0,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests under way at most; more are told to wait.")] = 256,
    max_options: Annotated[int, typer.Option(min=2, help="Options of a question at most; both formats say 255.")] = 255,
    max_questions: Annotated[int, typer.Option(min=1, help="Questions of a request at most.")] = 400,
    sets: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder that keeps registered sets across a restart.")
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|running",
            help="A file by `token-trie evaluate --fit`, or `Calibration.save`, of a question that is then answered by "
            "it; repeat for each. running: what all states until then have given the options of any other question in "
            "the mean takes the place of its contextual prior, so that an answer depends on those before it.",
        ),
    ] = None,
    priors: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File that keeps what --calibration running has seen.")
    ] = None,
    grammars: Annotated[bool, typer.Option(help="Whether requests may bring GBNF grammars.")] = True,
    time_limit: Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")] = 120,
) -> None:
    """Serve decisions over HTTP, in TypeSafe's and OpenAI's formats."""
    try:
        import uvicorn

        from token_trie.serve.app import Server, application
        from token_trie.serve.body import Limits
        from token_trie.serve.calibrations import Calibrations
        from token_trie.serve.engine import Engine
        from token_trie.serve.running import Running
        from token_trie.serve.sets import Sets
    except ImportError as error:
        raise ArgumentError(f"serve: {error.name} is missing; pip install 'token-trie[serve]'") from error
    path = model.path
    files = [Path(name) for name in calibration or () if name != "running"]
    runs = len(files) < len(calibration or ())
    if priors is not None and not runs:
        raise ArgumentError("--priors: goes with --calibration running")
    calibrations = Calibrations(files, Running(priors) if runs else None)

    def load() -> Engine:
        engine = Engine(model.load(SERVED_N_CTX), n_parallel=n_parallel, calibrations=calibrations)
        server.sets.load(engine.llm)
        return engine

    server = Server(
        load,
        path.stem,
        Limits(
            requests=max_requests,
            seconds=time_limit,
            options=max_options,
            questions=max_questions,
            grammars=grammars,
        ),
        api_key,
        sets=Sets(sets),
    )
    config = uvicorn.Config(
        application(server),
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        # Longer than any client keeps a connection that idles: a request on one that is just closed gets no answer.
        timeout_keep_alive=75,
    )
    bound = config.bind_socket()
    # Of this protocol by name, as asyncio sends small parts at once on no other.
    listening = socket.socket(bound.family, bound.type, socket.IPPROTO_TCP, bound.detach())
    url = f"http://{host}:{listening.getsockname()[1]}"
    status.print(f"loading {path.name}, to be served at {url}", highlight=False)
    http = uvicorn.Server(config)
    server.on_ready = lambda: status.print(f"{path.name} is ready", highlight=False)
    server.on_failure = lambda: setattr(http, "should_exit", True)
    http.run(sockets=[listening])
    if server.failure is not None:
        raise server.failure
