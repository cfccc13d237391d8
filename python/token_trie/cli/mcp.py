"""``token-trie mcp``."""

from __future__ import annotations

import asyncio
import signal

from token_trie.cli.app import command
from token_trie.cli.options import SERVED_N_CTX, ModelOptions
from token_trie.errors import ArgumentError


@command(
    "token-trie mcp",
    "token-trie mcp -m model.gguf",
)
def mcp(model: ModelOptions) -> None:
    """Serve decisions as tools of the Model Context Protocol, over standard input and output.

    The tools are decide (takes a state and typed questions about it) and choose (takes a prompt and choices).
    """
    try:
        from token_trie.serve.engine import Engine
        from token_trie.serve.mcp import serve_tools
    except ImportError as error:
        raise ArgumentError(f"mcp: {error.name} is missing; pip install 'token-trie[mcp]'") from error
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread that reads standard input cannot be cancelled
    engine = Engine(model.load(SERVED_N_CTX))
    try:
        asyncio.run(serve_tools(engine, model.path.stem))
    finally:
        engine.close()
