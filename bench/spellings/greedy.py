"""Greedy decisions beside GBNF, both one token a pass."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from bench.decisions.contenders import Guided, Handle, Watched
from bench.decisions.tasks import Task


@dataclass
class Decided:
    """How many decisions were the same."""

    model: str
    set: str
    decisions: int = 0
    identical: int = 0
    first_difference: str = ""


def decide(task: Task, advance: Callable[[], object]) -> Decided:
    """Let both decide each case, and compare the tokens."""
    out = Decided(task.model.name, task.name)
    watched = Watched(task)
    guided = Guided(watched)
    with closing(Handle(task, jump_forward=False)) as handle:
        for case in task.cases:
            tokens = []
            for contender in (handle, guided):
                contender.prepare(case)
                tokens.append(contender.decide(case).tokens)
            out.decisions += 1
            out.identical += tokens[0] == tokens[1]
            if tokens[0] != tokens[1]:
                out.first_difference = out.first_difference or f"ours {tokens[0]}, GBNF {tokens[1]}"
            advance()
    return out
