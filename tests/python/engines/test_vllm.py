"""The vLLM engine itself, on the processor: requests of all kinds at once, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_trie import TokenTrie
from vllm_model import END, N_VOCAB, save_tiny_llama

pytest.importorskip("vllm")
import torch
import transformers
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

NAME = "token_trie.engines.vllm:TrieLogitsProcessor"
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny_llama")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[Any]:
    os.environ["TOKEN_TRIE_SETS"] = str(folder)
    llm = LLM(
        str(folder),
        logits_processors=[NAME],
        dtype="float32",
        max_model_len=128,
        max_num_seqs=24,  # fewer than there are requests, so that rows are taken over and moved
        kv_cache_memory_bytes=64 << 20,
        block_size=32,
        num_gpu_blocks_override=20,  # and too few for them all, so that some are preempted
        enforce_eager=True,
        disable_log_stats=False,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()
    del os.environ["TOKEN_TRIE_SETS"]


def random_set(rng: np.random.Generator) -> set[Tokens]:
    tokens = rng.integers(3, N_VOCAB, 8)
    return {tuple(map(int, rng.choice(tokens, rng.integers(1, 6)))) for _ in range(rng.integers(1, 30))}


def payload(members: set[Tokens]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        TokenTrie.from_sequences({repr(member): member for member in sorted(members)}).payload()
    )
    return made


def params(given: Any, **options: Any) -> Any:
    extra = None if given is None else {"token_trie": given}
    return SamplingParams(**{"max_tokens": 12, "temperature": 1.5, "extra_args": extra, **options})


def prompts(n: int, rng: np.random.Generator) -> list[Any]:
    return [{"prompt_token_ids": [1, *map(int, rng.integers(5, N_VOCAB, rng.integers(1, 20)))]} for _ in range(n)]


def answer(output: Any) -> Tokens:
    assert output.finish_reason == "stop"
    *tokens, end = output.token_ids
    assert end == END
    return tuple(tokens)


def test_64_requests_at_once_with_sets_of_their_own(llm: Any) -> None:
    rng = np.random.default_rng(0)
    sets = [None if i % 8 == 3 else random_set(rng) for i in range(64)]
    engine, finished = llm.llm_engine, {}
    for i, (members, prompt) in enumerate(zip(sets, prompts(64, rng), strict=True)):
        engine.add_request(str(i), prompt, params(None if members is None else payload(members)))
    gone, n_steps = {str(i) for i in range(5, 64, 9)}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output.outputs[0]
        n_steps += 1
        if n_steps == 2:
            gone -= set(finished)
            engine.abort_request(sorted(gone))
    assert len(gone) >= 4
    for i, members in enumerate(sets):
        if str(i) in gone:
            assert finished.get(str(i)) is None or finished[str(i)].finish_reason == "abort"
        elif members is None:
            assert len(finished[str(i)].token_ids) > 0
        else:
            assert answer(finished[str(i)]) in members, i


def test_of_two_thousand_answers_every_one_is_a_member(llm: Any) -> None:
    rng = np.random.default_rng(1)
    sets = [random_set(rng) for _ in range(500)]
    outputs = llm.generate(prompts(500, rng), [params(payload(s), n=4) for s in sets], use_tqdm=False)
    answers = [(answer(o), members) for out, members in zip(outputs, sets, strict=True) for o in out.outputs]
    assert len(answers) == 2000
    assert [a for a, members in answers if a not in members] == []
    assert len({a for a, _ in answers}) > 700, "and they differ"


def test_requests_that_were_preempted_go_on(llm: Any) -> None:
    rng = np.random.default_rng(3)
    sets = [{tuple(map(int, rng.integers(3, 9, rng.integers(30, 60)))) for _ in range(20)} for _ in range(64)]
    outputs = llm.generate(prompts(64, rng), [params(payload(s), max_tokens=70) for s in sets], use_tqdm=False)
    assert all(answer(output.outputs[0]) in members for output, members in zip(outputs, sets, strict=True))
    assert sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions") > 0


def by_hand(model: Any, ids: list[int], members: set[Tokens]) -> Tokens:
    """Take the best allowed token at each step, in the plainest way."""
    walked: Tokens = ()
    while True:
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *walked]])).logits[0, -1]
        following = {m[len(walked)] for m in members if len(m) > len(walked) and m[: len(walked)] == walked}
        best = max(following | ({END} if walked in members else set()), key=lambda token: float(logits[token]))
        if best == END:
            return walked
        walked += (best,)


@pytest.mark.parametrize("how", ["temperature", "mode"])
def test_greedy_answers_are_those_of_a_plain_loop(llm: Any, folder: Path, how: str) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = np.random.default_rng(2)
    sets, asked = [random_set(rng) for _ in range(40)], prompts(40, rng)
    given = [payload(s) if how == "temperature" else {"payload": payload(s), "mode": "greedy"} for s in sets]
    options = {"temperature": 0.0} if how == "temperature" else {"temperature": 2.0}
    outputs = llm.generate(asked, [params(g, **options) for g in given], use_tqdm=False)
    expected = [by_hand(model, p["prompt_token_ids"], s) for p, s in zip(asked, sets, strict=True)]
    assert [answer(output.outputs[0]) for output in outputs] == expected


def test_texts_are_spelled_as_they_follow_the_prompt(llm: Any) -> None:
    tokenizer = llm.get_tokenizer()
    choices = ["READ", "READ_FILE", "SEND_EMAIL", "Ω!"]
    for prompt, space in [("The answer is", " "), ("The answer is ", ""), ("<s>", ""), ("Is it (", "")]:
        for given in ({"choices": choices}, json.dumps({"choices": choices})):
            (output,) = llm.generate([prompt], params(given, n=12, max_tokens=32), use_tqdm=False)
            for one in output.outputs:
                assert one.text in {space + choice for choice in choices}
                if not prompt.endswith(" "):  # where the two do not merge
                    whole = tokenizer.encode(prompt + one.text, add_special_tokens=False)
                    assert whole[-len(answer(one)) :] == list(answer(one))


def test_a_set_may_come_from_a_file_or_by_a_name(llm: Any, folder: Path) -> None:
    members = {(7, 8), (9,)}
    (folder / "actions.json").write_text(json.dumps(payload(members)))
    for given in ("actions", {"name": "actions"}, json.dumps(payload(members))):
        (output,) = llm.generate([{"prompt_token_ids": [1, 5]}], params(given, n=4), use_tqdm=False)
        assert {answer(one) for one in output.outputs} <= members


def test_the_model_may_think_first_and_make_lists(llm: Any) -> None:
    think = {"choices": ["yes", "no"], "start_after": "</think>", "max_before": 5}
    listed = {
        "choices": ["yes", "no", "READ"],
        "on_complete": "restart",
        "separator": ",",
        "unique": True,
        "min_items": 3,
    }
    rules = [params(think, max_tokens=40), params(listed, max_tokens=40)]
    thought, items = llm.generate(["The answer is"] * 2, [*rules], use_tqdm=False)
    tokens = answer(thought.outputs[0])
    marker = llm.get_tokenizer().convert_tokens_to_ids("</think>")
    assert tokens.index(marker) <= 5
    assert llm.get_tokenizer().decode(tokens[tokens.index(marker) + 1 :]).strip() in ("yes", "no")
    assert sorted(item.strip() for item in items.outputs[0].text.split(",")) == ["READ", "no", "yes"]


FINE = {"choices": ["yes", "no"]}


def leaf(tokens: list[Any]) -> dict[str, Any]:
    return {"descriptors": [{"leaves": [{"name": "A", "tokens": tokens}]}]}


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (7, {}, "token_trie must be an object, its JSON or a name, not int"),
        ({}, {}, "token_trie must have one of choices, payload, name or be a payload, not none"),
        ({**FINE, "name": "x"}, {}, "not choices and name"),
        ({**FINE, "mod": "greedy"}, {}, "token_trie: unknown key 'mod'"),
        ({**FINE, "mode": "best"}, {}, "mode must be one of 'greedy', 'sampled'"),
        ({**FINE, "on_complete": "stop"}, {}, "on_complete must be one of"),
        ({**FINE, "max_items": 2}, {}, "max_items"),
        ({**FINE, "exclude": ["maybe"]}, {}, "maybe"),
        ({"choices": []}, {}, "choices"),
        ({"choices": ["yes", ""]}, {}, r"choices\[1\]: empty"),
        ({"choices": ["</s>"]}, {}, r"choices\[0\]: cannot be spelled"),
        (
            {"descriptors": [{"leaves": [{"name": "A", "tokens": [7, "x"]}]}]},
            {},
            r"descriptors\[0\].leaves\[0\].tokens\[1\]",
        ),
        (
            {"descriptors": [{"leaves": [{"name": "A", "tokens": [N_VOCAB]}]}]},
            {},
            f"{N_VOCAB} is outside the vocabulary",
        ),
        (
            {"descriptors": [{"leaves": [{"name": "A", "tokens": [7]}]}], "vocab": "sha256:" + "0" * 64},
            {},
            "another vocab",
        ),
        ('{"choices": ["yes"', {}, "token_trie: Expecting"),
        ("[" * 100_000, {}, "is no name of a set"),
        ("../tiny", {}, "is no name of a set"),
        ("nothing", {}, "nothing.json"),
        ({"file": "/etc/passwd"}, {}, "token_trie: unknown key 'file'"),
        (
            FINE,
            {"structured_outputs": StructuredOutputsParams(choice=["yes"])},
            "token_trie: beside structured_outputs",
        ),
        (FINE, {"min_tokens": 2}, "token_trie: beside min_tokens"),
        (FINE, {"ignore_eos": True}, "token_trie: beside ignore_eos"),
    ],
)
def test_what_is_wrong_is_refused_and_the_engine_goes_on(llm: Any, given: Any, options: Any, message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        llm.generate(["The answer is"], params(given, **options), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    (output,) = llm.generate(["The answer is"], params(FINE), use_tqdm=False)
    assert output.outputs[0].text in (" yes", " no")


def test_a_set_made_for_this_vocabulary_is_taken(llm: Any) -> None:
    from token_trie.engines.vllm import EngineVocabulary

    vocabulary = EngineVocabulary(N_VOCAB, llm.get_tokenizer())
    trie = vocabulary.set_of(("yes", "no"), llm.get_tokenizer().encode("The answer is"), None)
    assert trie.vocab.startswith("sha256:")
    (output,) = llm.generate(["The answer is"], params(trie.payload()), use_tqdm=False)
    assert output.outputs[0].text in (" yes", " no")
