"""The contenders, each called as its users call it. Prompts are evaluated before the clock starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any, Protocol, cast

import llama_cpp
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import StreamHandle, constrain

from bench.decisions.tasks import Case, Task

FREE, GUIDED, TRIE, FFI = "free", "strict-guided", "strict-trie", "strict-trie-ffi"
STEPPING = f"{FFI} (stepping)"
MODES = (FREE, GUIDED, TRIE, FFI)
# The best token and its probability, chosen on the device; tests/cpp/stream/device_head_test.cpp counts them.
_BEST_BYTES = 8


@dataclass(frozen=True)
class Outcome:
    """One decision."""

    tokens: list[int]  # without an end
    text: str
    wall_ns: int  # as the caller sees it
    inner_ns: int  # as the engine measures it; else the same
    decode_ns: int  # of that, in the model's forward passes
    n_passes: int
    n_bytes: int = 0  # that came from a device to the host, as llama.cpp fetches them behind its passes
    cpu_ns: int = 0  # of all threads, where it is measured


class Contender(Protocol):
    """One way to a decision; prepare evaluates the prompt and returns the nanoseconds of it."""

    def prepare(self, case: Case) -> int: ...  # noqa: D102
    def decide(self, case: Case) -> Outcome: ...  # noqa: D102


class Watched:
    """A Llama whose forward passes are timed and whose sampled tokens are kept."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.llm = cast(Any, task.model.llm)
        self.llm.reset()
        self._evaluate(task.cases[0].tokens[: task.n_shared])

    def prepare(self, case: Case) -> int:
        """Evaluate the prompt in the task's portions, as far as it is not in the context already."""
        start = perf_counter_ns()
        tokens = case.tokens
        n = len(tokens) - 1
        if list(self.llm.input_ids[:n]) == tokens[:n] and self.llm.n_tokens >= n:
            self._continue_from(n)
        else:
            self._continue_from(max(self.task.n_shared - 1, 0))
        for end in self.task.portions(case):
            if end > self.llm.n_tokens:
                self._evaluate(tokens[self.llm.n_tokens : end])
        return perf_counter_ns() - start

    def decide(self, case: Case, **options: Any) -> Outcome:
        """Let create_completion answer."""
        n_prompt = len(case.tokens)
        with self._watch(n_prompt) as seen:
            start, start_cpu = perf_counter_ns(), process_time_ns()
            answer = self.llm.create_completion(case.tokens, temperature=0.0, **options)
            wall_ns = perf_counter_ns() - start - seen.prompt_ns
            cpu_ns = process_time_ns() - start_cpu - seen.prompt_cpu_ns
        tokens = seen.tokens
        if tokens and llama_cpp.llama_vocab_is_eog(self.task.model.vocab, tokens[-1]):
            tokens.pop()
        n_bytes = seen.n_passes * self.task.model.row_bytes
        text = answer["choices"][0]["text"]
        return Outcome(tokens, text, wall_ns, wall_ns, seen.decode_ns, seen.n_passes, n_bytes, cpu_ns)

    def _continue_from(self, n: int) -> None:
        self.llm.n_tokens = n  # what follows goes with the next eval

    def _evaluate(self, tokens: list[int]) -> None:
        if tokens:
            self.llm.eval(tokens)
            llama_cpp.llama_synchronize(self.llm.ctx)

    @contextmanager
    def _watch(self, n_prompt: int) -> Iterator["_Seen"]:
        seen = _Seen()
        llm, context = self.llm, self.llm._ctx
        decode, sample = context.decode, llm.sample

        def timed_decode(batch: Any) -> None:
            start, start_cpu = perf_counter_ns(), process_time_ns()
            decode(batch)
            llama_cpp.llama_synchronize(llm.ctx)
            elapsed = perf_counter_ns() - start
            if llm.n_tokens < n_prompt:  # the prompt's last token, which some versions evaluate again
                seen.prompt_ns += elapsed
                seen.prompt_cpu_ns += process_time_ns() - start_cpu
            else:
                seen.decode_ns += elapsed
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


class _Seen:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.prompt_ns = self.prompt_cpu_ns = self.decode_ns = self.n_passes = 0


class Free:
    """create_completion, not constrained, to the end of the line, which counts as a token."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._most = max(map(len, watched.task.sequences)) + 2
        self.prepare = watched.prepare

    def decide(self, case: Case) -> Outcome:
        """Answer."""
        return self._watched.decide(case, max_tokens=self._most, stop=["\n"])


class Guided:
    """create_completion with a GBNF grammar, which is read beforehand."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._grammar = LlamaGrammar.from_string(watched.task.grammar, verbose=False)
        self.prepare = watched.prepare

    def decide(self, case: Case) -> Outcome:
        """Answer."""
        return self._watched.decide(case, max_tokens=self._watched.task.max_tokens, grammar=self._grammar)


class Trie:
    """create_completion inside token_trie.constrain."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.prepare = watched.prepare

    def decide(self, case: Case) -> Outcome:
        """Answer."""
        task = self._watched.task
        with constrain(self._watched.llm, task.trie):
            return self._watched.decide(case, max_tokens=task.max_tokens)


class Handle:
    """token_trie.StreamHandle, on a context of its own."""

    def __init__(self, task: Task, *, jump_forward: bool = True) -> None:
        self._task = task
        self._handle = StreamHandle(task.model.llm, jump_forward=jump_forward)
        self._handle.set_token_trie(task.trie)
        if task.n_shared > 0:
            self._handle.prefill(task.cases[0].tokens[: task.n_shared])

    def prepare(self, case: Case) -> int:
        """Evaluate the prompt in the task's portions, from the shared beginning."""
        start = perf_counter_ns()
        for end in self._task.portions(case):
            self._handle.prefill(case.tokens[:end])
        return perf_counter_ns() - start

    def decide(self, case: Case) -> Outcome:
        """Answer."""
        before = self._handle.state
        start = perf_counter_ns()
        steps = list(self._handle.generate())
        wall_ns = perf_counter_ns() - start
        after = self._handle.state
        n_passes, n_on_device = after.n_passes - before.n_passes, after.n_on_device - before.n_on_device
        return Outcome(
            [step.token for step in steps],
            "".join(step.text for step in steps),
            wall_ns,
            after.generate_ns - before.generate_ns,
            after.decode_ns - before.decode_ns,
            n_passes,
            n_on_device * _BEST_BYTES + (n_passes - n_on_device) * self._task.model.row_bytes,
        )

    def close(self) -> None:
        """Free the context."""
        self._handle.close()
