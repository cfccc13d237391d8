"""A decision in a terminal."""

from __future__ import annotations

import math

from rich.console import Group
from rich.table import Table
from rich.text import Text

from token_trie.decisions.decision import LOW_MASS, Decision
from token_trie.show.terminal import describe_certainty, describe_mass, percent_bar
from token_trie.show.texts import percent, printable
from token_trie.show.trie import plain


def draw_whole(decision: Decision[str], n: int) -> Group:
    """Draw the n best answers of a decision whose mode takes whole answers."""
    known = decision.probabilities is not None
    best = decision.top(n) if known else [(c.value, math.exp(c.logprob)) for c in decision.candidates]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for value, p in best:
        name = plain(value)
        table.add_row(f"[bold green]{name}" if value == decision.value else name, percent_bar(p), percent(p))
    lines: list[Text] = []
    if known:
        if (n_more := len(decision.trie) - len(best)) > 0:
            table.add_row(f"[dim]… {n_more:,} more", "", f"[dim]{percent(max(0.0, 1 - sum(p for _, p in best)))}")
        mass = decision.mass or 0.0
        lines.append(Text(describe_mass(mass), "yellow" if mass < LOW_MASS else ""))
        lines.append(Text(describe_certainty(decision)))
    else:
        lines.append(Text(f"Of all that the model could write here. {_describe_gap(decision)}"))
    stats = decision.stats
    passes = f"{stats.n_passes:,} forward pass{'es' if stats.n_passes != 1 else ''}"
    nodes = f"{stats.n_evaluated:,} node{'s' if stats.n_evaluated != 1 else ''}"
    work = f"{nodes} in {passes}; {describe_time(decision)}"
    answer = Text.assemble("answer  ", (printable(decision.text), "bold green"), "\n")
    return Group(answer, table, "", *lines, Text(work, "dim"))


def describe_time(decision: Decision[str]) -> str:
    """Return how long a decision took, as a sentence."""
    stats = decision.stats
    return f"{stats.decide_ms:.1f} ms after {stats.prompt_ms:.1f} ms for {stats.n_prompt} prompt tokens"


def _describe_gap(decision: Decision[str]) -> str:
    if decision.gap == 0:
        return "It is proved that no answer left out is more probable."
    bound = min(0.0, decision.candidates[-1].logprob + decision.gap)
    return f"An answer left out has {percent(math.exp(bound))} at most."
