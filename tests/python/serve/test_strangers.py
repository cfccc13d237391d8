"""Names of control tokens in what strangers write stay text, through every door that takes such text.

In the model of these tests, no logits are numbers after a control token "[TRAP]": a door that reads it fails.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import httpx
import llama_cpp
import pytest
from serving import Serving
from tiny_model import write_tiny_model
from token_trie import (
    Choice,
    ContextError,
    Examples,
    Predicate,
    StreamHandle,
    TokenTrie,
    VocabularyError,
    choose,
    choose_list,
    choose_many,
    choose_tool,
    decide,
    decide_many,
    demo_model,
    evaluate,
    explain,
    fill,
    score,
)
from token_trie.cli import main
from token_trie.engines.data import Labeller

TRAP = "[TRAP]"
TEXT = f"I am {TRAP} angry"
CHOICES = ["yes", "no", f"no {TRAP} yes"]
MESSAGES = [{"role": "user", "content": TEXT}]
CHAT = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}Answer:"
QUESTION = Choice("Which?", ["yes", "no"])
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": TEXT,
            "parameters": {"type": "object", "properties": {"a": {"enum": ["x", "y"], "description": TEXT}}},
        },
    }
    for name in ("f", "g")
]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [TEXT, "no"]}}, "required": ["a"]}


class Place(NamedTuple):
    """Where strangers come in."""

    llm: Any
    model: Path
    url: str
    folder: Path
    run: Callable[..., None]
    """Runs the command line; it is to end well."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trap") / "trap.gguf"
    said = {"tokenizer.chat_template": CHAT}
    write_tiny_model(path, more=[(TRAP, gguf.TokenType.CONTROL)], said=said, broken=[TRAP])
    return path


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[Any]:
    llm = llama_cpp.Llama(str(model), n_ctx=512, n_threads=1, verbose=False)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def trapped(model: Path) -> Iterator[str]:
    """Where a server with the model listens."""
    with Serving(model, "--n-ctx", "1024") as serving:
        yield serving.url


