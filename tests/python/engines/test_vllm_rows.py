"""vLLM's processor driven by hand, as the two model runners drive it."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from token_trie import TokenTrie

pytest.importorskip("vllm")
import torch
from token_trie.engines.vllm import TrieLogitsProcessor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

END, V = 2, 70
A, B, C = ({"A": [7], "A2": [7, 8]}, {"B": [9, 10, 11]}, {"C": [20, 21], "C2": [22]})
ALL = set(range(V))
ONE_WAY, SWAP = MoveDirectionality.UNIDIRECTIONAL, MoveDirectionality.SWAP


def config(n_vocab: int = V) -> Any:
    model = SimpleNamespace(get_vocab_size=lambda: n_vocab, skip_tokenizer_init=True, logits_processors=None)
    return SimpleNamespace(model_config=model, scheduler_config=SimpleNamespace(async_scheduling=False))


def asks_for(sequences: dict[str, list[int]] | None, **options: Any) -> Any:
    extra = None
    if sequences is not None:
        extra = {"token_trie": {"payload": TokenTrie.from_sequences(sequences).payload(), **options}}
    params = SamplingParams(extra_args=extra)
    params.update_from_generation_config({}, END)
    return params


def allowed(processor: Any, n_rows: int, *context: Any) -> list[set[int]]:
    n_vocab = processor._vocabulary.size
    logits = processor.apply(torch.zeros(n_rows, n_vocab), *context)
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in logits]


class RunnerV1:
    def __init__(self, n_vocab: int = V) -> None:
        self.processor = TrieLogitsProcessor(config(n_vocab), torch.device("cpu"), False)
        self.n_rows = 0

    def update(self, n_rows: int, removed: Any = (), added: Any = (), moved: Any = ()) -> None:
        self.processor.update_state(BatchUpdate(n_rows, list(removed), list(added), list(moved)))
        self.n_rows = n_rows

    def allowed(self) -> list[set[int]]:
        return allowed(self.processor, self.n_rows)


def test_it_is_what_both_model_runners_load() -> None:
    assert issubclass(TrieLogitsProcessor, LogitsProcessor)
    assert issubclass(TrieLogitsProcessor, LogitsProcessorV2)
    assert RunnerV1().processor.is_argmax_invariant() is False


def test_rows_walk_as_their_outputs_grow() -> None:
    runner = RunnerV1()
    first: list[int] = []
    second: list[int] = []
    runner.update(
        3, added=[(0, asks_for(A), [1, 5], first), (1, asks_for(None), None, []), (2, asks_for(B), [1], second)]
    )
    assert runner.allowed() == [{7}, ALL, {9}]
    assert runner.allowed() == [{7}, ALL, {9}], "a step may be asked about twice"
    first.append(7)
    second.append(9)
    runner.processor.update_state(None)
    assert runner.allowed() == [{8, END}, ALL, {10}]
    first.append(END)
    second[:] = [9, 10, 11]
    assert runner.allowed() == [{END}, ALL, {END}]


def test_a_request_that_was_preempted_goes_on_from_its_tokens() -> None:
    runner = RunnerV1()
    runner.update(1, added=[(0, asks_for(B), [1], [9, 10])])
    assert runner.allowed() == [{11}]


def test_tokens_taken_back_are_walked_again() -> None:
    runner, output = RunnerV1(), [9, 10]
    runner.update(1, added=[(0, asks_for(B), [1], output)])
    assert runner.allowed() == [{11}]
    del output[1:]
    assert runner.allowed() == [{10}]


def test_removed_then_added_then_moved() -> None:
    runner = RunnerV1()
    runner.update(3, added=[(i, asks_for(s), [1], []) for i, s in enumerate((A, B, C))])
    assert runner.allowed() == [{7}, {9}, {20, 22}]
    runner.update(3, moved=[(0, 2, SWAP)])
    assert runner.allowed() == [{20, 22}, {9}, {7}]
    runner.update(2, removed=[1], moved=[(2, 1, ONE_WAY)])
    assert runner.allowed() == [{20, 22}, {7}]
    runner.update(2, added=[(0, asks_for(None), [1], [])])
    assert runner.allowed() == [ALL, {7}], "who is replaced is in no other list"
    runner.update(2, moved=[(0, 1, SWAP)])
    assert runner.allowed() == [{7}, ALL]
    runner.update(1, moved=[(1, 0, ONE_WAY)])
    assert runner.allowed() == [ALL], "one without a set may replace one with"
    runner.update(2, removed=[0], added=[(0, asks_for(B), [1], []), (1, asks_for(A), [1], [])])
    assert runner.allowed() == [{9}, {7}], "a row may be freed and taken in one update"


def test_greedy_keeps_the_best_and_sampled_all_of_the_set() -> None:
    runner = RunnerV1()
    modes = [asks_for(C), asks_for(C, mode="greedy"), asks_for(A, mode="greedy", start_after=[5, 6])]
    runner.update(3, added=[(i, params, [1], []) for i, params in enumerate(modes)])
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    runner.processor.apply(logits)
    assert torch.equal(logits[0, [20, 22]], before[0, [20, 22]])
    best = max((20, 22), key=lambda token: float(before[1, token]))
    assert logits[1].isfinite().nonzero().tolist() == [[best]]
    assert logits[2].isfinite().sum() > V - 3, "and what comes before the marker is free"


def test_think_first_lists_and_release_are_a_requests_own() -> None:
    runner = RunnerV1()
    outputs: list[list[int]] = [[], [], []]
    params = [
        asks_for(A, start_after=[5, 6], max_before=2),
        asks_for(C, on_complete="restart", separator=[30], unique=True, max_items=2),
        asks_for(A, on_complete="release"),
    ]
    runner.update(3, added=[(i, p, [1], outputs[i]) for i, p in enumerate(params)])
    assert runner.allowed() == [ALL - {END}, {20, 22}, {7}]
    for output, tokens in zip(outputs, ([40, 41], [22], [7]), strict=True):
        output += tokens
    assert runner.allowed() == [{5}, {30, END}, ALL]
    for output, tokens in zip(outputs, ([5, 6], [30], [50, 51]), strict=True):
        output += tokens
    assert runner.allowed() == [{7}, {20}, ALL]


def test_a_token_that_something_else_forced_ends_the_constraint(caplog: pytest.LogCaptureFixture) -> None:
    runner = RunnerV1()
    runner.update(1, added=[(0, asks_for(B), [1], [9, 33])])
    with caplog.at_level(logging.WARNING, "token_trie.vllm"):
        assert runner.allowed() == [ALL]
    assert "token 33 is not in the set" in caplog.text


def test_where_all_that_is_allowed_was_cut_it_is_put_back_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    runner = RunnerV1()
    runner.update(2, added=[(i, asks_for(C, mode=mode), [1], []) for i, mode in enumerate(("sampled", "greedy"))])
    logits = torch.full((2, V), -torch.inf)
    logits[:, 50] = 3.0
    with caplog.at_level(logging.WARNING, "token_trie.vllm"):
        for _ in range(2):
            runner.processor.apply(logits)
            assert [row.isfinite().nonzero()[:, 0].tolist() for row in logits] == [[20, 22], [20]]
            logits[:, 20:23] = -torch.inf
    assert caplog.text.count("put back with equal logits") == 2, "once a request"


def test_tokens_that_vllm_does_not_tell_fail_loudly() -> None:
    runner = RunnerV1()
    runner.update(1, added=[(0, asks_for(B), [1], [9, -1])])
    with pytest.raises(RuntimeError, match="--logits-processors"):
        runner.allowed()
    asynchronous = config()
    asynchronous.scheduler_config.async_scheduling = True
    with pytest.raises(RuntimeError, match="--logits-processors"):
        TrieLogitsProcessor(asynchronous, torch.device("cpu"), False)
    asynchronous.model_config.logits_processors = ["token_trie.engines.vllm:TrieLogitsProcessor"]
    TrieLogitsProcessor(asynchronous, torch.device("cpu"), False)


def test_what_is_wrong_ends_that_request_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKEN_TRIE_SETS", str(tmp_path))
    runner = RunnerV1()
    gone = asks_for(None)
    gone.extra_args = {"token_trie": "gone"}
    runner.update(3, added=[(0, gone, [1], []), (1, asks_for({"X": [V]}), [1], []), (2, asks_for(B), [1], [])])
    assert runner.allowed() == [{END}, {END}, {9}]
    assert "gone.json" in caplog.text
    assert f"{V} is outside the vocabulary" in caplog.text


class RunnerV2:
    """Slots and rows laid out as Model Runner V2 lays them."""

    def __init__(self, n_slots: int = 6, length: int = 32) -> None:
        def plain(shape: Any) -> Any:
            tensor = torch.zeros(shape, dtype=torch.int32)
            return SimpleNamespace(gpu=tensor, np=tensor.numpy())

        self.tokens, self.prompt_len, self.total_len = plain((n_slots, length)), plain(n_slots), plain(n_slots)
        states = LogitsProcRequestState(
            device=torch.device("cpu"),
            max_num_reqs=n_slots,
            vocab_size=V,
            all_token_ids=self.tokens,
            prompt_len=self.prompt_len,
            prefill_len=plain(n_slots),
            total_len=self.total_len,
        )
        self.processor = TrieLogitsProcessor(config(), states)

    def add(self, slot: int, params: Any, prompt: list[int], output: list[int] | None = None) -> bool:
        is_ours: bool = self.processor.add_request(slot, params)
        self.prompt_len.np[slot], self.total_len.np[slot] = len(prompt), len(prompt)
        self.tokens.np[slot, : len(prompt)] = prompt
        self.commit(slot, output or [])
        self.processor.apply_staged_writes()
        return is_ours

    def commit(self, slot: int, tokens: list[int]) -> None:
        total = self.total_len.np[slot]
        self.tokens.np[slot, total : total + len(tokens)] = tokens
        self.total_len.np[slot] += len(tokens)

    def context(self, slots: list[int], drafts: dict[int, list[int]] | None = None) -> Any:
        """Rows of these slots, in this order: one each, and one for each of its draft tokens."""
        drafts = drafts or {}
        rows = [(slot, n) for slot in slots for n in range(1 + len(drafts.get(slot, [])))]
        last = {slot: int(self.tokens.np[slot, self.total_len.np[slot] - 1]) for slot in slots}
        fed = [last[slot] if n == 0 else drafts[slot][n - 1] for slot, n in rows]
        upper = [int(self.total_len.np[slot]) + len(drafts.get(slot, [])) for slot in slots]
        return LogitsContext(
            expanded_idx_mapping=torch.tensor([slot for slot, _ in rows], dtype=torch.int32),
            idx_mapping=torch.tensor(slots, dtype=torch.int32),
            idx_mapping_np=np.array(slots, np.int32),
            expanded_local_pos=torch.tensor([n for _, n in rows], dtype=torch.int32),
            input_ids=torch.tensor(fed, dtype=torch.int32),
            pos=torch.tensor([int(self.total_len.np[slot]) - 1 + n for slot, n in rows]),
            seq_lens_upper_bound_np=np.array(upper, np.int32),
        )

    def allowed(self, slots: list[int], drafts: dict[int, list[int]] | None = None) -> list[set[int]]:
        context = self.context(slots, drafts)
        return allowed(self.processor, len(context.expanded_idx_mapping), context)


def test_v2_rows_come_in_any_order_and_slots_are_used_again() -> None:
    runner = RunnerV2()
    assert runner.add(4, asks_for(A), [1, 5, 6])
    assert not runner.add(0, asks_for(None), [1])
    assert runner.add(2, asks_for(B), [1, 9])
    assert runner.allowed([0, 2, 4]) == [ALL, {9}, {7}]
    assert runner.allowed([4, 0]) == [{7}, ALL], "and need not all come"
    runner.commit(4, [7])
    runner.commit(2, [9, 10])
    assert runner.allowed([4, 2]) == [{8, END}, {11}]
    assert runner.allowed([4, 2]) == [{8, END}, {11}], "a step may be asked about twice"
    runner.commit(2, [11])
    runner.commit(2, [END])
    assert runner.allowed([2]) == [{END}], "or not at all"
    assert runner.add(2, asks_for(C), [1])
    assert not runner.add(4, asks_for(None), [1])
    assert runner.allowed([2, 4]) == [{20, 22}, ALL]


def test_v2_a_draft_token_has_a_row() -> None:
    runner = RunnerV2()
    runner.add(1, asks_for(B), [1, 2, 3])
    runner.add(3, asks_for(A), [1], output=[7])
    rows = runner.allowed([3, 1], {1: [9, 10], 3: [8, END]})
    assert rows == [{8, END}, {END}, {END}, {9}, {10}, {11}]
    runner.commit(1, [9])  # one of the two was accepted
    assert runner.allowed([1], {1: [33]})[0] == {10}, "a row behind a draft that is rejected does not matter"
    assert runner.allowed([1], {1: [10]}) == [{10}, {11}], "drafts leave no trace"


def test_v2_a_request_that_was_preempted_goes_on_from_its_tokens() -> None:
    runner = RunnerV2()
    runner.add(5, asks_for(B), [1, 4], output=[9, 10])
    assert runner.allowed([5]) == [{11}]
