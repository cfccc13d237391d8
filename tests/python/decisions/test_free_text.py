from __future__ import annotations

from typing import Any

import pytest
from token_trie import ContextError, StreamHandle
from token_trie.decisions.request import TextRequest
from token_trie.llama.text import TextOptions
from token_trie.plan import run


@pytest.mark.parametrize("name", ["recurrent", "tiny"])
def test_a_text_ends_where_the_context_is_full(request: pytest.FixtureRequest, name: str) -> None:
    llm: Any = request.getfixturevalue(name)
    n_ctx = llm.n_ctx()
    options = TextOptions(temperature=1.0, seed=3)
    for n in (n_ctx - 20, n_ctx - 1):
        text = run(llm, [5] * n, TextRequest(10**6, options).plan)
        assert (text.stop, n + len(text.tokens)) == ("max_tokens", n_ctx)
    with pytest.raises(ContextError):
        run(llm, [5] * n_ctx, TextRequest(1).plan)
    with StreamHandle(llm) as stream:
        stream.prefill([5] * (n_ctx - 20))
        stream.set_grammar("root ::= [b-d]{450}")
        text = stream.text()
        assert (text.stop, len(text.tokens), stream.state.n_tokens) == ("max_tokens", 20, n_ctx)
        with pytest.raises(ContextError, match="full"):
            stream.text()
        assert stream.text(max_tokens=0).text == ""
