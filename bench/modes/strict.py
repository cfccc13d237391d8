"""The same decisions by a GBNF grammar in llama.cpp (strict-guided), and over the C ABI (strict-trie-ffi)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import TokenTrie
from token_trie.cli.ask import ACTIONS, prompt_for
from token_trie.native.ffi import check, check_pointer, ffi, lib, new_struct

from bench.completion import Completion, Outcome, portions, shared_tokens
from bench.models import Model, find, load
from bench.results import Results, Share, Table, progress
from bench.tasks import MAIN_SET, N_CTX, Task, requests
from bench.timing import watch

GUIDED, FFI = "strict-guided", "strict-trie-ffi"
Answer = Callable[[list[int]], Outcome]


def run(options: Any) -> None:
    """Decide each case by the mode's way, and beside it by the grammar."""
    (name,) = options.models
    model = load(name, options, n_ctx=N_CTX)
    task = _task(model, options.prompt, options.token_tree_descriptor)
    tree = _Tree(task.sequences, [t for t in range(model.n_vocab) if llama_cpp.llama_vocab_is_eog(model.vocab, t)])
    completion = Completion(model, task.prompts)
    grammar = LlamaGrammar.from_string(task.grammar, verbose=False)
    walks = []
    with ExitStack() as stack:
        ways: dict[str, Answer] = {GUIDED: partial(completion.answer, max_tokens=task.max_tokens, grammar=grammar)}
        if options.mode == FFI:
            ways[FFI] = stack.enter_context(_foreign_host(find(name), task, options))
        decided: dict[str, list[Outcome]] = {who: [] for who in ways}
        for answer in ways.values():
            answer(task.prompts[0])  # warms up
        for turn, prompt in enumerate(progress(task.prompts * (options.rounds or 1), task.name)):
            for who in sorted(ways, reverse=turn % 2 == 1):
                decided[who].append(ways[who](prompt))
            completion.prepare(prompt)
            walks.append(tree.walk(model))
    figures = _figures(options.mode, model, decided, tree, walks)
    results = Results(options.mode, figures=figures)
    shown = {"decisions": len(walks)} | {f">{key}": value for key, value in figures.items() if key != "model"}
    results.tables.append(Table(f"{model.name}, {task.name}", [shown]))
    results.finish(options.output)


def _task(model: Model, prompt: str | None, descriptor: Path | None) -> Task:
    """Return the bundled requests over 30 actions, or a prompt and a set of the user's in place of these."""
    cases = [(prompt, "")] if prompt else [(prompt_for(each["text"]), each["action"]) for each in requests()]
    if descriptor is not None:
        return Task(descriptor.stem, model, cases, TokenTrie.from_payload(descriptor.read_bytes()))
    return Task(MAIN_SET, model, cases, TokenTrie.from_choices(model.llm, list(ACTIONS), prompt=cases[0][0]))


@contextmanager
def _foreign_host(path: Path, task: Task, options: Any) -> Iterator[Answer]:
    """Open the model by nothing but functions of token_trie.h, and yield what answers a prompt."""
    layers = 0 if options.device == "cpu" else -1
    sizes = {"n_ctx": N_CTX, "n_batch": 512, "n_threads": options.threads, "n_gpu_layers": layers}
    params = new_struct("token_trie_stream_params", **sizes)
    stream = check_pointer(lib.token_trie_stream_open_file(str(path).encode(), params))
    payload = task.trie.payload().encode()
    members = check_pointer(lib.token_trie_set_read(lib.token_trie_stream_get_vocab(stream), 0, payload, len(payload)))
    check(lib.token_trie_stream_set_token_trie(stream, members, ffi.NULL))
    lib.token_trie_set_free(members)
    n_shared = shared_tokens(task.prompts)

    def state() -> Any:
        out = new_struct("token_trie_stream_state")
        check(lib.token_trie_stream_get_state(stream, out))
        return out

    def answer(prompt: list[int]) -> Outcome:
        for end in portions(prompt, n_shared):
            check(lib.token_trie_stream_prefill(stream, prompt[:end], end))
        before = state()
        with watch() as took:
            check(lib.token_trie_stream_generate(stream, task.max_tokens, ffi.NULL, ffi.NULL))
        after = state()
        tokens, n = ffi.new("llama_token[]", after.n_tokens), ffi.new("size_t *")
        check(lib.token_trie_stream_get_tokens(stream, tokens, after.n_tokens, n))
        return Outcome(list(tokens)[len(prompt) :], wall_ns=took.wall_ns, n_passes=after.n_passes - before.n_passes)

    try:
        yield answer
    finally:
        lib.token_trie_stream_close(stream)


class _Tree:
    """The set once more, in plain Python: the end of an answer is allowed after each member."""

    def __init__(self, sequences: Sequence[Sequence[int]], end_tokens: list[int]) -> None:
        self._members = {tuple(sequence) for sequence in sequences}
        self._end_tokens = end_tokens
        self._children: dict[tuple[int, ...], set[int]] = {}
        for member in self._members:
            for n in range(len(member)):
                self._children.setdefault(member[:n], set()).add(member[n])

    def allowed(self, text: tuple[int, ...]) -> list[int]:
        """Return the tokens that may follow; none where an answer is over."""
        children = sorted(self._children.get(text, ()))
        return children + (self._end_tokens if children and text in self._members else [])

    def n_allowed(self, answer: Sequence[int]) -> list[int]:
        """Return the size of each set that a member's tokens, and its end, were taken from."""
        sizes = [len(self.allowed(tuple(answer[:n]))) for n in range(len(answer) + 1)]
        return sizes if sizes[-1] else sizes[:-1]

    def walk(self, model: Model) -> list[int]:
        """Return the best answer, token by token, by llama-cpp-python's logits after an evaluated prompt."""
        answer: tuple[int, ...] = ()
        while allowed := self.allowed(answer):
            token = allowed[int(np.argmax(model.logits_now()[allowed]))]
            if token not in self._children[answer]:
                break
            answer += (token,)
            if answer in self._children:
                model.llm.eval([token])
        return list(answer)


def _figures(
    mode: str, model: Model, decided: dict[str, list[Outcome]], tree: _Tree, walks: list[list[int]]
) -> dict[str, Any]:
    outcomes = decided[mode]
    n_tokens, n_passes = sum(len(each.tokens) for each in outcomes), sum(each.n_passes for each in outcomes)
    skipped = [] if mode == GUIDED else [
        (model.n_vocab - n) / model.n_vocab for each in outcomes for n in tree.n_allowed(each.tokens)
    ]  # fmt: skip
    return {
        "model": model.name,
        "skip_ratio_mean": float(np.mean(skipped)) if skipped else None,
        "skip_ratio_std": float(np.std(skipped)) if skipped else None,
        "tokens_per_second": round(_speed(outcomes), 2),
        "tokens_per_second_vs_grammar": round(_speed(outcomes) / _speed(decided[GUIDED]), 4),
        "token_accuracy": Share(np.mean([each.tokens == walk for each, walk in zip(outcomes, walks, strict=True)])),
        "forward_passes_saved": n_tokens - n_passes,
        "forward_passes_total": n_passes,
    }


def _speed(outcomes: list[Outcome]) -> float:
    return sum(len(each.tokens) for each in outcomes) / sum(each.wall_ns for each in outcomes) * 1e9
