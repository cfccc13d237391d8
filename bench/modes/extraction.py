"""Extractions: 63 texts with the record that each states, of six kinds of schema."""

import json
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

from llama_cpp import LogitsProcessorList
from llama_cpp.llama_grammar import LlamaGrammar
from token_trie import StreamHandle, TokenTrieError
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import Completion
from bench.models import Model, load
from bench.results import Results, Share, Table, progress
from bench.sets import data
from bench.timing import watch

_MAX_TOKENS = 200
_TITLE = "Extractions: records that are equal to what a text states, 63 texts that chose no default"
_NOTE = "Prompts have the model's chat template. Seconds are those after the prompts, of all records."


class _Case(NamedTuple):
    kind: str
    schema: dict[str, Any]
    text: str
    gold: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat that asks for the record."""
        schema = json.dumps(self.schema)
        absent = (
            "Set what the text does not state to null"
            if '"null"' in schema
            else "Leave out what the text does not state"
        )
        task = f"Extract the data of the text as JSON. {absent}."
        asked = f"{task}\n\nSchema: {schema}\n\nText: {self.text}\n\nJSON:"
        return [{"role": "user", "content": asked}]


def cases_of(half: int) -> Iterator[_Case]:
    """Yield half of the cases: 1 is held out, 0 chose the defaults."""
    for group in data("extractions.json"):
        for text, gold in group["rows"][half::2]:
            yield _Case(group["kind"], group["schema"], text, gold)


def is_right(value: Any, gold: Any, *, is_loose: bool) -> bool:
    """Return whether a value is the expected one; loosely, a scalar may have more text around it."""
    if isinstance(value, dict) and isinstance(gold, dict):
        value, gold = ({k.casefold(): v for k, v in each.items() if v is not None} for each in (value, gold))
        same = value.keys() == gold.keys()
        return same and all(is_right(value[k], v, is_loose=is_loose) for k, v in gold.items())
    if isinstance(value, list) and isinstance(gold, list):
        pairs = zip(value, gold, strict=False)
        return len(value) == len(gold) and all(is_right(*pair, is_loose=is_loose) for pair in pairs)
    if is_loose and not isinstance(value, (dict, list)):
        return str(gold).casefold() in str(value).casefold()
    if isinstance(value, str) and isinstance(gold, str):
        return value.strip(" .").casefold() == gold.casefold()
    return value is gold or (type(value) in (int, float) and type(gold) in (int, float) and value == gold)


def _lacks_items(value: Any, gold: Any) -> bool:
    """Return whether a list is empty that the text fills."""
    if not isinstance(value, dict):
        return False
    return any(value.get(key) == [] and items for key, items in gold.items() if isinstance(items, list))


class _Answer(NamedTuple):
    value: Any
    ms: float
    cpu_ms: float


class _Trie:
    """`StreamHandle.fill`."""

    name = "token-trie"

    def __init__(self, model: Model, prompts: list[list[int]]) -> None:
        self._handle = StreamHandle(model.llm)

    def write(self, case: _Case, prompt: list[int]) -> _Answer:
        self._handle.prefill(prompt)
        with watch() as took:
            try:
                value = self._handle.fill(case.schema, max_tokens=_MAX_TOKENS).value
            except TokenTrieError:
                value = None
        return _Answer(value, took.wall_ns / 1e6, took.cpu_ns / 1e6)


class _Grammar:
    """`Llama.create_completion` with the grammar that response_format makes of the schema."""

    name = "llama-cpp-python"

    def __init__(self, model: Model, prompts: list[list[int]]) -> None:
        self._completion = Completion(model, prompts)
        self._limits: dict[str, dict[str, Any]] = {}

    def write(self, case: _Case, prompt: list[int]) -> _Answer:
        schema = json.dumps(case.schema)
        if schema not in self._limits:
            self._limits[schema] = self._limit(schema)
        limit = self._limits[schema]
        for processor in limit.get("logits_processor", ()):
            processor.reset()
        self._completion.prepare(prompt)
        outcome = self._completion.answer(prompt, max_tokens=_MAX_TOKENS, **limit)
        try:
            value = json.loads(outcome.text)
        except ValueError:
            value = None
        return _Answer(value, outcome.wall_ns / 1e6, outcome.cpu_ns / 1e6)

    def _limit(self, schema: str) -> dict[str, Any]:
        return {"grammar": LlamaGrammar.from_json_schema(schema, verbose=False)}


class _Outlines(_Grammar):
    """The same with the logits processor of outlines."""

    name = "outlines"

    def __init__(self, model: Model, prompts: list[list[int]]) -> None:
        import outlines

        super().__init__(model, prompts)
        self._model = outlines.from_llamacpp(model.llm)

    def _limit(self, schema: str) -> dict[str, Any]:
        import outlines

        made = outlines.Generator(self._model, outlines.types.JsonSchema(schema)).logits_processor
        return {"logits_processor": LogitsProcessorList([made])}


def run(options: Any) -> None:
    """Let everyone extract all records with all models."""
    results, lines = Results(options.mode), []
    cases = list(cases_of(1))
    for name in options.models:
        model = load(name, n_ctx=1024, n_batch=512, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
        lines += _measure(model, cases[:: -(-len(cases) // options.prompts)])
    results.tables.append(Table(_TITLE, lines, _NOTE))
    results.finish(options.output)


def _measure(model: Model, cases: list[_Case]) -> list[dict[str, Any]]:
    prompts = [tokenize_prompt(model.llm, case.messages) for case in cases]
    kinds: list[Any] = [_Grammar, *([_Outlines] if find_spec("outlines") else []), _Trie]
    contenders = [kind(model, prompts) for kind in kinds]
    found: dict[str, list[_Answer]] = {each.name: [] for each in contenders}
    for case, prompt in zip(progress(cases, model.name), prompts, strict=True):
        for each in contenders:
            found[each.name].append(each.write(case, prompt))
    base = sum(answer.cpu_ms for answer in found[_Grammar.name])
    return [_row(model, who, cases, answers, base) for who, answers in found.items()]


def _row(model: Model, who: str, cases: list[_Case], answers: list[_Answer], base: float) -> dict[str, Any]:
    right, asked = Counter[str](), Counter(case.kind for case in cases)
    for case, answer in zip(cases, answers, strict=True):
        right[case.kind] += is_right(answer.value, case.gold, is_loose=case.kind == "untyped")
    empty = sum(_lacks_items(answer.value, case.gold) for case, answer in zip(cases, answers, strict=True))
    cpu_ms = sum(answer.cpu_ms for answer in answers)
    return {
        "model": model.name,
        "by": who,
        **{f">{kind} of {n}": right[kind] for kind, n in asked.items()},
        ">right": Share(right.total() / len(cases)),
        ">lists empty": empty,
        ">seconds": sum(answer.ms for answer in answers) / 1e3,
        ">CPU seconds": cpu_ms / 1e3,
        ">times less CPU": base / cpu_ms,
    }
