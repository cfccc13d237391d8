"""A span in one entry: token after token, without leaving the stream between two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from token_trie.llama.generation import GOES_ON
from token_trie.native.ffi import lib, new_struct

if TYPE_CHECKING:
    from token_trie.llama.stream import StreamHandle


def run_span(
    handle: StreamHandle,
    temperature: float,
    top_p: float,
    max_tokens: int = 2**31 - 1,
    is_over: Callable[[Any], bool] | None = None,
) -> list[int]:
    """Generate to the end of the span, or until it is over by the struct token_trie_stream_state; return its tokens."""
    tokens: list[int] = []
    token, _, stop = handle._token
    n_cancels = handle._n_cancels
    state = None if is_over is None else new_struct("token_trie_stream_state")

    def run(stream: Any) -> int:
        handle._cancelled = False
        handle._n_changes += 1
        stop[0] = GOES_ON
        while stop[0] == GOES_ON and len(tokens) < max_tokens:
            if n_cancels != handle._n_cancels:
                handle._cancelled = True
                return 0
            status = int(lib.token_trie_stream_next(stream, temperature, top_p, token, stop))
            if status < 0:
                return status
            if token.id >= 0:
                tokens.append(token.id)
            if is_over is not None:
                lib.token_trie_stream_get_state(stream, state)
                if is_over(state):
                    return 0
        return 0

    handle._change(run, after=handle._replace)
    return tokens
