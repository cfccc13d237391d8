"""GBNF, the grammars of llama.cpp itself."""

import llama_cpp

from bench import native
from bench.contenders.base import Measure, samples, timed
from bench.contenders.samplers import Owned, Pointer, chain
from bench.models import Model
from bench.sets import Answers


def literal(text: str) -> str:
    r"""Return a text as a GBNF literal: quoted, with \, " and control characters escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    # With four digits: behind \x0A, xgrammar would read the next characters as digits.
    return '"' + "".join(f"\\u{ord(c):04X}" if ord(c) < 32 else c for c in escaped) + '"'


def alternatives(names: list[str]) -> str:
    """Return the grammar of a set of names, in the dialect that GBNF and xgrammar share."""
    return "root ::= " + " | ".join(map(literal, names))


class Gbnf:
    """llama_sampler_init_grammar, first in the chain, where llama-cpp-python puts it."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return `build`, `apply` (also as `mask`: there is no fill), `cold` and `step`."""
        text = alternatives(answers.names).encode()
        sampler = Owned(self._init(text))
        steps = chain(self._init(text), llama_cpp.llama_sampler_init_greedy())

        def build(n: int) -> dict[str, native.Samples]:
            return {"build": samples([self._timed_init(text) for _ in range(n)])}

        def apply(n: int) -> dict[str, native.Samples]:
            out = native.apply(sampler.pointer, self._model, n)
            return {"apply": out, "mask": out}

        def cold(n: int) -> dict[str, native.Samples]:
            return {"cold": native.apply(sampler.pointer, self._model, n, cold=True)}

        def step(n: int) -> dict[str, native.Samples]:
            return {"step": native.step(steps.pointer, self._model, n)}

        return {"build": build, "apply": apply, "cold": cold, "step": step}

    def _init(self, text: bytes) -> Pointer:
        return llama_cpp.llama_sampler_init_grammar(self._model.vocab, text, b"root")

    def _timed_init(self, text: bytes) -> int:
        elapsed, sampler = timed(lambda: self._init(text))
        llama_cpp.llama_sampler_free(sampler)
        return elapsed
