from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, TokenTrie

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from token_trie.engines import TrieMatcher  # noqa: E402
from token_trie.engines.transformers import TrieLogitsProcessor  # noqa: E402

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
    with pytest.raises(ArgumentError, match="matcher must be a TrieMatcher, not TokenTrie"):
        TrieLogitsProcessor(TRIE)
    with pytest.raises(ArgumentError, match="prompt_length"):
        TrieLogitsProcessor(matcher(), -1)
    wide = TrieMatcher(TRIE, V + 9, end_tokens=[END])
    with pytest.raises(ArgumentError, match=r"scores must have shape .*, not \(3, 72\)"):
        model.generate(**prompts(), max_new_tokens=2, logits_processor=[TrieLogitsProcessor(wide)])
    processor = TrieLogitsProcessor(matcher(), prompt_length=1)
    ids, scores = torch.tensor([[1]]), torch.zeros(1, V)
    for wrong, message in (
        ((ids.numpy(), scores), "input_ids must be a torch.Tensor"),
        ((ids, np.zeros((1, V))), "scores must be a torch.Tensor"),
        ((ids[0], scores), r"input_ids must be rows of ids, not torch.int64, shape \(1,\)"),
        ((ids.repeat(2, 1), scores), r"scores must have shape \(2, 64 or more\), not \(1, 64\)"),
        ((ids, scores.long()), "scores must be floats"),
    ):
        with pytest.raises(ArgumentError, match=message):
            processor(*wrong)


ALONE = TrieMatcher(TokenTrie.from_sequences({"": [30, 31, 32, 33]}), V, end_tokens=[END])
VETOES: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 6},
    {"bad_words_ids": [[32]]},
    {"suppress_tokens": [32]},
    {"sequence_bias": {(32,): -float("inf")}},
]
WAYS: list[dict[str, Any]] = [
    {"do_sample": False},
    {"do_sample": True},
    {"do_sample": False, "num_beams": 3},
    {"do_sample": True, "num_beams": 3},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("veto", VETOES, ids=str)
def test_what_others_cut_away_is_put_back_with_a_warning(
    model: Any, veto: dict[str, Any], way: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ids = torch.tensor([[1, 5, 31, 32, 9, 40], [1, 5, 31, 32, 9, 41]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with caplog.at_level(logging.WARNING, "token_trie.transformers"):
        output = model.generate(**given, **way, **veto, max_new_tokens=8, logits_processor=[TrieLogitsProcessor(ALONE)])
    assert output[:, 6:11].tolist() == [[30, 31, 32, 33, END]] * 2
    assert caplog.text.count("put back with equal scores") == 1


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_the_model_itself_gives_no_chance_is_put_back_too(model: Any, way: dict[str, Any]) -> None:
    never = copy.deepcopy(model)
    hook = lambda module, given, logits: logits.index_fill(-1, torch.tensor([31, 33, END]), -torch.inf)  # noqa: E731
    never.lm_head.register_forward_hook(hook)
    output = never.generate(**prompts(), **way, max_new_tokens=6, logits_processor=[TrieLogitsProcessor(ALONE)])
    assert answers(output) == [(30, 31, 32, 33)] * 3


def test_a_beam_that_was_cut_comes_after_all_others(model: Any) -> None:
    two = TrieMatcher(TokenTrie.from_sequences({"A": [30, 31], "B": [40, 41]}), V, end_tokens=[END])
    for cut, kept in ((31, 41), (41, 31)):
        output = model.generate(
            **prompts(),
            do_sample=False,
            num_beams=2,
            num_return_sequences=2,
            suppress_tokens=[cut],
            max_new_tokens=4,
            logits_processor=[TrieLogitsProcessor(two)],
        )
        assert answers(output) == [(kept - 1, kept), (cut - 1, cut)] * 3


def test_a_row_that_another_led_away_is_said_to_be_free(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    def cuts(input_ids: Any, scores: Any) -> Any:
        return scores.index_fill(1, torch.tensor([31]), -torch.inf)

    with caplog.at_level(logging.WARNING, "token_trie.transformers"):
        model.generate(
            **prompts(), do_sample=False, max_new_tokens=4, logits_processor=[TrieLogitsProcessor(ALONE), cuts]
        )
    assert caplog.text.count("token 0 is not in the set") == 1


def test_a_first_token_that_is_forced_belongs_to_the_prompt_or_to_the_set(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    sizes = {f"{part}_{name}": 16 for part in ("encoder", "decoder") for name in ("ffn_dim",)}
    layers: dict[str, Any] = {
        f"{part}_{name}": 1 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    special = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": PAD, "decoder_start_token_id": END}
    config = transformers.BartConfig(vocab_size=V, d_model=16, **sizes, **layers, **special)
    model = transformers.BartForConditionalGeneration(config).eval()
    ids = {"input_ids": torch.tensor([[1, 5, 6, END]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": 1, "forced_bos_token_id": 50}
    with caplog.at_level(logging.WARNING, "token_trie.transformers"):
        with pytest.raises(ArgumentError, match=r"forced_bos_token_id: 50 begins no member; give decoder_input_ids"):
            model.generate(**ids, **options, logits_processor=[TrieLogitsProcessor(matcher())])
        begun = {"decoder_input_ids": torch.tensor([[END, 50]])}
        output = model.generate(**ids, **begun, **options, logits_processor=[TrieLogitsProcessor(matcher())])
        answer = output[0, 2:].tolist()
        assert tuple(answer[: answer.index(END)]) in MEMBERS
        named = TrieMatcher(TokenTrie.from_sequences({"A": [50, 7], "B": [50, 9]}), V, end_tokens=[END])
        output = model.generate(**ids, **options, logits_processor=[TrieLogitsProcessor(named)])
        assert output[0, 1].item() == 50
        assert output[0, 2].item() in {7, 9}
    assert not caplog.text


def test_a_copy_serves_calls_of_its_own_and_a_pickle_is_refused_by_name(model: Any) -> None:
    processor = TrieLogitsProcessor(matcher())
    again: list[Any] = []

    def copies(input_ids: Any, scores: Any) -> Any:
        again.append(copy.deepcopy(processor))
        return scores

    options = {"do_sample": False, "max_new_tokens": 6}
    expected = answers(model.generate(**prompts(), **options, logits_processor=[processor, copies]))
    assert answers(model.generate(**prompts(), **options, logits_processor=[again[1]])) == expected
    with pytest.raises(ArgumentError, match="a TrieMatcher cannot be pickled"):
        pickle.dumps(processor)
