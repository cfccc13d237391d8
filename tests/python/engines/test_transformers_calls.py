"""Calls of ``generate`` of every kind, one behind the other by one processor, against all members scored one by one."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from token_trie import ArgumentError, TokenTrie

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from token_trie.engines import TrieMatcher  # noqa: E402
from token_trie.engines.transformers import TrieLogitsProcessor  # noqa: E402

CALLS = int(os.environ.get("TOKEN_TRIE_TRANSFORMERS_CALLS", "40"))
END, PAD, V, PADDING = 2, 0, 40, 8
Member = tuple[int, ...]
KINDS: list[dict[str, Any]] = [
    {"do_sample": False},
    {"do_sample": True},
    {"do_sample": True, "num_return_sequences": 3, "top_k": 2},
    {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    {"do_sample": True, "num_beams": 4, "num_return_sequences": 2},
    {"do_sample": True, "num_beams": 6, "temperature": 5.0},
    {"do_sample": False, "num_beams": 12, "length_penalty": 0.0, "num_return_sequences": 1},
    {"do_sample": False, "prompt_lookup_num_tokens": 3},
]


def tiny(seed: int, n_layers: int = 1) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=V + PADDING,  # more than the tokenizer has
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=n_layers,
        num_attention_heads=2,
        max_position_embeddings=512,
        initializer_range=1.0,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny(0)


def a_set(rng: random.Random) -> set[Member]:
    return {tuple(rng.choices(range(3, 9), k=rng.randint(1, 4))) for _ in range(rng.choice([1, 1, 4, 9]))}


def matcher_of(members: set[Member]) -> TrieMatcher:
    trie = TokenTrie.from_sequences({repr(member): member for member in sorted(members)})
    return TrieMatcher(trie, V, end_tokens=[END])


def padded(rows: list[list[int]]) -> dict[str, Any]:
    width = max(map(len, rows))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def logprob(model: Any, prompt: list[int], member: Member) -> float:
    with torch.no_grad():
        rows = model(torch.tensor([[*prompt, *member]])).logits[0].log_softmax(-1)
    behind = [*member, END]
    return float(sum(rows[len(prompt) - 1 + i, token] for i, token in enumerate(behind)))


def greedily(model: Any, prompt: list[int], members: set[Member], limit: int) -> Member:
    """Take the best allowed token at each step, in the plainest way, the end token too."""
    walked: Member = ()
    while len(walked) < limit and END not in walked:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *walked]])).logits[0, -1]
        following = {m[len(walked)] for m in members if len(m) > len(walked) and m[: len(walked)] == walked}
        walked += (max(following | ({END} if walked in members else set()), key=lambda token: float(logits[token])),)
    return walked


def check(
    model: Any, prompts: list[list[int]], members: set[Member], output: Any, limit: int, kind: dict[str, Any]
) -> None:
    """Check that each answer is a member, or the beginning of one where it was cut, the best where that is asked."""
    width = max(map(len, prompts))
    n_each = kind.get("num_return_sequences", 1)
    assert len(output.sequences) == n_each * len(prompts)
    scores = getattr(output, "sequences_scores", None)
    for i, row in enumerate(output.sequences[:, width:].tolist()):
        prompt = prompts[i // n_each]
        if scores is not None and scores[i] < -1e8:
            continue  # fewer members than beams: transformers says so by the score
        answer = tuple(row[: row.index(END)]) if END in row else tuple(row[:limit])
        if END in row:
            assert answer in members, "an answer outside the set"
            assert set(row[len(answer) + 1 :]) <= {PAD, END}
        else:
            assert len(answer) == limit
            assert any(member[:limit] == answer for member in members), "the beginning of an answer outside the set"
        if kind["do_sample"] is False and "num_beams" not in kind:
            assert (*answer, END)[:limit] == greedily(model, prompt, members, limit)
        if kind.get("num_beams") == 12 and END in row and limit >= 6:
            best = max(logprob(model, prompt, member) for member in members)
            assert logprob(model, prompt, answer) == pytest.approx(best, abs=1e-3)
            assert float(scores[i]) == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_of_every_call_is_of_the_set(model: Any, seed: int) -> None:
    rng = random.Random(seed)
    transformers.set_seed(seed)
    done = 0
    while done < CALLS:
        members = a_set(rng)
        processor = TrieLogitsProcessor(matcher_of(members))
        last: list[list[int]] = []
        for _ in range(8):
            kind = rng.choice(KINDS)
            n_rows = 1 if "prompt_lookup_num_tokens" in kind else rng.randint(1, 4)
            fed_back = bool(last) and rng.random() < 0.6
            if fed_back:
                prompts = rng.sample(last, min(n_rows, len(last)))
            else:
                prompts = [[1, *rng.choices(range(3, V), k=rng.randint(1, 6))] for _ in range(n_rows)]
            limit = rng.choice([1, 2, 3, 6, 6, 6])
            inputs = padded(prompts)
            output = model.generate(
                **inputs,
                **kind,
                logits_processor=[processor],
                max_new_tokens=limit,
                return_dict_in_generate=True,
                output_scores=True,
            )
            check(model, prompts, members, output, limit, kind)
            last = [[token for token in row if token != PAD] for row in output.sequences.tolist()]
            last = [row if rng.random() < 0.5 else [token for token in row if token != END] for row in last]
            done += 1


def test_the_output_of_a_call_begins_an_answer_anew(model: Any) -> None:
    members = {(7, 8, 9), (10,)}
    processor = TrieLogitsProcessor(matcher_of(members))
    ids = torch.tensor([[1, 5]])
    for limit in (1, 2, 5, 1, 5):  # each is fed what came of the one before
        before = ids.shape[1]
        ids = model.generate(ids, max_new_tokens=limit, do_sample=False, logits_processor=[processor])
        assert tuple(ids[0, before:].tolist()) == greedily(model, ids[0, :before].tolist(), members, limit)


def test_an_answer_that_was_cut_goes_on_where_the_end_of_the_prompt_is_given(model: Any) -> None:
    members = {(7, 8, 9), (10, 11, 12, 13)}
    processor = TrieLogitsProcessor(matcher_of(members), prompt_length=2)
    ids = torch.tensor([[1, 5], [1, 6]])
    for _ in range(5):
        ids = model.generate(ids, max_new_tokens=1, do_sample=False, logits_processor=[processor])
    assert {tuple(row[: row.index(END)]) for row in ids[:, 2:].tolist()} <= members


def test_an_assistant_drafts_within_its_own_call(model: Any) -> None:
    rng = random.Random(0)
    assistant = tiny(1)
    for do_sample in [False, True] * 5:
        members = a_set(rng)
        processor = TrieLogitsProcessor(matcher_of(members))
        prompt = [1, *rng.choices(range(3, V), k=4)]
        output = model.generate(
            torch.tensor([prompt]),
            assistant_model=assistant,
            do_sample=do_sample,
            max_new_tokens=6,
            logits_processor=[processor],
            return_dict_in_generate=True,
        )
        check(model, [prompt], members, output, 6, {"do_sample": do_sample})


def test_nothing_is_kept_of_a_call_that_has_ended(model: Any) -> None:
    processor = TrieLogitsProcessor(matcher_of({(7, 8), (9,)}))
    for _ in range(3):
        model.generate(torch.tensor([[1, 5]]), max_new_tokens=3, logits_processor=[processor])
    assert not processor._calls._by_list


def test_a_loop_of_ones_own_tells_where_the_prompt_ends() -> None:
    matcher, ids, scores = matcher_of({(7, 8)}), torch.tensor([[1, 5, 7]]), torch.zeros(1, V)
    with pytest.raises(ArgumentError, match="prompt_length: needed where it is not generate"):
        TrieLogitsProcessor(matcher)(ids, scores)
    with pytest.raises(ArgumentError, match="prompt_length: needed where it is not generate"):
        transformers.LogitsProcessorList([TrieLogitsProcessor(matcher)])(ids, scores)
    left = TrieLogitsProcessor(matcher, prompt_length=2)(ids, scores)
    assert left.isfinite().nonzero().tolist() == [[0, 8]]


def test_rows_that_the_prompt_length_does_not_fit_are_refused(model: Any) -> None:
    given = {"max_new_tokens": 3, "logits_processor": [TrieLogitsProcessor(matcher_of({(7, 8)}), 2)]}
    with pytest.raises(ArgumentError, match=r"input_ids\[0\]: \[6\] after the 2 columns of the prompt begins no"):
        model.generate(torch.tensor([[1, 5, 6]]), **given)
    with pytest.raises(ArgumentError, match=r"input_ids: 1 columns, where prompt_length is 2"):
        model.generate(torch.tensor([[1]]), **given)
