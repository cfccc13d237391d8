"""The JSON Schema Test Suite: which schemas are taken, which of its values can be written, and what is written."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice, permutations
from typing import Any, NamedTuple

import jsonschema
import llama_cpp
from llama_cpp.llama_grammar import json_schema_to_gbnf
from token_trie import ArgumentError, LimitError, StreamHandle
from token_trie.records.schema import read_schema

from bench.admits import admits
from bench.contenders import llguidance_tokenizer
from bench.downloads import unpacked
from bench.models import Model, load
from bench.results import Results, Table, progress

_VERSION = "4.26.0"
_DRAFTS = {"2020-12": jsonschema.Draft202012Validator, "7": jsonschema.Draft7Validator}
_OF_DRAFT = {"2020-12": "https://json-schema.org/draft/2020-12/schema", "7": "http://json-schema.org/draft-07/schema#"}
_MODES: list[dict[str, Any]] = [
    {"mode": "exact"},
    {"mode": "greedy"},
    {"mode": "sampled", "seed": 1, "temperature": 2.0},
]
_MAX_TOKENS, _SLOW_S = 48, 20
_CAPTION = """Valid and invalid: values that the suite has for the schemas that are taken, and that can be written.
What token-trie cannot write of them is mostly objects with properties that are not listed, values of other types beside
properties, texts in rarer forms of a format, control characters, and numbers of more than 16 digits."""
Takes = Callable[[Any], bool]


class _Group(NamedTuple):
    file: str
    schema: Any
    valid: list[Any]
    invalid: list[Any]

    @property
    def is_format(self) -> bool:
        """Whether it is about texts in a format or coding, which are annotations of the draft."""
        return "format/" in self.file or "content" in self.file


def _suite(draft: str) -> list[_Group]:
    """Return the groups of a draft, out of jsonschema's source distribution, which is downloaded once."""
    folder = unpacked("jsonschema", _VERSION, source=True)
    tests = folder / "json" / "tests" / f"draft{draft}"
    return [
        _Group(
            str(path.relative_to(tests)),
            {"$schema": _OF_DRAFT[draft], **group["schema"]} if isinstance(group["schema"], dict) else group["schema"],
            *([test["data"] for test in group["tests"] if test["valid"] is is_valid] for is_valid in (True, False)),
        )
        for path in sorted(tests.rglob("*.json"))
        for group in json.loads(path.read_text(encoding="utf-8"))
    ]


def _spellings(value: Any) -> Iterator[str]:
    """Return the JSON of a value, in several orders of its properties."""
    orders = permutations(value.items()) if isinstance(value, dict) else [value]
    for each in islice(orders, 24):
        text = json.dumps(dict(each) if isinstance(value, dict) else each, ensure_ascii=False, separators=(",", ":"))
        yield text


def _ours(_: Model, schema: Any) -> Takes:
    node = read_schema(schema)
    return lambda value: admits(node, value)


def _guidance(model: Model, schema: Any) -> Takes:
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    if LLMatcher.validate_grammar(grammar, llguidance_tokenizer(model)):
        raise ValueError(LLMatcher.validate_grammar(grammar, llguidance_tokenizer(model)))

    def takes(value: Any) -> bool:
        for text in _spellings(value):
            matcher = LLMatcher(llguidance_tokenizer(model), grammar)
            if matcher.try_consume_tokens(tokens := model.tokenize(text)) == len(tokens) and matcher.is_accepting():
                return True
        return False

    return takes


def _converter(model: Model, schema: Any) -> Takes:
    grammar = json_schema_to_gbnf(json.dumps(schema)).encode()

    def takes(value: Any) -> bool:
        return any(_grammar_takes(model, grammar, text) for text in _spellings(value))

    takes(None)
    return takes


def _grammar_takes(model: Model, grammar: bytes, text: str) -> bool:
    sampler = llama_cpp.llama_sampler_init_grammar(model.vocab, grammar, b"root")
    if not sampler:
        raise ValueError("no grammar")
    end = llama_cpp.llama_vocab_eos(model.vocab)
    try:
        for token in [*model.tokenize(text), end]:
            one = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(token, 1.0, 0.0))
            llama_cpp.llama_sampler_apply(sampler, llama_cpp.llama_token_data_array(one, 1, -1, False))
            if one[0].logit == float("-inf"):
                return False
            if token != end:
                llama_cpp.llama_sampler_accept(sampler, token)
        return True
    finally:
        llama_cpp.llama_sampler_free(sampler)


