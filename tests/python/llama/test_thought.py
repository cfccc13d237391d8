from __future__ import annotations

from typing import Any

import pytest
from token_trie import ArgumentError, StreamHandle, TokenTrie, constrain

PROMPT = "Is water wet? Think, then say yes or no.\n"
MARKER = "\nAnswer:"


def test_under_constrain_the_model_writes_freely_up_to_the_marker(llm: Any) -> None:
    trie = TokenTrie.from_choices(llm, ["yes", "no"], prompt=MARKER)
    for max_before in (0, 3, 20):
        with constrain(llm, trie, start_after=MARKER, max_before=max_before) as constraint:
            made = llm.create_completion(PROMPT, max_tokens=64, temperature=1.0, seed=3)
        thought, marker, answer = made["choices"][0]["text"].rpartition(MARKER)
        assert marker == MARKER
        assert len(llm.tokenize(thought.encode(), add_bos=False)) <= max_before + 1
        assert answer.strip() in ("yes", "no")
        assert constraint.names == [answer.strip()]
        assert constraint.complete


def test_a_stream_thinks_and_says_so(smollm2: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, ["yes", "no"], prompt=MARKER)
    with StreamHandle(smollm2, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        stream.set_token_trie(trie, start_after=MARKER, max_before=6)
        assert stream.state.span == "thinking"
        begun = list(stream.generate(2))
        assert all(not step.forced for step in begun)
        assert stream.state.span == "thinking"
        text = "".join(step.text for step in [*begun, *stream.generate()])
        assert text.rpartition(MARKER)[2].strip() in ("yes", "no")
        assert (stream.state.span, stream.state.stop) == ("complete", "complete")


def test_control_tokens_may_be_written_out(smollm2: Any) -> None:
    trie = TokenTrie.from_sequences({"a": [400], "b": [500]})
    end = smollm2.tokenize(b"<|im_end|>", add_bos=False, special=True)
    with StreamHandle(smollm2, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        stream.set_token_trie(trie, start_after="<|im_end|>", max_before=0)
        tokens = [step.token for step in stream.generate()]
    assert tokens[:-1] == end
    assert tokens[-1] in (400, 500)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_after": [-3]}, "start_after hold token ids, which are not negative"),
        ({"start_after": 7}, "start_after: not a sequence of token ids"),
        ({"start_after": "x", "max_before": -1}, "max_before: -1 is not a count from 0"),
        ({"start_after": [10**8]}, r"start_after\[0\]: 100000000 is outside"),
    ],
)
def test_what_is_no_marker_is_refused(tiny: Any, options: dict[str, Any], message: str) -> None:
    trie = TokenTrie.from_sequences({"a": [300]})
    with pytest.raises(ArgumentError if "outside" not in message else ValueError, match=message):
        constrain(tiny, trie, **options)
    with (
        StreamHandle(tiny, n_ctx=64) as stream,
        pytest.raises(ArgumentError if "outside" not in message else ValueError, match=message),
    ):
        stream.set_token_trie(trie, **options)
