"""Decisions and records are answered by create_completion of llama-cpp-python, its passes timed, and StreamHandle."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

import llama_cpp
from token_trie import StreamHandle

from bench.models import Model
from bench.timing import watch


@dataclass
class Outcome:
    """One answer, its prompt evaluated before."""

    tokens: list[int] = field(default_factory=list)  # without an end
    text: str = ""
    wall_ns: int = 0  # as the caller sees it
    cpu_ns: int = 0  # all threads together
    inner_ns: int = 0  # as the engine measures it; else wall_ns
    decode_ns: int = 0  # the part in the model's forward passes
    n_passes: int = 0


def shared_tokens(prompts: Sequence[list[int]], n_own: int = 2) -> int:
    """Return how many tokens all prompts begin with, but for the last n_own of the shortest."""
    most = max(min(map(len, prompts)) - n_own, 0)
    same = (len(set(column)) == 1 for column in zip(*prompts, strict=False))
    return min(sum(takewhile(bool, same)), most)


def portions(prompt: list[int], n_shared: int) -> list[int]:
    """Return the positions at which a prompt is cut; every contender evaluates it in these portions.

    A quantized model's logits depend on the size of a batch, so equal answers can be expected of equal batches alone.
    The last token comes by itself, as in llama-cpp-python.
    """
    return sorted({n_shared, len(prompt) - 1, len(prompt)} - {0})


def decode(context: Any, batch: Any, rows: Sequence[tuple[int, int, int, bool]]) -> None:
    """Run llama_decode on rows: token, position, sequence, and whether it has logits."""
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
    if llama_cpp.llama_decode(context, batch) != 0:
        raise RuntimeError("llama_decode failed")
    llama_cpp.llama_synchronize(context)


class Handle:
    """A StreamHandle that answers prompts with a common beginning, on a context of its own."""

    def __init__(self, model: Model, prompts: Sequence[list[int]], **options: Any) -> None:
        self.stream = StreamHandle(model.llm, **options)
        self._n_shared = shared_tokens(prompts)
        self.stream.prefill(prompts[0][: self._n_shared])

    def prepare(self, prompt: list[int]) -> None:
        """Evaluate a prompt in its portions."""
        for end in portions(prompt, self._n_shared):
            self.stream.prefill(prompt[:end])


class Completion:
    """A Llama that answers prompts with a common beginning."""

    def __init__(self, model: Model, prompts: Sequence[list[int]]) -> None:
        self._model = model
        self._llm = cast(Any, model.llm)
        self._n_shared = shared_tokens(prompts)
        self._llm.reset()
        self._evaluate(prompts[0][: self._n_shared])

    def prepare(self, prompt: list[int]) -> None:
        """Evaluate a prompt in its portions, as far as the context does not hold it."""
        n = len(prompt) - 1
        held = self._llm.n_tokens >= n and list(self._llm.input_ids[:n]) == prompt[:n]
        self._llm.n_tokens = n if held else max(self._n_shared - 1, 0)  # the rest goes with the next eval
        for end in portions(prompt, self._n_shared):
            if end > self._llm.n_tokens:
                self._evaluate(prompt[self._llm.n_tokens : end])

    def answer(self, prompt: list[int], **options: Any) -> Outcome:
        """Let create_completion answer a prompt, which is evaluated before."""
        self.prepare(prompt)
        with self._watch(len(prompt)) as seen, watch() as took:
            answer = self._llm.create_completion(prompt, temperature=0.0, **options)
        if seen.tokens and llama_cpp.llama_vocab_is_eog(self._model.vocab, seen.tokens[-1]):
            seen.tokens.pop()
        seen.text = answer["choices"][0]["text"]
        seen.wall_ns += took.wall_ns
        seen.cpu_ns += took.cpu_ns
        seen.inner_ns = seen.wall_ns
        return seen

    def _evaluate(self, tokens: list[int]) -> None:
        if tokens:
            self._llm.eval(tokens)
            llama_cpp.llama_synchronize(self._llm.ctx)

    @contextmanager
    def _watch(self, n_prompt: int) -> Iterator[Outcome]:
        """Note tokens and passes, and the time of the prompt as negative time, which is not that of the answer."""
        seen = Outcome()
        llm, context = self._llm, self._llm._ctx
        decode, sample = context.decode, llm.sample

        def timed_decode(batch: Any) -> None:
            with watch() as took:
                decode(batch)
                llama_cpp.llama_synchronize(llm.ctx)
            if llm.n_tokens < n_prompt:  # the prompt's last token, which some versions evaluate again
                seen.wall_ns -= took.wall_ns
                seen.cpu_ns -= took.cpu_ns
            else:
                seen.decode_ns += took.wall_ns
                seen.n_passes += 1

        def kept_sample(*args: Any, **kwargs: Any) -> int:
            token: int = sample(*args, **kwargs)
            seen.tokens.append(token)
            return token

        context.decode, llm.sample = timed_decode, kept_sample
        try:
            yield seen
        finally:
            del context.decode, llm.sample
