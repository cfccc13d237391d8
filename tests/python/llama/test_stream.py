from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import oracle
import pytest
from token_trie import ArgumentError, ContextError, StreamHandle, TokenTrie, VocabularyError, constrain
from token_trie.errors import GrammarError, PayloadError
from token_trie.sets.prompt import tokenize_prompt
from tokenized_choices import ACTIONS, PROMPT


def text(steps: Any) -> str:
    return "".join(step.text for step in steps)


def branch_points(trie: TokenTrie, tokens: tuple[int, ...]) -> list[int]:
    """Positions in an answer where the model was asked; a member that begins another is one at its end."""
    members = {leaf.tokens for leaf in trie}
    ends = {-1}
    return [n for n in range(len(tokens) + 1) if len(oracle.allowed(members, tokens[:n], ends)) > 1]


def test_an_answer_then_free_text(stream: StreamHandle, actions: TokenTrie) -> None:
    stream.prefill(PROMPT)
    stream.set_token_trie(actions)
    steps = list(stream.generate())
    assert text(steps).strip() in ACTIONS
    assert (stream.state.stop, stream.state.span) == ("complete", "complete")
    stream.clear_token_trie()
    free = list(stream.generate(max_tokens=5))
    assert (len(free), stream.state.stop, stream.state.span) == (5, "max_tokens", "none")
    assert all(math.isnan(step.logprob) and not step.forced for step in free)


def test_a_forced_token_costs_nothing_and_a_branch_point_one_pass(llm: Any) -> None:
    trie = TokenTrie.from_choices(llm, ACTIONS, prompt=PROMPT)
    with StreamHandle(llm, n_ctx=256, seed=3) as stream:
        stream.set_token_trie(trie, "sampled")
        for _ in range(20):
            stream.prefill(PROMPT)
            before = stream.state
            steps = list(stream.generate(temperature=3.0))
            after = stream.state
            points = branch_points(trie, tuple(step.token for step in steps))
            assert after.n_passes - before.n_passes == len([point for point in points if point > 0])
            assert after.n_branches - before.n_branches == len(points)
            assert [n for n, step in enumerate(steps) if not step.forced] == [p for p in points if p < len(steps)]
            assert all(step.logprob == 0 for step in steps if step.forced)


def test_a_leaf_with_one_branch_at_its_first_token_costs_no_pass_at_all(stream: StreamHandle) -> None:
    trie = TokenTrie.from_sequences({"a": [400, 401, 402, 403], "b": [500, 501]})
    stream.prefill(PROMPT)
    stream.set_token_trie(trie)
    steps = list(stream.generate())
    assert len(steps) in (2, 4)
    assert stream.state.n_passes == 0
    assert stream.state.n_cached == stream.state.n_tokens - len(steps)


def test_jumping_and_stepping_give_the_same_tokens(tiny: Any) -> None:
    rng = np.random.default_rng(5)
    with StreamHandle(tiny) as jumping, StreamHandle(tiny, jump_forward=False) as stepping:
        for case in range(60):
            members = {tuple(rng.integers(260, 270, rng.integers(1, 6)).tolist()) for _ in range(8)}
            trie = TokenTrie.from_sequences({repr(member): member for member in sorted(members)})
            results = []
            for stream in (jumping, stepping):
                stream.prefill(f"Case {case}")
                stream.set_token_trie(trie)
                answer = [step.token for step in stream.generate()]
                stream.clear_token_trie()
                results.append(answer + [step.token for step in stream.generate(max_tokens=4)])
            assert results[0] == results[1]


def test_stepping_is_the_plain_greedy_walk(llm: Any) -> None:
    trie = TokenTrie.from_choices(llm, ACTIONS, prompt=PROMPT)
    with StreamHandle(llm, jump_forward=False) as stream:
        stream.set_token_trie(trie)
        for request in ("Read a.txt", "Wake me", "Mail Bob", "Text Bob"):
            prompt = tokenize_prompt(llm, f"Request: {request}\nAction:")
            # Nothing in common, for logits of quantized models change a little with what is evaluated together.
            stream.prefill([9])
            stream.prefill(prompt)
            expected, logprob = oracle.greedy_walk(llm, prompt, {leaf.tokens for leaf in trie})
            assert tuple(step.token for step in stream.generate()) == expected
            assert stream.state.logprob == pytest.approx(logprob, abs=1e-4)


