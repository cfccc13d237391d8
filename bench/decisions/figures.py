"""The figures of decisions: one row for each model, set and contender."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from token_trie.native.core import _core

from bench.decisions.contenders import FFI, FREE, GUIDED, STEPPING, TRIE, Outcome
from bench.decisions.tasks import Case, Task
from bench.decisions.tree import n_branch_points_after_first, skip_ratios

# Share of the decisions left out of sums of time; percentiles have all.
SLOWEST_LEFT_OUT = 0.05


@dataclass(frozen=True)
class DecisionRow:
    """The figures of one contender; unknown ones, and those that a mode has not, are None. Shares are in [0, 1]."""

    mode: str
    model: str
    backend: str
    device: str | None  # its name, and its driver's
    llama_cpp: str | None  # version of ggml, commit
    n_vocab: int
    set: str
    members: int
    decisions: int
    latency_ms: dict[str, float]  # p50, p90, p99 of a decision, its prompt evaluated
    prefill_ms: float  # p50 of evaluating what a request's prompt does not share with the others
    tokens_per_decision: float
    tokens_per_second: float
    tokens_per_second_vs_grammar: float | None
    decision_vs_grammar: float | None  # the grammar's median over this one's
    forward_passes_total: int
    forward_passes_saved: int  # of one a token
    bytes_per_pass: float | None  # that come from the device to the host; None where logits are on the host
    without_a_pass: float  # share of decisions that cost none
    passes_as_predicted: float | None  # share of decisions with just one pass a branch point after the first token's
    token_accuracy: float | None  # share that independent greedy decoding over the allowed sets agrees with
    grammar_agreement: float | None  # share of texts that are the grammar's
    differs_from_stepping: float | None  # share with another answer without jump-forward
    widest_gap_lost_nats: float | None  # the widest of these gaps between the two best, at the nearest tie
    valid: float  # share of members of the set
    right: float | None  # share that a person would agree with
    skip_ratio_mean: float | None
    skip_ratio_std: float | None
    host_overhead: float  # share of generate's time (llama-cpp-python: of the call's) outside forward passes
    host_overhead_wall: float  # the same of the caller's time


@dataclass
class Decided:
    """One case, decided by all once."""

    case: Case
    outcomes: dict[str, Outcome]
    prefill_ns: dict[str, int]
    greedy: list[int]
    nearest: float  # nats between the two best tokens at the nearest tie


@dataclass
class Log:
    """All decisions over one set."""

    task: Task
    decided: list[Decided] = field(default_factory=list)

    def row(self, who: str) -> DecisionRow:
        """Return the figures of a contender that took part."""
        task, model = self.task, self.task.model
        outcomes = [d.outcomes[who] for d in self.decided]
        wall = [o.wall_ns for o in outcomes]
        usual = self._usual(who)
        inner_ns, wall_ns, decode_ns = (
            sum(getattr(o, name) for o in usual) for name in ("inner_ns", "wall_ns", "decode_ns")
        )
        n_tokens = sum(len(o.tokens) for o in outcomes)
        n_passes = sum(o.n_passes for o in outcomes)
        steps = [task.tree.steps(o.tokens) for o in outcomes] if who in (TRIE, FFI, STEPPING) else []
        skipped = [ratio for sizes in steps if sizes for ratio in skip_ratios(sizes, model.n_vocab)]
        differs, gap = self._against_stepping(who)
        texts = {text.strip() for text in task.texts}
        return DecisionRow(
            mode=who,
            model=model.name,
            backend=model.backend,
            device=str(model.about) if model.about else None,
            llama_cpp=_core.llama_loaded(),
            n_vocab=model.n_vocab,
            set=task.name,
            members=len(task.trie),
            decisions=len(outcomes),
            latency_ms={f"p{p}": _round(float(np.percentile(wall, p)) / 1e6) for p in (50, 90, 99)},
            prefill_ms=_round(float(np.median([d.prefill_ns[who] for d in self.decided])) / 1e6),
            tokens_per_decision=_round(n_tokens / len(outcomes)),
            tokens_per_second=_round(self._speed(who)),
            tokens_per_second_vs_grammar=self._against_grammar(self._speed, who),
            decision_vs_grammar=self._against_grammar(self._decisions_per_second, who),
            forward_passes_total=n_passes,
            forward_passes_saved=n_tokens - n_passes,
            bytes_per_pass=_round(sum(o.n_bytes for o in outcomes) / n_passes)
            if model.leaves_device and n_passes else None,
            without_a_pass=_share(o.n_passes == 0 for o in outcomes),
            passes_as_predicted=_share(
                sizes is not None and o.n_passes == n_branch_points_after_first(sizes)
                for o, sizes in zip(outcomes, steps, strict=True)
            ) if who == FFI else None,
            token_accuracy=None if who == FREE else _share(d.outcomes[who].tokens == d.greedy for d in self.decided),
            grammar_agreement=_share(
                d.outcomes[who].text.strip() == d.outcomes[GUIDED].text.strip() for d in self.decided
            ) if self._has(GUIDED) else None,
            differs_from_stepping=differs,
            widest_gap_lost_nats=gap,
            valid=_share(o.text.strip() in texts for o in outcomes),
            right=_share(d.outcomes[who].text.strip() == d.case.expected for d in self.decided)
            if self.decided[0].case.expected is not None else None,
            skip_ratio_mean=float(np.mean(skipped)) if skipped else None,
            skip_ratio_std=float(np.std(skipped)) if skipped else None,
            host_overhead=_round(1 - decode_ns / inner_ns),
            host_overhead_wall=_round(1 - decode_ns / wall_ns),
        )  # fmt: skip

    def _has(self, who: str) -> bool:
        return who in self.decided[0].outcomes

    def _usual(self, who: str) -> list[Outcome]:
        """Return all outcomes but the slowest: where cores are shared, one pass in a hundred takes seconds."""
        outcomes = sorted((d.outcomes[who] for d in self.decided), key=lambda outcome: outcome.wall_ns)
        return outcomes[: len(outcomes) - int(len(outcomes) * SLOWEST_LEFT_OUT)]

    def _speed(self, who: str) -> float:
        usual = self._usual(who)
        return sum(len(o.tokens) for o in usual) / sum(o.wall_ns for o in usual) * 1e9

    def _decisions_per_second(self, who: str) -> float:
        return 1e9 / float(np.median([d.outcomes[who].wall_ns for d in self.decided]))

    def _against_grammar(self, speed: Callable[[str], float], who: str) -> float | None:
        return _round(speed(who) / speed(GUIDED)) if self._has(GUIDED) else None

    def _against_stepping(self, who: str) -> tuple[float | None, float | None]:
        if who != FFI or not self._has(STEPPING):
            return None, None
        lost = [d for d in self.decided if d.outcomes[FFI].tokens != d.outcomes[STEPPING].tokens]
        return len(lost) / len(self.decided), max((_round(d.nearest) for d in lost), default=None)


def _share(values: Any) -> float:
    found: Sequence[bool] = list(values)
    return round(sum(found) / len(found), 4)


def _round(value: float) -> float:
    return float(f"{value:.5g}")