_CONTENDERS: dict[str, Callable[[Model, Any], Takes]] = {
    "token-trie": _ours,
    "llguidance": _guidance,
    "llama.cpp's converter": _converter,
}


def _refusals(draft: str) -> dict[str, int]:
    """Count the schemas that are refused, by the keyword that the error names."""
    n: Counter[str] = Counter()
    for group in _suite(draft):
        try:
            read_schema(group.schema)
        except ArgumentError as error:
            n[str(error).partition(": ")[0].rpartition("/")[2]] += 1
    return dict(n.most_common())


def _takes(name: str, model: Model, draft: str) -> dict[str, Any]:
    """Count what a contender takes of the suite."""
    n: Counter[str] = Counter()
    groups = _suite(draft)
    for group in progress(groups, f"{name}, draft {draft}"):
        try:
            takes = _CONTENDERS[name](model, group.schema)
        except Exception:  # each has errors of its own
            continue
        n["taken"] += 1
        n["valid"] += len(group.valid)
        n["written"] += sum(map(takes, group.valid))
        wrong = sum(map(takes, group.invalid))
        n["formats" if group.is_format else "wrong"] += wrong
        n["groups"] += wrong > 0 and not group.is_format
    return {
        "draft": draft,
        "": name,
        ">schemas taken": f"{n['taken']} of {len(groups)}",
        ">valid values": f"{n['written']} of {n['valid']} ({100 * n['written'] / max(n['valid'], 1):.1f} %)",
        ">invalid values": n["wrong"],
        ">of so many schemas": n["groups"],
        ">invalid texts of formats": n["formats"],
    }


def _writes(model: Model, draft: str) -> list[dict[str, Any]]:
    """Count what is written after prompts that hold values which the schema forbids."""
    rows = []
    groups = [group for group in _suite(draft) if not group.is_format]
    for options in _MODES:
        n: Counter[str] = Counter(dict.fromkeys(("valid", "wrong", "no end", "crash", "slow"), 0))
        with closing(StreamHandle(model.llm, n_ctx=1024)) as stream:
            for group in progress(groups, f"draft {draft}, {options['mode']}"):
                try:
                    read_schema(group.schema)
                except ArgumentError:
                    continue
                for value in group.invalid[:2] or [None]:
                    began = time.perf_counter()
                    n[_outcome(stream, draft, group.schema, value, options)] += 1
                    n["slow"] += time.perf_counter() - began > _SLOW_S
        rows.append({"draft": draft, "mode": options["mode"], **{f">{key}": count for key, count in n.items()}})
    return rows


def _outcome(stream: StreamHandle, draft: str, schema: Any, forbidden: Any, options: dict[str, Any]) -> str:
    text = json.dumps(forbidden, ensure_ascii=False)[:400]
    stream.prefill(f"JSON: {text}\nJSON: {text}\nJSON:")
    try:
        record = stream.fill(schema, max_tokens=_MAX_TOKENS, **options)
    except LimitError:
        return "no end"
    except Exception:  # any is a crash
        return "crash"
    return "valid" if _DRAFTS[draft](schema).is_valid(json.loads(record.text)) else "wrong"


def run(options: Any) -> None:
    """Count for two drafts."""
    results = Results("schemas")
    model = load(options.models[0], options, n_ctx=1024)
    rows = [_takes(name, model, draft) for draft in _DRAFTS for name in _CONTENDERS]
    results.tables.append(Table("The JSON Schema Test Suite, all groups", rows, _CAPTION))
    written = [row for draft in _DRAFTS for row in _writes(model, draft)]
    title = f"Records that {model.name} writes after prompts that hold forbidden values, formats aside"
    results.tables.append(
        Table(title, written, f"Slow: more than {_SLOW_S} s. No end: a value of {_MAX_TOKENS} tokens.")
    )
    results.figures["refused"] = {draft: _refusals(draft) for draft in _DRAFTS}
    results.finish(options.output)