def test_a_few_logits_give_the_tokens_and_logprobs_of_all(llm: Any) -> None:
    rng = np.random.default_rng(3)
    ends = oracle.end_of_generation(llm)
    n_cut = 0
    with StreamHandle(llm, n_ctx=256) as stream:
        for case in range(16 if llm.n_vocab() < 100_000 else 8):
            # Runs of forced tokens of every length, from a few tokens up to more than are evaluated alone.
            width = (2, 30, 700, 5000)[case % 4]
            heads = [tuple(rng.integers(300, 2000, rng.integers(1, 4)).tolist()) for _ in range(2)]
            members = {(*head, int(last)) for head in heads for last in rng.integers(300, 40_000, width)}
            prompt = tokenize_prompt(llm, f"Case {case}:")
            stream.prefill([9])
            stream.prefill(prompt)
            stream.set_token_trie(TokenTrie.from_sequences({repr(member): member for member in sorted(members)}))
            steps = list(stream.generate())
            llm.reset()
            llm.eval(prompt)
            evaluated = 0
            walked: tuple[int, ...] = ()
            for step in steps:
                tokens = sorted(oracle.allowed(members, walked, ends))
                if len(tokens) > 1:
                    # In the very batches of the stream, which quantized models' logits depend on a little.
                    if evaluated < len(walked):
                        llm.eval(list(walked[evaluated:]))
                        n_cut += len(tokens) <= llm.n_vocab() // 16
                    evaluated = len(walked)
                    row = oracle.logits(llm)[tokens].astype(np.float64)
                    assert step.token == tokens[int(row.argmax())]
                    assert step.logprob == pytest.approx(float(row.max() - np.logaddexp.reduce(row)), abs=1e-4)
                else:
                    assert step.forced
                walked += (step.token,)
            assert walked in members
            # And what was evaluated in part is whole for what follows.
            stream.clear_token_trie()
            (free,) = stream.generate(max_tokens=1)
            llm.eval(list(walked[evaluated:]))
            assert free.token == int(oracle.logits(llm).argmax())
    assert n_cut >= 6


def test_every_answer_at_a_high_temperature_is_a_member(tiny: Any) -> None:
    rng = np.random.default_rng(11)
    with StreamHandle(tiny, n_ctx=64, seed=1) as stream:
        for _ in range(40):
            members = {tuple(rng.integers(300, 310, rng.integers(1, 5)).tolist()) for _ in range(rng.integers(1, 12))}
            stream.set_token_trie(TokenTrie.from_sequences({repr(m): m for m in sorted(members)}), "sampled")
            for _ in range(25):
                stream.prefill([5, 6])
                assert tuple(step.token for step in stream.generate(temperature=2.0)) in members


def test_a_prefix_in_common_is_not_evaluated_again(stream: StreamHandle) -> None:
    head = list(range(300, 360))
    stream.prefill([*head, 1000])
    stream.prefill([*head, 2000, 2001])
    logits_after_reuse = [step.token for step in stream.generate(max_tokens=3)]
    stream.prefill([9])
    stream.prefill([*head, 2000, 2001])
    assert [step.token for step in stream.generate(max_tokens=3)] == logits_after_reuse


def test_the_text_is_whole_characters(gemma: Any) -> None:
    emoji = "👩🏽‍🚀é漢"
    with StreamHandle(gemma, n_ctx=64) as stream:
        stream.prefill("Say:\n")
        stream.set_token_trie(TokenTrie.from_choices(gemma, [emoji]))
        assert text(stream.generate()) == emoji


def test_text_of_bytes_comes_when_the_character_is_whole(smollm2: Any) -> None:
    tokens = smollm2.tokenize("漢字".encode(), add_bos=False)
    assert len(tokens) > 2
    with StreamHandle(smollm2, n_ctx=64) as stream:
        stream.prefill("Say:\n")
        stream.set_token_trie(TokenTrie.from_sequences({"x": tokens}))
        pieces = [step.text for step in stream.generate()]
    assert "".join(pieces) == "漢字"
    assert "" in pieces


