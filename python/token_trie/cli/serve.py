"""``token-trie serve``."""

from __future__ import annotations

import math
import signal
import socket
import string
from pathlib import Path
from typing import Annotated, Any

import typer

from token_trie.cli.options import SERVED_N_CTX, ModelOptions, command, say
from token_trie.errors import ArgumentError


@command(
    "token-trie serve",
    "token-trie serve -m model.gguf --port 8080 --api-key secret",
    "token-trie serve -m model.gguf --calibration teams.json --calibration moods.json",
    needs="serve",
)
def serve(
    model: ModelOptions,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TOKEN_TRIE_API_KEY", help="The key that clients must send. Default: none."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name under which clients reach the server, as example.com, and whose pages may ask it, from any "
            "port. Repeat the option for each. Addresses, names without a dot and the name in --host need none to be "
            "reached; with --api-key, no name does.",
        ),
    ] = None,
    n_parallel: Annotated[
        int, typer.Option(min=0, help="Number of parallel sequences; 0: as many as suit the model.")
    ] = 0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="The largest number of requests in progress; others are told to wait.")
    ] = 256,
    max_options: Annotated[
        int, typer.Option(min=2, help="The largest number of options per question; 255 in both formats.")
    ] = 255,
    max_questions: Annotated[int, typer.Option(min=1, help="The largest number of questions per request.")] = 400,
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
    time_limit: Annotated[float, typer.Option(min=0.001, help="The longest time of a request, in seconds.")] = 120,
) -> None:
    """Serve decisions over HTTP, in the formats of TypeSafe and OpenAI."""
    import uvicorn

    from token_trie.serve.app import Server, application
    from token_trie.serve.calibrations import Calibrations
    from token_trie.serve.engine import Engine
    from token_trie.serve.limits import Limits, connections, name_of
    from token_trie.serve.sets import Sets

    if api_key is not None:
        api_key = api_key.strip(string.whitespace)
        if not api_key or not api_key.isprintable():
            raise ArgumentError("--api-key: empty, or with characters that no client can send; use letters and digits")

    for name in allow_host or ():
        if not name or name_of(f"//{name}") != name.lower():
            raise ArgumentError(f"--allow-host: {name!r} is not a name alone, as example.com or localhost")

    class Http(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            """First interrupt: finish requests in progress; second: cancel them; third: exit at once."""
            if sig != signal.SIGINT or not self.should_exit:
                if sig == signal.SIGINT and self.server_state.tasks:
                    say("finishing the requests in progress; a second interrupt cancels them")
                super().handle_exit(sig, frame)
                return
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    path = model.path
    calibrations = Calibrations(calibration or ())

    def load() -> Engine:
        engine = Engine(
            model.load(SERVED_N_CTX), n_parallel=n_parallel, calibrations=calibrations, reproducible=reproducible
        )
        if sets is not None:
            server.sets = Sets.read(engine.llm, sets)
        return engine

    server = Server(
        load,
        path.stem,
        Limits(
            requests=max_requests,
            seconds=time_limit,
            options=max_options,
            questions=max_questions,
        ),
        api_key,
        None if api_key is not None else {host, *(allow_host or ())},
        allow_host or (),
    )
    config = uvicorn.Config(
        application(server),
        host=host,
        port=port,
        access_log=False,
        log_level="error",  # what is not HTTP would be a line each
        http=connections(time_limit),
        ws="none",
        timeout_graceful_shutdown=math.ceil(time_limit) + 1,  # after the last request has reached its limit
        # Longer than clients keep idle connections: a request on a connection that just closed gets no answer.
        timeout_keep_alive=75,
    )
    try:
        bound = config.bind_socket()
    except SystemExit as error:  # it has logged why
        raise ArgumentError(f"--port: no server can listen on {host}:{port}; use another port or --host") from error
    # Name the TCP protocol: only then does asyncio send small parts at once.
    listening = socket.socket(bound.family, bound.type, socket.IPPROTO_TCP, bound.detach())
    url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    say(f"loading {path.name}, to be served at {url}")
    http = Http(config)
    server.on_ready = lambda: say(f"{path.name} is ready")
    server.on_failure = lambda: setattr(http, "should_exit", True)
    http.run(sockets=[listening])
    if server.failure is not None:
        raise server.failure
