"""Relations between answers that JevBench tests, in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RELATIONS = (
    "batch_solo",
    "batch_order",
    "duplicate_question",
    "batch_content",
    "batch_size_sweep",
    "option_permutation",
    "option_rename",
    "clone_symmetry",
    "description_swap",
    "name_description_conflict",
    "key_rename",
    "key_instruction_conflict",
    "noul_as_choice",
    "option_clone",
    "irrelevant_option",
    "remove_option_iia",
    "pairwise_iia",
)
_TOLERANCE = 0.05  # JevBench's own, of total variation


@dataclass(frozen=True)
class CoherenceRow:
    """The tests of one relation."""

    model: str
    relation: str
    tests: int
    held: int
    deviation: float  # the largest


def measure(
    model: str,
    answer: Callable[[Any, dict[str, Any]], dict[str, Any]],
    begin: Callable[[int], None],
    advance: Callable[[], None],
) -> list[CoherenceRow]:
    """Run the relations' tests of JevBench's small suite; nothing is remembered between requests."""
    from jevbench import load_suite  # type: ignore[import-not-found]
    from jevbench.backends import CallableBackend, Executor  # type: ignore[import-not-found]
    from jevbench.engine import run  # type: ignore[import-not-found]

    suite = load_suite("jevbench-mini")
    cases = [case for case in suite.cases if any(suite.plan.rows(case.id, name) for name in RELATIONS)]
    executor = Executor(CallableBackend(answer, name=model), cache_dir=None)
    tests: dict[str, dict[str, float]] = {name: {} for name in RELATIONS}
    begin(len(cases))
    for case in cases:
        result = run([case], executor, relations=list(RELATIONS), plan=suite.plan)
        if result["errors"]:
            raise RuntimeError(f"JevBench: {result['errors'][0]}")
        for outcome in result["outcomes"]:
            of_relation = tests[outcome["relation"]]
            known = of_relation.get(outcome["trial_id"], 0.0)
            of_relation[outcome["trial_id"]] = max(known, outcome["deviation"])
        advance()
    return [
        CoherenceRow(model, name, len(found), sum(d <= _TOLERANCE for d in found), max(found, default=0.0))
        for name, found in ((name, list(of_relation.values())) for name, of_relation in tests.items())
    ]