def test_a_set_is_chosen_from_again_and_again(stream: StreamHandle, actions: TokenTrie) -> None:
    stream.prefill(PROMPT)
    stream.set_token_trie(actions)
    answers = [text(stream.generate()).strip() for _ in range(3)]
    assert set(answers) <= set(ACTIONS)


def test_max_tokens_cuts_a_span_and_the_next_call_goes_on(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    stream.set_token_trie(TokenTrie.from_sequences({"a": [400, 401, 402]}))
    assert [step.token for step in stream.generate(max_tokens=2)] == [400, 401]
    assert (stream.state.stop, stream.state.span, stream.state.leaf) == ("max_tokens", "constrained", None)
    assert [step.token for step in stream.generate(max_tokens=1)] == [402]
    assert (stream.state.stop, stream.state.leaf) == ("complete", 0)


def test_release_goes_on_with_free_text_and_restart_with_more_members(stream: StreamHandle) -> None:
    trie = TokenTrie.from_sequences({"a": [400], "b": [400, 401]})
    stream.prefill(PROMPT)
    stream.set_token_trie(trie, on_complete="release")
    steps = list(stream.generate(max_tokens=6))
    assert steps[0].token == 400
    assert len(steps) == 6
    stream.prefill(PROMPT)
    stream.set_token_trie(trie, "sampled", on_complete="restart", separator=[500], max_items=2, end_tokens=[600])
    tokens = [step.token for step in stream.generate(temperature=2.0)]
    assert tokens[-1] == 600
    assert stream.state.n_items in (1, 2)
    with pytest.raises(ArgumentError, match="on_complete end needs end_tokens"):
        stream.set_token_trie(trie, on_complete="end", end_tokens=[])


def test_a_grammar_is_back_after_the_trie_and_has_seen_its_tokens(stream: StreamHandle, actions: TokenTrie) -> None:
    stream.prefill(PROMPT)
    names = " | ".join(f'" {name}"' for name in ACTIONS)
    stream.set_grammar(f'root ::= ({names}) "!" [0-9] "."')
    stream.set_token_trie(actions)
    answer = text(stream.generate())
    stream.clear_token_trie()
    rest = text(stream.generate(max_tokens=10))
    assert rest[0] == "!"
    assert rest[1].isdigit()
    assert rest[2:] == "."
    assert (answer + rest).strip()
    assert stream.state.stop == "end"


def test_a_grammar_that_the_trie_left_says_so_and_can_be_set_again(stream: StreamHandle, actions: TokenTrie) -> None:
    stream.prefill(PROMPT)
    stream.set_grammar('root ::= "x"+')
    stream.set_token_trie(actions)
    list(stream.generate())
    stream.clear_token_trie()
    for _ in range(2):
        with pytest.raises(GrammarError, match="does not fit the grammar"):
            list(stream.generate(max_tokens=3))
    stream.set_grammar('root ::= "yes" | "no"')
    assert text(stream.generate(max_tokens=5)) in ("yes", "no")
    stream.set_grammar(None)
    assert len(list(stream.generate(max_tokens=3))) == 3


def test_a_grammar_that_does_not_parse_is_refused_and_the_one_before_kept(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    stream.set_grammar('root ::= "yes"')
    with pytest.raises(GrammarError, match="does not parse"):
        stream.set_grammar("root ::= (")
    with pytest.raises(GrammarError, match="no rule"):
        stream.set_grammar('root ::= "a"', root="other")
    assert text(stream.generate(max_tokens=5)) == "yes"


@pytest.mark.parametrize(("seed", "n_texts"), [(2**32 - 1, 1), (None, 2)])
def test_every_seed_draws_the_same_again_and_none_draws_others(precise: Any, seed: int | None, n_texts: int) -> None:
    texts = set()
    for _ in range(2):
        with StreamHandle(precise, n_ctx=128, seed=seed) as handle:
            handle.prefill("Once")
            texts.add(handle.text(40, temperature=5.0).text)
    assert len(texts) == n_texts


def test_draws_are_reproducible_by_seed(stream: StreamHandle, actions: TokenTrie) -> None:
    stream.set_token_trie(actions, "sampled")

    def draw() -> list[str]:
        stream.set_seed(7)
        answers = []
        for _ in range(8):
            stream.prefill(PROMPT)
            answers.append(text(stream.generate(temperature=2.0)))
        return answers

    first = draw()
    assert first == draw()
    assert len(set(first)) > 1


def test_a_full_context_is_an_error_that_loses_nothing(tiny: Any) -> None:
    with StreamHandle(tiny, n_ctx=256) as stream:
        size = 256
        stream.prefill([300] * (size - 2))
        steps = stream.generate()
        next(steps)
        next(steps)
        with pytest.raises(ContextError, match="full"):
            next(steps)
        assert stream.state.n_tokens == size
        with pytest.raises(ContextError, match="do not fit the context"):
            stream.prefill([300] * (size + 1))
        assert stream.state.n_tokens == size
        stream.prefill(PROMPT)
        assert len(list(stream.generate(max_tokens=2))) == 2


def test_a_failing_call_keeps_trie_and_sequence(stream: StreamHandle, actions: TokenTrie) -> None:
    stream.prefill(PROMPT)
    stream.set_token_trie(actions)
    n_tokens = stream.state.n_tokens
    for bad, error in [
        ("{", PayloadError),
        ({"descriptors": [{"leaves": [{"name": "a", "tokens": [10**6]}]}]}, VocabularyError),
    ]:
        with pytest.raises(error):
            stream.set_token_trie(bad)
    with pytest.raises(VocabularyError, match=r"prompt\[1\]"):
        stream.prefill([5, 10**6])
    with pytest.raises(ArgumentError, match="temperature"):
        list(stream.generate(temperature=-1.0))
    with pytest.raises(ArgumentError, match="top_p"):
        list(stream.generate(top_p=0.0))
    assert stream.state.n_tokens == n_tokens
    assert text(stream.generate()).strip() in ACTIONS


def test_a_trie_of_another_vocabulary_is_refused(stream: StreamHandle, gemma: Any) -> None:
    with pytest.raises(VocabularyError, match="another vocabulary"):
        stream.set_token_trie(TokenTrie.from_choices(gemma, ["yes"]))


def test_generate_needs_a_prompt(stream: StreamHandle) -> None:
    with pytest.raises(ArgumentError, match="prefill first"):
        list(stream.generate(max_tokens=1))
    assert list(stream.generate(max_tokens=0)) == []


def test_a_file_will_do_for_a_model(model_paths: dict[str, Path]) -> None:
    trie = TokenTrie.from_sequences({"a": [300, 301], "b": [302]})
    with StreamHandle(model_paths["tiny"], n_ctx=64, n_threads=1) as stream:
        for prompt in ("Answer:", [1, 300]):
            stream.prefill(prompt)
            stream.set_token_trie(trie)
            assert tuple(step.token for step in stream.generate()) in {(300, 301), (302,)}


def test_a_model_without_weights_is_refused(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), vocab_only=True, verbose=False)
    with pytest.raises(ArgumentError, match="vocab_only"):
        StreamHandle(llm)


def test_ten_thousand_rounds_do_not_grow(tiny: Any) -> None:
    import resource

    trie = TokenTrie.from_sequences({"a": [300, 301], "b": [302, 303]})
    with StreamHandle(tiny, n_ctx=64) as stream:
        stream.prefill([1, 300])

        def rounds(n: int) -> None:
            for _ in range(n):
                stream.set_token_trie(trie)
                list(stream.generate(max_tokens=0))
                stream.clear_token_trie()

        rounds(500)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rounds(10_000)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2_000


def test_the_chain_and_the_handle_agree(tiny: Any) -> None:
    trie = TokenTrie.from_choices(tiny, ["yes", "no", "Pizza", "Paris", "yesno"])
    with StreamHandle(tiny) as stream:
        stream.set_token_trie(trie)
        for n in range(10):
            prompt = tokenize_prompt(tiny, f"Question {n}\n")
            stream.prefill(prompt)
            by_handle = [step.token for step in stream.generate()]
            with constrain(tiny, trie):
                by_chain = [t for t in tiny.generate(prompt, temp=0.0) if t != tiny.token_eos()]
            assert by_handle == by_chain
