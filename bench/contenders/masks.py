"""What llguidance and xgrammar have in common: a bit mask is filled, then applied to the logits."""

from abc import ABC, abstractmethod
from typing import Any

import llama_cpp

from bench import native
from bench.contenders.base import Measure, samples, timed
from bench.contenders.samplers import chain
from bench.models import Model
from bench.sets import Answers


def single_threaded_torch() -> Any:
    """Return torch, told to use one thread.

    On one row of logits more threads gain little where cores are free, lose much where they are not, and would spin on
    into the turn of the next contender.
    """
    import torch

    torch.set_num_threads(1)
    return torch


class MaskContender(ABC):
    """An engine called from Python, the interface that these packages have; llama.cpp then samples greedily."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._greedy = chain(llama_cpp.llama_sampler_init_greedy())

    @abstractmethod
    def text(self, answers: Answers) -> str:
        """Return the grammar of a set, made ahead of the timing."""

    @abstractmethod
    def build(self, text: str) -> Any:
        """Return a matcher at the beginning of an answer."""

    @abstractmethod
    def reset(self, matcher: Any) -> None:
        """Return a matcher to the beginning."""

    @abstractmethod
    def fill(self, matcher: Any) -> None:
        """Fill the bit mask."""

    @abstractmethod
    def apply(self) -> None:
        """Apply the bit mask to the model's live logits."""

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return `build`, and what belongs to one step: `fill`, `apply`, `mask`, `step`; `cold` apart."""
        text = self.text(answers)
        matcher = self.build(text)

        def build(n: int) -> dict[str, native.Samples]:
            return {"build": samples([timed(lambda: self.build(text))[0] for _ in range(n)])}

        def step(n: int) -> dict[str, native.Samples]:
            fill, apply, rest = [], [], []
            for _ in range(n):
                self.reset(matcher)
                self._model.live_logits[:] = self._model.logits
                fill.append(timed(lambda: self.fill(matcher))[0])
                apply.append(timed(self.apply)[0])
                rest.append(int(native.step(self._greedy.pointer, self._model, 1)[0]))
            self._model.live_logits[:] = self._model.logits
            mask = samples(fill) + samples(apply)
            return {"fill": samples(fill), "apply": samples(apply), "mask": mask, "step": mask + samples(rest)}

        def cold(n: int) -> dict[str, native.Samples]:
            out = []
            for _ in range(n):
                self.reset(matcher)
                native.evict()
                self._model.live_logits[:] = self._model.logits
                out.append(timed(lambda: self.fill(matcher))[0] + timed(self.apply)[0])
            self._model.live_logits[:] = self._model.logits
            return {"cold": samples(out)}

        return {"build": build, "step": step, "cold": cold}
