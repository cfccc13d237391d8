"""The Berkeley Function Calling Leaderboard: calls, by its own checker, and requests for which no function fits."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from statistics import fmean
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from token_trie import ToolCall, choose_tool

from bench.downloads import unpacked
from bench.models import Model, load
from bench.modes.tools import Call, read_call
from bench.results import Results, Table, progress
from bench.timing import watch

_VERSION = "2026.3.23"
_CATEGORIES = ("simple_python", "multiple", "live_simple", "live_multiple", "irrelevance", "live_irrelevance")
_N_CASES, _N_CTX, _MAX_TOKENS = 60, 8192, 256
_TITLE = "Right calls, and in the categories of irrelevance no call"
_CAPTION = """token-trie: choose_tool by default; "auto": where it may answer in text instead, after the same prompt.
llama-cpp-python: the model's template, free text, in which a call is sought. CPU s: a case, its prompt included."""
Case = dict[str, Any]


@cache
def _checker() -> Callable[[Case, Call], bool]:
    """Return the suite's checker, which needs of its list of models only how they write a dot in a name."""
    sys.path.append(str(unpacked("bfcl_eval", _VERSION)))
    config: Any = ModuleType("bfcl_eval.constants.model_config")
    config.MODEL_CONFIG_MAPPING = {"": SimpleNamespace(underscore_to_dot=False)}
    sys.modules[config.__name__] = config
    from bfcl_eval.constants.enums import Language  # type: ignore[import-not-found]
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # type: ignore[import-not-found]

    def is_right(case: Case, call: Call) -> bool:
        if "truth" not in case or call is None:
            return "truth" not in case and call is None
        name, arguments = call
        given = case["function"], [{name: arguments}], case["truth"], Language.PYTHON, case["category"], ""
        return isinstance(arguments, dict) and bool(ast_checker(*given)["valid"])

    return is_right


def cases_of(category: str) -> list[Case]:
    """Return the cases of a category in an order by chance, with their tools in OpenAI's shape."""
    folder = unpacked("bfcl_eval", _VERSION) / "bfcl_eval" / "data"
    name = f"BFCL_v4_{category}.json"
    cases, answers = _lines(folder / name), _lines(folder / "possible_answer" / name)
    truths = {answer["id"]: {"truth": answer["ground_truth"]} for answer in answers}
    order = np.random.default_rng(0).permutation(len(cases))
    return [
        {
            **cases[i],
            **truths.get(cases[i]["id"], {}),
            "category": category,
            "tools": [{"type": "function", "function": _translated(each)} for each in cases[i]["function"]],
        }
        for i in order
    ]


def _lines(path: Any) -> list[Case]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _translated(value: Any) -> Any:
    """Return a function whose parameters have the names of JSON Schema's types."""
    if isinstance(value, list):
        return [_translated(each) for each in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _translated(each) for key, each in value.items()}
    kind = value.get("type")
    return plain | ({"type": _TYPES.get(kind, kind)} if isinstance(kind, str) else {})


_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


def _ours(model: Model, messages: Any, tools: Any, **options: Any) -> Call:
    answer = choose_tool(model.llm, messages, tools, **options)
    return (answer.name, answer.arguments) if isinstance(answer, ToolCall) else None


def _auto(model: Model, messages: Any, tools: Any) -> Call:
    return _ours(model, messages, tools, tool_choice="auto")


def _free(model: Model, messages: Any, tools: Any) -> Call:
    found: Any = model.llm.create_chat_completion(messages, tools=tools, temperature=0, max_tokens=_MAX_TOKENS)
    return read_call(found["choices"][0]["message"]["content"] or "", tools)


_WAYS: dict[str, Callable[[Model, Any, Any], Call]] = {"token-trie": _ours, "auto": _auto, "llama-cpp-python": _free}


def run(options: Any) -> None:
    """Let everyone answer cases of all categories in turn with all models, or until interrupted."""
    results, table = Results("bfcl"), []
    for name in options.models:
        model = load(name, options, n_ctx=_N_CTX)
        turns = [*zip(*(cases_of(category)[: options.cases or _N_CASES] for category in _CATEGORIES), strict=True)]
        rows: list[dict[str, Any]] = []
        with suppress(KeyboardInterrupt):
            for turn in progress(turns, model.name):
                rows += [row for case in turn for row in answers(model, case)]
        results.rows += rows
        for category in _CATEGORIES:
            of_it = [row for row in rows if row["category"] == category]
            table.append({"model": model.name, "category": category, **_figures(of_it)})
    results.tables.append(Table(_TITLE, table, _CAPTION))
    results.finish(options.output)


def answers(model: Model, case: Case) -> list[dict[str, Any]]:
    """Return of each way whether its call is right, and the seconds of the processors."""
    rows = []
    for way in _WAYS if "truth" in case else [*_WAYS][1:]:
        with watch() as took:
            call = _WAYS[way](model, case["question"][0], case["tools"])
        given = {"model": model.name, "category": case["category"], "id": case["id"], "by": way}
        rows.append(given | {"right": _checker()(case, call), "cpu_s": took.cpu_ns / 1e9})
    return rows


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def of(way: str, key: str) -> list[float]:
        return [row[key] for row in rows if row["by"] == way]

    theirs = of("llama-cpp-python", "cpu_s")
    ours = of("token-trie", "cpu_s") or of("auto", "cpu_s")
    right = {way: of(way, "right") for way in _WAYS}
    shown = {f">{way}": f"{sum(each)} of {len(each)}" if each else None for way, each in right.items()}
    seconds = {">CPU s": fmean(ours), ">CPU s, llama-cpp-python": fmean(theirs), ">times": fmean(theirs) / fmean(ours)}
    return shown | seconds
