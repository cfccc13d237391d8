from __future__ import annotations

from typing import Any

import pytest
from token_trie import ArgumentError, TokenTrie

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from token_trie.engines import TrieMatcher  # noqa: E402
from token_trie.engines.transformers import TrieLogitsProcessor, prefix_allowed_tokens_fn  # noqa: E402

END, PAD, V = 2, 0, 64
MEMBERS = {(7,), (7, 8), (9, 10, 11), (9, 12), (30, 31, 32, 33)}
TRIE = TokenTrie.from_sequences({repr(member): member for member in sorted(MEMBERS)})


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=V + 8,  # more than the tokenizer has, as many models do
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return transformers.LlamaForCausalLM(config).eval()


def matcher(**options: Any) -> TrieMatcher:
    return TrieMatcher(TRIE, V, **{"end_tokens": [END], **options})


def prompts() -> dict[str, Any]:
    """Return three prompts of different lengths, padded on the left."""
    ids = torch.tensor([[PAD, PAD, 1, 5], [1, 6, 20, 21], [PAD, 1, 40, 41]])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def answers(output: Any) -> list[tuple[int, ...]]:
    rows = [row[4:].tolist() for row in output]
    assert all(END in row for row in rows)
    assert all(set(row[row.index(END) + 1 :]) <= {PAD, END} for row in rows)
    return [tuple(row[: row.index(END)]) for row in rows]


def by_hand(model: Any, ids: list[int]) -> tuple[int, ...]:
    """Take the best allowed token at each step, in the plainest way."""
    walked: tuple[int, ...] = ()
    while True:
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *walked]])).logits[0, -1]
        following = {m[len(walked)] for m in MEMBERS if len(m) > len(walked) and m[: len(walked)] == walked}
        best = max(following | ({END} if walked in MEMBERS else set()), key=lambda token: float(logits[token]))
        if best == END:
            return walked
        walked += (best,)


def test_greedy_answers_are_those_of_a_plain_loop(model: Any) -> None:
    inputs = prompts()
    processor = TrieLogitsProcessor(matcher())
    expected = [by_hand(model, [t for t in row if t != PAD]) for row in inputs["input_ids"].tolist()]
    for _ in range(2):  # one processor, one call after the other
        output = model.generate(**inputs, do_sample=False, max_new_tokens=6, logits_processor=[processor])
        assert answers(output) == expected
    allowed = prefix_allowed_tokens_fn(matcher(), 4)
    output = model.generate(**inputs, do_sample=False, max_new_tokens=6, prefix_allowed_tokens_fn=allowed)
    assert answers(output) == expected


@pytest.mark.parametrize(
    "how",
    [
        {"do_sample": True, "num_return_sequences": 20},
        {"do_sample": True, "num_return_sequences": 5, "top_k": 1, "temperature": 3.0},
        {"num_beams": 4, "num_return_sequences": 4, "do_sample": False},
        {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
    ],
)
def test_every_answer_is_a_member(model: Any, how: dict[str, Any]) -> None:
    transformers.set_seed(1)
    n = 3 * how["num_return_sequences"]
    output = model.generate(**prompts(), **how, max_new_tokens=6, logits_processor=[TrieLogitsProcessor(matcher())])
    got = answers(output)
    assert len(got) == n
    assert set(got) <= MEMBERS
    if "num_beams" in how:
        per_prompt = how["num_return_sequences"]
        assert all(len(set(got[i : i + per_prompt])) == per_prompt for i in range(0, n, per_prompt)), "beams differ"


def test_lists_without_repeats(model: Any) -> None:
    listed = matcher(on_complete="restart", separator=[50], unique=True, min_items=3, max_items=3)
    output = model.generate(
        **prompts(), do_sample=True, max_new_tokens=20, logits_processor=[TrieLogitsProcessor(listed)]
    )
    for answer in answers(output):
        text = " ".join(map(str, answer)).split(" 50 ")
        items = [tuple(map(int, item.split())) for item in text]
        assert len(items) == len(set(items)) == 3
        assert set(items) <= MEMBERS


def test_what_does_not_fit_is_refused(model: Any) -> None:
    with pytest.raises(ArgumentError, match="matcher: TokenTrie where"):
        TrieLogitsProcessor(TRIE)
    with pytest.raises(ArgumentError, match="prompt_length"):
        prefix_allowed_tokens_fn(matcher(), -1)
    wide = TrieMatcher(TRIE, V + 9, end_tokens=[END])
    with pytest.raises(ArgumentError, match=r"scores: shape \(3, 72\)"):
        model.generate(**prompts(), max_new_tokens=2, logits_processor=[TrieLogitsProcessor(wide)])
