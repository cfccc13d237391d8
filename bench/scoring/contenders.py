"""Who scores answers, each as its users would."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any, Protocol

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from token_trie import TokenTrie
from token_trie.llama.options import StreamOptions
from token_trie.llama.query import Query
from token_trie.llama.stream import Stream

from bench.models import Model

COMPLETED = 1
"""Answers that create_completion has to score."""


@dataclass(frozen=True)
class Scored:
    """One set behind one prompt."""

    logprobs: NDArray[np.float64]
    n_evaluated: int
    n_passes: int
    wall_ns: int = 0
    cpu_ns: int = 0
    decode_ns: int | None = None


@dataclass
class Watch:
    """What a piece of work took."""

    wall_ns: int = 0
    cpu_ns: int = 0


@contextmanager
def watch() -> Iterator[Watch]:
    """Time what stands under it."""
    out = Watch()
    cpu, wall = process_time_ns(), perf_counter_ns()
    try:
        yield out
    finally:
        out.wall_ns, out.cpu_ns = perf_counter_ns() - wall, process_time_ns() - cpu


@contextmanager
def opened(llm: Any, n_ctx: int) -> Iterator[Stream]:
    """Open a stream, for what a handle does not show: what a score took."""
    with closing(Stream(llm, options=StreamOptions(n_ctx=n_ctx))) as stream:
        yield stream


class Contender(Protocol):
    """One way to score; prepare evaluates the prompt."""

    def prepare(self, prompt: list[int]) -> None: ...  # noqa: D102
    def score(self, trie: TokenTrie) -> Scored: ...  # noqa: D102


class Tree:
    """token-trie: all answers as one tree."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.prepare = stream.prefill

    def score(self, trie: TokenTrie) -> Scored:
        """Score."""
        answer = self._stream.answer(Query("scores", trie, leaf_end="any"))
        cost = answer.figures
        return Scored(answer.logprobs, cost.n_evaluated, cost.n_passes, decode_ns=cost.decode_ns)


class OneByOne:
    """llama-cpp-python's low-level API: the cache goes back to the prompt for each answer, which is one batch."""

    def __init__(self, model: Model, longest: int) -> None:
        self._model = model
        self._memory = llama_cpp.llama_get_memory(model.llm.ctx)
        self._batch = llama_cpp.llama_batch_init(longest, 0, 1)
        self._n_prompt = 0
        self._first = np.empty(0, np.float32)

    def prepare(self, prompt: list[int]) -> None:
        """Evaluate what the context does not hold of the prompt."""
        llm: Any = self._model.llm
        held = llm.input_ids[: min(llm.n_tokens, len(prompt))]
        apart = np.flatnonzero(held != prompt[: len(held)])
        n_same = int(apart[0]) if len(apart) else len(held)
        llm.n_tokens = min(n_same, len(prompt) - 1)
        llm.eval(prompt[llm.n_tokens :])
        self._n_prompt = len(prompt)
        self._first = self._model.logits_now().copy()

    def score(self, trie: TokenTrie) -> Scored:
        """Score."""
        n_evaluated = n_passes = 0
        logprobs = np.empty(len(trie))
        normalizer = _log_sum_exp(self._first)
        for i, leaf in enumerate(trie):
            first, *rest = leaf.tokens
            logprobs[i] = self._first[first] - normalizer
            if rest:
                self._decode(leaf.tokens[:-1])
                logprobs[i] += sum(self._logprob(row, token) for row, token in enumerate(rest))
                n_evaluated += len(rest)
                n_passes += 1
        return Scored(logprobs, n_evaluated, n_passes)

    def close(self) -> None:
        """Free the batch."""
        llama_cpp.llama_batch_free(self._batch)

    def _decode(self, tokens: Sequence[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._n_prompt + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        llama_cpp.llama_memory_seq_rm(self._memory, 0, self._n_prompt, -1)
        if llama_cpp.llama_decode(self._model.llm.ctx, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def _logprob(self, row: int, token: int) -> float:
        pointer = llama_cpp.llama_get_logits_ith(self._model.llm.ctx, row)
        logits = np.ctypeslib.as_array(pointer, shape=(self._model.n_vocab,))
        return float(logits[token]) - _log_sum_exp(logits)


def _log_sum_exp(logits: NDArray[np.float32]) -> float:
    most = logits.max()
    return float(most + np.log(np.exp(logits - most).sum()))


class Completions:
    """create_completion with echo, whose log-probabilities of the prompt's tokens have the answer's among them.

    It sorts the vocabulary for each of the prompt's tokens: few answers are taken, and their time counts for all.
    """

    def __init__(self, model: Model, n_ctx: int, threads: int) -> None:
        self._llm: Any = llama_cpp.Llama(
            str(model.path), n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False
        )

    def score(self, prompt: str, answers: Sequence[str]) -> Scored:
        """Score the first answers."""
        taken = answers[:COMPLETED]
        with watch() as took:
            logprobs = [self._score(prompt, answer) for answer in taken]
        scale = len(answers) / len(taken)
        return Scored(np.array(logprobs), 0, len(answers), int(took.wall_ns * scale), int(took.cpu_ns * scale))

    def close(self) -> None:
        """Free the model."""
        self._llm.close()

    def _score(self, prompt: str, answer: str) -> float:
        done = self._llm.create_completion(prompt + answer, echo=True, logprobs=1, max_tokens=1, temperature=0.0)
        seen = done["choices"][0]["logprobs"]
        begin, end = len(prompt), len(prompt) + len(answer)
        pairs = zip(seen["text_offset"], seen["token_logprobs"], strict=True)
        return float(sum(logprob for offset, logprob in pairs if begin <= offset < end))
