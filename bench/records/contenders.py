"""The contenders, each called as its users call it. Prompts are evaluated and grammars read before the clock starts."""

import json
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any, Literal, cast

import llama_cpp
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import StreamHandle

from bench.decisions.contenders import Watched
from bench.models import Model
from bench.records.tasks import MOST_TOKENS, Request, Requests

GREEDY, EXACT, GRAMMAR, GUIDANCE = "token-trie greedy", "token-trie exact", "llama-cpp-python", "llguidance"
CONTENDERS = (GREEDY, EXACT, GRAMMAR, GUIDANCE)


@dataclass(frozen=True)
class Call:
    """A record that was written, and its cost."""

    text: str
    wall_ns: int
    cpu_ns: int  # of all threads
    n_tokens: int
    n_passes: int
    n_branches: int | None = None
    n_free: int | None = None


class Trie:
    """`StreamHandle.choose_tool` and `StreamHandle.fill`."""

    def __init__(self, requests: Requests, mode: Literal["exact", "greedy"]) -> None:
        self._requests = requests
        self._mode = mode
        self._handle = StreamHandle(requests.model.llm)
        self._handle.prefill(requests.cases[0].tokens[: requests.n_shared])

    def prepare(self, case: Request) -> None:
        """Evaluate the prompt."""
        for end in self._requests.portions(case):
            self._handle.prefill(case.tokens[:end])

    def call(self, case: Request) -> Call:
        """Write a call."""
        start, start_cpu = perf_counter_ns(), process_time_ns()
        text, stats = self._requests.write(self._handle, self._mode)
        wall_ns, cpu_ns = perf_counter_ns() - start, process_time_ns() - start_cpu
        assert stats is not None
        return Call(text, wall_ns, cpu_ns, stats.n_tokens, stats.n_passes, stats.n_branches, stats.n_free)

    def close(self) -> None:
        """Free the context."""
        self._handle.close()


class Grammar:
    """`Llama.create_completion` with the grammar that response_format makes of the schema."""

    def __init__(self, requests: Requests) -> None:
        self._watched = Watched(cast(Any, requests))
        self._grammar = LlamaGrammar.from_json_schema(json.dumps(requests.schema), verbose=False)

    def prepare(self, case: Request) -> None:
        """Evaluate the prompt."""
        self._watched.prepare(cast(Any, case))

    def call(self, case: Request) -> Call:
        """Write a call."""
        outcome = self._watched.decide(cast(Any, case), max_tokens=MOST_TOKENS, grammar=self._grammar)
        return Call(outcome.text, outcome.wall_ns, outcome.cpu_ns, len(outcome.tokens), outcome.n_passes)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class Guidance:
    """llguidance in a loop of our own: forced tokens are evaluated in one batch with the next token."""

    def __init__(self, requests: Requests) -> None:
        import llguidance.numpy as with_numpy
        from llguidance import LLMatcher
        from llguidance.llamacpp import lltokenizer_from_vocab

        model: Model = requests.model
        self._model = model
        self._watched = Watched(cast(Any, requests))
        tokenizer = lltokenizer_from_vocab(model.vocab)
        compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(requests.schema), overrides=compact)
        self._matcher = LLMatcher(tokenizer, grammar)
        if self._matcher.is_error():
            raise RuntimeError(self._matcher.get_error())
        self._mask = with_numpy.allocate_token_bitmask(1, model.n_vocab)
        self._fill, self._apply = with_numpy.fill_next_token_bitmask, with_numpy.apply_token_bitmask_inplace

    def prepare(self, case: Request) -> None:
        """Evaluate the prompt."""
        self._watched.prepare(cast(Any, case))
        end = self._model.llm.n_tokens
        if end < len(case.tokens):
            self._model.llm.eval(case.tokens[end:])

    def call(self, case: Request) -> Call:
        """Write a call."""
        matcher, llm = self._matcher, self._model.llm
        matcher.reset()
        tokens: list[int] = []
        waiting: list[int] = []
        n_passes = 0
        start, start_cpu = perf_counter_ns(), process_time_ns()
        while len(tokens) < MOST_TOKENS:
            forced = matcher.compute_ff_tokens()
            if forced:
                matcher.consume_tokens(forced)
                tokens += forced
                waiting += forced
            if matcher.is_stopped():
                break
            if waiting:
                llm.eval(waiting)
                n_passes += 1
            logits = self._model.logits_now()
            self._fill(matcher, self._mask, 0)
            self._apply(logits, self._mask)
            token = int(logits.argmax())
            matcher.consume_token(token)
            if llama_cpp.llama_vocab_is_eog(self._model.vocab, token):
                break
            tokens.append(token)
            waiting = [token]
        wall_ns, cpu_ns = perf_counter_ns() - start, process_time_ns() - start_cpu
        return Call(self._model.text(tokens), wall_ns, cpu_ns, len(tokens), n_passes)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
