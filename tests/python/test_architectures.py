"""Models of many architectures: whatever is asked of them, each answer is that of the model read from its first token.

The cases of a seed are always the same, one after the other on one Llama, whose memory they share. ARCHITECTURE_CASES
says how many for each architecture, and ARCHITECTURE_SEED which come first.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from architectures import HYBRID, RECURRENT
from attention_architectures import ATTENTION
from plain_model import PlainModel, opened, watching
from tiny_model import byte_pairs, sentence_pieces, unigrams
from token_trie import (
    Choice,
    ContextError,
    Contextual,
    LimitError,
    Predicate,
    Score,
    StreamHandle,
    Think,
    TokenTrie,
    choose,
    choose_list,
    choose_many,
    choose_tool,
    constrain,
    decide,
    decide_many,
    explain,
    fill,
    fill_many,
    score,
    score_many,
)
from token_trie.plan import Ask, Model, Plan, Query, run

N_CASES = int(os.environ.get("ARCHITECTURE_CASES", "24"))
SEED = int(os.environ.get("ARCHITECTURE_SEED", "0"))
AT_ONCE = min(50, math.ceil(N_CASES / 3))
N_CTX = 1024
N_FEW = 160
"""Tokens of a context that texts fill."""
LONGEST = 300
"""A longer text is ended, and another begins."""

WRITERS = HYBRID | RECURRENT | ATTENTION
TOKENIZERS = [sentence_pieces, byte_pairs, unigrams]
Request = Callable[[], Any]

UNKNOWN: frozenset[str] = frozenset()
"""Architectures that this libllama does not load."""

BEGINNINGS = ["", "Pizza in Paris? ", "The answers are yes and no. " * 3, "Rome, Oslo, Bern and Paris have Pizza. " * 5]
ENDS = ["Answer:", "Where? Answer:", "yes or no:", "Is it Paris?"]
WORDS = [" Paris", " Pa", " Rome", " Oslo", " Pizza", " Bern", " ris", " yes", " no", " Pari"]
SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yz", "y"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
    },
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3},
    {"properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]},
    {"properties": {"s": {"type": "string", "maxLength": 4}, "t": {"type": "number"}}},
]
TOOLS = [
    {"type": "function", "function": {"name": "pay", "parameters": SCHEMAS[0]}},
    {"type": "function", "function": {"name": "play", "parameters": SCHEMAS[2]}},
]


class Cases:
    """One Llama, and a handle on it, that answer one request after the other."""

    def __init__(self, llm: Any, plain: PlainModel, rng: random.Random) -> None:
        self.llm, self.plain, self.rng = llm, plain, rng
        self.said = ""
        self.handle = StreamHandle(llm, n_ctx=rng.choice([N_FEW, N_CTX]))

    def run(self) -> None:
        kinds = [self.choose, self.score, self.decide, self.fill, self.tool, self.list_, self.explain, self.state]
        kinds += [self.many, self.in_company, self.constrain, self.read_by_llama, *[self.on_handle] * 4]
        with watching() as seen:
            self.rng.choice(kinds)()()
        for step, answer in seen:
            self.plain.check(step, answer)

    def prompt(self) -> str:
        """Return the last prompt again, with a turn more, or one that shares a beginning with others."""
        rng = self.rng
        if not self.said or len(self.said) > LONGEST or rng.random() < 0.6:
            self.said = f"{rng.choice(BEGINNINGS)}{rng.randrange(4)}. {rng.choice(ENDS)}"
        elif rng.random() < 0.6:
            self.said += f"{rng.choice(WORDS)}. {rng.randrange(4)}. {rng.choice(ENDS)}"
        return self.said

    def choices(self) -> list[str]:
        rng, n = self.rng, self.rng.choice([0, 0, 3, 3, 6, 6, 6, 120])
        made = {"".join(rng.choices("abxy ", k=rng.randint(1, 4))).strip() for _ in range(n)}
        return [*rng.sample(WORDS, rng.randint(2, len(WORDS))), *(f" {one}" for one in sorted(made) if one)]

    def ways(self) -> dict[str, Any]:
        rng = self.rng
        ways: list[dict[str, Any]] = [
            {},
            {"n_best": 3, "leaf_end": rng.choice(["any", "longest", "follow"])},
            {"max_nodes": 4},
            {"mode": "greedy"},
            {"mode": "sampled", "seed": rng.randrange(99)},
            {"mode": "aligned", "seed": rng.randrange(99)},
            {"mode": "beam", "beam_width": 3},
            {"probabilities": True},
            {"calibration": Contextual(rng.choice(ENDS))},
            {"think": Think("!", max_tokens=rng.randint(0, 6))},
        ]
        return rng.choice(ways)

    def scoring(self) -> dict[str, Any]:
        return self.rng.choice([{}, {"leaf_end": "longest"}, {"leaf_end": "follow"}, {"branches": True}])

    def writing(self) -> dict[str, Any]:
        mode = self.rng.choice(["exact", "greedy", "sampled"])
        return {"mode": mode, "seed": self.rng.randrange(99) if mode == "sampled" else None, "max_tokens": 12}

    def listing(self) -> dict[str, Any]:
        return self.rng.choice([{"max_items": 2}, {"max_tokens": 9}, {"mode": "sampled", "seed": 7, "max_items": 3}])

    def questions(self) -> dict[str, Any]:
        rng = self.rng
        made: list[Any] = [
            Choice("Where?", self.choices()[:4]),
            Choice("Who pays?", ["Anna", "Ben"]),
            Predicate("Is it Paris?"),
            Score("How many?", ["no", "a few", "all"]),
        ]
        return {str(i): one for i, one in enumerate(rng.sample(made, rng.randint(1, 4)))}

    # Each of these draws a request.

    def choose(self) -> Request:
        return partial(choose, self.llm, self.prompt(), self.choices(), **self.ways())

    def score(self) -> Request:
        scoring = self.rng.choice([{"normalize": "prior"}, self.scoring()])
        return partial(score, self.llm, self.prompt(), self.choices(), **scoring)

    def decide(self) -> Request:
        return partial(decide, self.llm, self.prompt(), self.questions(), reproducible=self.rng.random() < 0.3)

    def fill(self) -> Request:
        return partial(fill, self.llm, self.prompt(), self.rng.choice(SCHEMAS), **self.writing())

    def tool(self) -> Request:
        return partial(choose_tool, self.llm, [{"role": "user", "content": self.prompt()}], TOOLS, **self.writing())

    def list_(self) -> Request:
        return partial(choose_list, self.llm, self.prompt(), self.choices(), **self.listing())

    def explain(self) -> Request:
        return partial(explain, self.llm, self.prompt(), self.choices())

    def state(self) -> Request:
        """Ask for the state after a prompt too."""
        trie = TokenTrie.from_choices(self.llm, self.choices())
        query = self.rng.choice([Query(mode, trie, with_state=True) for mode in ("scores", "best", "greedy")])

        def plan(model: Model, prompt: str) -> Plan[None]:
            yield [Ask(model.tokenize(prompt), query)]

        return partial(run, self.llm, self.prompt(), plan)

    def many(self) -> Request:
        rng, n = self.rng, self.rng.choice([2, 3, None])
        prompts = [self.prompt() for _ in range(rng.randint(2, 6))]
        several: list[Callable[[], Iterable[Any]]] = [
            partial(choose_many, self.llm, prompts, self.choices(), n_parallel=n, **self.ways()),
            partial(score_many, self.llm, prompts, self.choices(), n_parallel=n, **self.scoring()),
            partial(decide_many, self.llm, prompts, self.questions(), n_parallel=n),
            partial(fill_many, self.llm, prompts, rng.choice(SCHEMAS), n_parallel=n, **self.writing()),
        ]
        ask = rng.choice(several)
        return lambda: list(ask())

    def in_company(self) -> Request:
        """Make several requests at once, each on a thread."""
        kinds = [self.choose, self.score, self.decide, self.fill, self.list_]
        asks = [self.rng.choice(kinds)() for _ in range(self.rng.randint(2, 4))]

        def ask_all() -> None:
            with ThreadPoolExecutor(len(asks)) as pool:
                for future in [pool.submit(ask) for ask in asks]:
                    future.result()

        return ask_all

    def constrain(self) -> Request:
        prompt = self.llm.tokenize(self.prompt().encode())
        trie = TokenTrie.from_choices(self.llm, self.choices(), prompt=prompt)

        def generate() -> None:
            with constrain(self.llm, trie) as constraint:
                self.llm(prompt, max_tokens=16)
            self.plain.check_walk(prompt, trie, constraint.names)

        return generate

    def read_by_llama(self) -> Request:
        """Ask about a prompt whose beginning the Llama itself has evaluated."""
        tokens = self.llm.tokenize(self.prompt().encode())
        self.llm.reset()
        self.llm.eval(tokens[: self.rng.randint(1, len(tokens))])
        return partial(choose, self.llm, self.said, self.choices(), **self.ways())

    def on_handle(self) -> Request:
        """Ask about a text that goes on; what is asked beside it, a fork, and what fails change nothing."""
        rng, handle = self.rng, self.handle
        if rng.random() < 0.3 or not handle.tokens or len(handle.tokens) > LONGEST:
            self.said = self.said if len(self.said) < N_FEW else ""
            self.attempt(partial(handle.prefill, self.prompt()))
        elif rng.random() < 0.5:
            self.attempt(partial(handle.append, f"{rng.choice(WORDS)}. {rng.choice(ENDS)}"))
        if not handle.tokens:
            return partial(handle.prefill, [1])
        asks: list[Request] = [
            partial(handle.score, self.choices(), **self.scoring()),
            partial(handle.score, self.choices(), prompt=self.prompt()),
            partial(handle.decide, self.questions()),
            partial(handle.explain, self.choices()),
            self.on_fork,
        ]
        before = handle.tokens
        for ask in rng.sample(asks, rng.randint(0, 2)):
            self.attempt(ask)
            assert handle.tokens == before
        return partial(self.write, handle)

    def attempt(self, ask: Request) -> bool:
        """Return whether it fits; what does not changes nothing."""
        before = self.handle.tokens
        try:
            ask()
        except (ContextError, LimitError):
            assert self.handle.tokens == before
            return False
        return True

    def on_fork(self) -> None:
        with self.handle.fork() as fork:
            self.write(fork)

    def write(self, handle: StreamHandle) -> None:
        rng, before = self.rng, handle.tokens
        kind = rng.randrange(5)
        if kind == 0:
            written = handle.text(rng.randint(1, 8)).tokens
            assert handle.tokens == [*before, *written]
            self.plain.check_best(before, written)
        elif kind == 1:
            self.attempt(partial(handle.fill, rng.choice(SCHEMAS), **self.writing()))
        elif kind == 2:
            self.attempt(partial(handle.choose_list, self.choices(), **self.listing()))
        else:
            self.attempt(partial(handle.choose, self.choices(), **self.ways()))


def chunks() -> list[int]:
    return list(range(SEED, SEED + N_CASES, AT_ONCE))


@pytest.fixture
def paths(tmp_path: Path) -> Callable[[str, Callable[[], Any]], Path]:
    def write(architecture: str, tokenizer: Callable[[], Any]) -> Path:
        if architecture in UNKNOWN:
            pytest.skip(f"this libllama does not know {architecture}")
        path = tmp_path / f"{architecture}.gguf"
        WRITERS[architecture](path, tokenizer())
        return path

    return write


@pytest.mark.parametrize("architecture", WRITERS)
def test_a_model_of_each_architecture_loads_and_its_logits_are_numbers(paths: Any, architecture: str) -> None:
    for tokenizer in TOKENIZERS:
        plain = PlainModel(paths(architecture, tokenizer), N_CTX)
        assert np.isfinite(plain.after((1,), tuple(plain.llm.tokenize(b"Answer:", add_bos=False)))).all()
        plain.close()


def test_the_architectures_that_are_skipped_are_none_that_this_libllama_loads(tmp_path: Path) -> None:
    for architecture in UNKNOWN:
        WRITERS[architecture](path := tmp_path / "unknown.gguf", sentence_pieces())
        with pytest.raises(ValueError, match="load"):
            opened(path, N_CTX)


@pytest.mark.parametrize("first", chunks())
@pytest.mark.parametrize("architecture", WRITERS)
def test_each_answer_is_that_of_the_model_read_from_its_first_token(paths: Any, architecture: str, first: int) -> None:
    path = paths(architecture, TOKENIZERS[first // AT_ONCE % len(TOKENIZERS)])
    plain, llm = PlainModel(path, N_CTX), opened(path, N_CTX)
    cases = Cases(llm, plain, random.Random(first))
    for i in range(min(AT_ONCE, SEED + N_CASES - first)):
        try:
            cases.run()
        except Exception as error:
            error.add_note(f"case {i} after {first} of {architecture}")
            raise
    llm.close()
    plain.close()


@pytest.mark.parametrize("architecture", HYBRID | RECURRENT)
def test_in_eight_bits_prompts_together_are_scored_as_each_alone(
    paths: Any, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On processors with AMX, llama.cpp's own kernel mixes sequences up, or ends the process."""
    precise, path = paths(architecture, byte_pairs), tmp_path / "quantized.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    assert llama_cpp.llama_model_quantize(str(precise).encode(), str(path).encode(), params) == 0
    monkeypatch.setattr("plain_model.NEAR", 0.3)  # inputs are rounded too, up or down as others are beside them
    plain, llm = PlainModel(path, N_CTX), opened(path, N_CTX)
    with watching() as seen:  # 32 tokens a pass are too many for that kernel where matrices are as narrow as these
        list(score_many(llm, ["Is it 1?", "Is it 2?"], WORDS[:4]))
    assert len(seen) == 2
    for step, answer in seen:
        plain.check(step, answer)
    llm.close()
    plain.close()