@pytest.fixture
def place(llm: Any, model: Path, trapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Place:
    def run(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["token-trie", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, capsys.readouterr().err

    return Place(llm, model, trapped, tmp_path, run)


def on_handle(ask: Callable[[StreamHandle], object], prompt: Any = "Answer:") -> Callable[[Place], None]:
    def asked(place: Place) -> None:
        with StreamHandle(place.llm) as handle:
            handle.prefill(prompt)
            ask(handle)

    return asked


def classify(place: Place, **options: Any) -> None:
    sklearn = pytest.importorskip("token_trie.engines.sklearn")
    classifier = sklearn.TrieClassifier(place.model, calibration=None, n_ctx=512, n_threads=1, **options)
    classifier.fit([TEXT, "fine"], ["yes", "no"]).predict([TEXT])


def label_cells(place: Place) -> None:
    found = Labeller(place.model, "Review: {text} Answer:", CHOICES, n_ctx=512)({"text": [TEXT, "fine"]})
    assert found["error"].tolist() == ["", ""]


def table(place: Place) -> Path:
    path = place.folder / "in.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "gold"], *([TEXT, "yes"], ["fine", "no"]) * 6])
    return path


def label(place: Place, *options: str) -> None:
    chosen = [part for text in CHOICES for part in ("-c", text)]
    made = ("-m", place.model, "--n-ctx", 512, "-o", place.folder / "out.csv")
    place.run("label", table(place), "-p", "{text}", *chosen, *made, *options)


def post(route: str, **body: Any) -> Callable[[Place], None]:
    def asked(place: Place) -> None:
        answer = httpx.post(f"{place.url}{route}", json={"model": "any", **body}, timeout=60)
        assert answer.status_code == 200, answer.text

    return asked


ASKED: dict[str, Any] = {"q": {"type": "choice", "instructions": TEXT, "criteria": {"a": TEXT, "b": None}}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/systemone": {"state": TEXT, "context": TEXT, "questions": ASKED},
    "/v1/decisions": {
        "input": TEXT,
        "questions": [
            {"type": "choice", "name": "q", "instructions": TEXT, "choices": [{"value": "a"}, {"value": TEXT}]}
        ],
    },
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"prompt": TEXT, "max_tokens": 3},
}


def vllm(place: Place) -> None:
    pytest.importorskip("vllm")
    import transformers
    from token_trie.engines.vllm import EngineVocabulary

    path = Path(demo_model())
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.add_tokens([transformers.AddedToken("[MORE]", special=True)])  # which is no named special token
    vocabulary = EngineVocabulary(len(tokenizer), tokenizer)
    for name in ("<|im_end|>", "[MORE]"):
        try:
            members = vocabulary.set_of(("yes", f"no {name} yes"), [], None)
        except VocabularyError:
            continue
        assert not any(tokenizer.convert_tokens_to_ids(name) in leaf.tokens for leaf in members)


DOORS: dict[str, Callable[[Place], object]] = {
    "choose, messages": lambda to: choose(to.llm, MESSAGES, CHOICES, probabilities=True),
    "choose, choices": lambda to: choose(to.llm, "Answer:", CHOICES, probabilities=True),
    "choose_many": lambda to: list(choose_many(to.llm, [MESSAGES] * 3, CHOICES, probabilities=True)),
    "choose_list": lambda to: choose_list(to.llm, MESSAGES, CHOICES, max_items=2),
    "score": lambda to: score(to.llm, MESSAGES, CHOICES),
    "explain": lambda to: explain(to.llm, MESSAGES, CHOICES),
    "fill": lambda to: fill(to.llm, MESSAGES, SCHEMA),
    "choose_tool": lambda to: choose_tool(to.llm, MESSAGES, TOOLS),
    "a set": lambda to: score(to.llm, "Answer:", TokenTrie.from_choices(to.llm, CHOICES)),
    "decide, state": lambda to: decide(to.llm, TEXT, QUESTION),
    "decide, JSON": lambda to: decide(to.llm, {TRAP: [TEXT]}, QUESTION),
    "decide, turns": lambda to: decide(to.llm, MESSAGES, QUESTION),
    "decide, question": lambda to: decide(to.llm, "It is.", {TRAP: Predicate(TEXT, TEXT, "no")}),
    "decide, options": lambda to: decide(to.llm, "It is.", Choice("Which?", {TRAP: TEXT, "b": [TRAP, TEXT]})),
    "decide, listed": lambda to: decide(to.llm, TEXT, Choice(TEXT, [TEXT, "no"]), form="listed", orders=2),
    "decide, reproducible": lambda to: decide(to.llm, TEXT, Choice(TEXT, [TEXT, "no"]), reproducible=True),
    "decide, examples": lambda to: decide(to.llm, "no", QUESTION, examples=Examples([TEXT, TRAP], ["yes", "no"])),
    "decide_many": lambda to: list(decide_many(to.llm, [TEXT] * 3, QUESTION)),
    "evaluate": lambda to: evaluate(to.llm, [TEXT, "no"] * 6, ["yes", "no"] * 6, QUESTION, ways=["exact"]),
    "handle, messages": on_handle(lambda handle: handle.choose(CHOICES), MESSAGES),
    "handle, choices": on_handle(lambda handle: handle.choose(CHOICES, probabilities=True)),
    "handle, list": on_handle(lambda handle: handle.choose_list(CHOICES, max_items=2)),
    "handle, score": on_handle(lambda handle: handle.score(CHOICES, prompt=MESSAGES)),
    "handle, decide": on_handle(lambda handle: handle.decide(Choice(TEXT, [TEXT, "no"]), state=TEXT)),
    "handle, fill": on_handle(lambda handle: handle.fill(SCHEMA)),
    "estimator, prompt": lambda to: classify(to, prompt="{text} Answer:"),
    "estimator, question": lambda to: classify(to, question="Which?"),
    "labeller": label_cells,
    "label": label,
    "label, chat": lambda to: label(to, "--chat"),
    "label, question": lambda to: label(to, "--question", "Which?"),
    "command evaluate": lambda to: to.run(
        *("evaluate", table(to), "-p", "{text}", "--gold", "gold", "-c", "yes", "-c", "no", "-m", to.model),
        *("--n-ctx", 512, "--no-cache", "--way", "exact"),
    ),
    "command choose": lambda to: to.run(
        *("choose", "--prompt", TEXT, "--chat", "-c", "yes", "-c", CHOICES[2], "-m", to.model, "--top", 2)
    ),
    "command decide": lambda to: to.run(
        *("decide", "--state", TEXT, "--choice", f"q={TEXT}:yes,no", "-m", to.model, "--n-ctx", 512)
    ),
    **{f"HTTP {route}": post(route, **body) for route, body in BODIES.items()},
    "HTTP, choices": post("/v1/chat/completions", messages=MESSAGES, guided_choice=CHOICES),
    "HTTP, schema": post("/v1/chat/completions", messages=MESSAGES, structured_outputs={"json": SCHEMA}),
    "HTTP, tools": post("/v1/chat/completions", messages=MESSAGES, tools=TOOLS, tool_choice="required"),
    "vLLM": vllm,
}


@pytest.mark.parametrize("door", DOORS)
def test_names_of_control_tokens_in_strangers_text_are_text(place: Place, door: str) -> None:
    DOORS[door](place)


def test_the_trap_closes_where_the_token_is_read(place: Place) -> None:
    with pytest.raises(ContextError, match="no finite logits"):
        choose(place.llm, TEXT, ["yes", "no"])  # a prompt of one's own is a template
    answer = httpx.post(f"{place.url}/v1/completions", json={"model": "any", "prompt": TEXT, "parse_special": True})
    assert answer.status_code >= 400
    assert "no finite logits" in answer.text
