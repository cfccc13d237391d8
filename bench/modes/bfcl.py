"""The Berkeley Function Calling Leaderboard: calls, by its own checker, and requests for which no function fits."""

import json
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from token_trie import ToolCall, choose_tool

from bench.downloads import unpacked
from bench.models import Model, load
from bench.modes.tools import Call, read_call
from bench.results import Results, Share, Table, progress
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
    """Let everyone answer cases of all categories with all models."""
    results, table = Results("bfcl"), []
    for name in options.models:
        model = load(name, options, n_ctx=_N_CTX)
        for category in _CATEGORIES:
            cases = cases_of(category)[: options.cases or _N_CASES]
            rows = [row for case in progress(cases, f"{model.name}, {category}") for row in answers(model, case)]
            results.rows += [{key: value for key, value in row.items() if key != "call"} for row in rows]
            table.append({"model": model.name, "category": category, ">cases": len(cases), **_figures(rows)})
    results.tables.append(Table(_TITLE, table, _CAPTION))
    results.finish(options.output)


def answers(model: Model, case: Case) -> list[dict[str, Any]]:
    """Return what each way calls, whether it is right, and how long the processors took."""
    rows = []
    for way in _WAYS if "truth" in case else [*_WAYS][1:]:
        with watch() as took:
            call = _WAYS[way](model, case["question"][0], case["tools"])
        row = {"model": model.name, "id": case["id"], "by": way, "call": call, "cpu_s": took.cpu_ns / 1e9}
        rows.append(row | {"right": _checker()(case, call)})
    return rows


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(key: str, way: str) -> float | None:
        values = [row[key] for row in rows if row["by"] == way]
        return float(np.mean(values)) if values else None

    right = {way: mean("right", way) for way in _WAYS}
    first = "token-trie" if right["token-trie"] is not None else "auto"
    ours, theirs = mean("cpu_s", first), mean("cpu_s", "llama-cpp-python")
    shares = {f">{way}": None if share is None else Share(share) for way, share in right.items()}
    return shares | {">CPU s": ours, ">CPU s, llama-cpp-python": theirs, ">times": theirs / ours}
