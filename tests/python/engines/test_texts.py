from __future__ import annotations

import random
from typing import Any

import pytest
from token_trie import ContextError, StreamHandle
from token_trie.decisions.run import TextRequest
from token_trie.engines import lm_eval
from token_trie.engines.lm_eval import generate_texts
from token_trie.llama.text import TextOptions

Prompts = list[tuple[list[int], TextRequest]]


def text_request(max_tokens: int, stop: list[str], temperature: float | None = None) -> TextRequest:
    return TextRequest(max_tokens, TextOptions(stop=stop, temperature=temperature, seed=0))


def prompts_of(llm: Any, n: int) -> Prompts:
    rng = random.Random(0)
    out = []
    for i in range(n):
        text = rng.choice(["The answer ", "A question of "]) + "x" * rng.randint(0, 20) + str(i)
        stop = rng.choice([[], ["e"], ["ab", " "]])
        out.append((llm.tokenize(text.encode()), text_request(rng.randint(1, 20), stop)))
    return out


def written(llm: Any, prompts: Prompts, n_ctx: int = 512) -> dict[int, str]:
    out: dict[int, str] = {}
    generate_texts(llm, prompts, n_ctx=n_ctx, done=out.__setitem__)
    return out


def test_each_text_is_what_a_stream_writes_alone(precise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = prompts_of(precise, 40)
    together = written(precise, prompts)
    monkeypatch.setattr(lm_eval, "can_share", lambda llm: False)
    assert written(precise, prompts) == together
    with StreamHandle(precise, n_ctx=256) as stream:
        for i, (tokens, request) in enumerate(prompts):
            stream.prefill(tokens)
            text = stream.text(request.max_tokens, stop=request.stops).text
            assert together[i].rstrip("\N{REPLACEMENT CHARACTER}") == text.rstrip("\N{REPLACEMENT CHARACTER}")


def test_draws_are_the_seeds_whoever_else_is_there(precise: Any) -> None:
    asked = precise.tokenize(b"Once"), text_request(12, [], 1.5)
    alone = written(precise, [asked])[0]
    others = prompts_of(precise, 9)
    assert written(precise, [*others, asked])[len(others)] == alone


def test_a_prompt_without_room_is_refused(precise: Any) -> None:
    with pytest.raises(ContextError, match="do not fit"):
        written(precise, [([1] * 256, text_request(10, []))], n_ctx=256)
