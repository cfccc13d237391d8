"""sysone-bench: classes, yes or no, and levels of short texts, beside the accuracies that it has published."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from token_trie import Choice, Predicate, Score, decide

from bench.downloads import cloned
from bench.models import Model, load
from bench.results import Results, Share, Table, progress
from bench.timing import watch

_REPOSITORY, _COMMIT, _MANIFEST = "instax-dutta/sysone-bench", "1d746beaba", "datasets/v2/manifest.jsonl"
_EVERY = 4
_TITLE = "Right answers, in percent"
_REPORT = "results/v2/report-20260926/REPORT.md"
_CAPTION = f"""All: each part counts by the number of its decisions, 1,240 in all.
Of a level (sst5), the most probable one counts; published figures count the mean level, rounded.
Published: {_REPORT} of {_REPOSITORY}, on 4 processors; Qwen2.5 by constrained decoding."""
_PUBLISHED = {  # accuracies of the suites in the order of their names, of all, and seconds a case, the median
    "Qwen2.5 1.5B, published": ((0.9125, 0.5833, 0.4115, 0.2917, 0.3417, 0.7292, 0.6833, 0.525, 0.7812), 0.6048, 3.948),
    "Laya 421M, published": ((0.85, 0.8125, 0.6562, 0.7604, 0.5583, 0.7569, 0.45, 0.3333, 0.875), 0.6863, 0.588),
}
_WAYS: dict[str, dict[str, Any]] = {"": {}, ", raw": {"calibration": None}}
Case = dict[str, Any]


def cases() -> dict[str, list[Case]]:
    """Return the cases of each suite that are for evaluation, in the order of the file, which is sorted by class."""
    found: dict[str, list[Case]] = {}
    for line in (cloned(_REPOSITORY, _COMMIT) / _MANIFEST).read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["split"] == "evaluation":
            found.setdefault(case["suite_id"], []).append(case)
    return dict(sorted(found.items()))


def run(options: Any) -> None:
    """Answer some cases of each suite, evenly spaced, with all models."""
    results, suites, rows = Results("sysone"), cases(), list[dict[str, Any]]()
    sizes = {suite: sum(len(case["questions"]) for case in given) for suite, given in suites.items()}
    for name in options.models:
        model = load(name, options, n_ctx=4096)
        for suite, given in suites.items():
            step = max(len(given) // options.cases, 1) if options.cases else _EVERY
            for case in progress(given[::step], f"{model.name}, {suite}"):
                results.rows += _answers(model, suite, case)
        for way in _WAYS:
            own = [row for row in results.rows if (row["model"], row["way"]) == (model.name, way)]
            right = {suite: float(np.mean([row["right"] for row in own if row["suite"] == suite])) for suite in suites}
            n, seconds = len(own), float(np.median([row["s"] for row in own])) if way == "" else None
            mean = float(np.average([*right.values()], weights=[*sizes.values()]))
            rows.append(_row(f"{model.name}{way}", n, mean, seconds, right))
    for name, (shares, mean, seconds) in _PUBLISHED.items():
        rows.append(_row(name, sum(sizes.values()), mean, seconds, dict(zip(suites, shares, strict=True))))
    results.tables.append(Table(_TITLE, rows, _CAPTION))
    results.finish(options.output)


def _row(name: str, n: int, mean: float, seconds: float | None, right: dict[str, float]) -> dict[str, Any]:
    each = {f">{suite.replace('_', ' ')}": Share(share) for suite, share in right.items()}
    return {"by": name, ">decisions": n, ">all": Share(mean), **each, ">s a case": seconds}


def _answers(model: Model, suite: str, case: Case) -> Iterator[dict[str, Any]]:
    """Yield whether each question of a case is answered rightly, in each way."""
    questions = {each["qid"]: _question(each) for each in case["questions"]}
    for way, given in _WAYS.items():
        with watch() as took:
            found = decide(model.llm, case["state"], questions, **given)
        for qid, answer in found.items():
            shown = {"model": model.name, "suite": suite, "case": case["case_id"], "question": qid, "way": way}
            right = {"right": answer.value == case["expected"][qid]}
            if isinstance(questions[qid], Score):
                right["right_by_mean"] = int(answer.score + 0.5) == case["expected"][qid]
            yield shown | right | {"s": took.wall_ns / 1e9}


def _question(given: dict[str, Any]) -> Any:
    if given["type"] == "noul":
        return Predicate(given["instructions"])
    return {"choice": Choice, "score": Score}[given["type"]](given["instructions"], given["criteria"])
