"""llama.cpp without a constraint: the greedy step that every other one is compared with."""

import llama_cpp

from bench import native
from bench.contenders.base import Measure
from bench.contenders.samplers import chain
from bench.models import Model
from bench.sets import Answers


class Unconstrained:
    """A chain of llama_sampler_init_greedy alone."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return `step`, whatever the set."""
        greedy = chain(llama_cpp.llama_sampler_init_greedy())
        return {"step": lambda n: {"step": native.step(greedy.pointer, self._model, n)}}
