"""Decisions to make: prompts, and the sets that their answers come from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from token_trie import TokenTrie
from token_trie.cli.demo import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.completion import shared_tokens
from bench.contenders import alternatives
from bench.models import Model
from bench.sets import data, ids

MAIN_SET = f"{len(ACTIONS)} actions"
_N_LABELLED, _N_LOOKED_UP = 16, 10  # cases of labels and ids; the actions have a case for each request


@dataclass(frozen=True)
class Case:
    """A prompt, and what a person would answer, where that is known."""

    prompt: str
    expected: str | None = None
    tokens: tuple[int, ...] = ()


def requests() -> list[dict[str, str]]:
    """Return the bundled requests of an agent's user, each with the action that it asks for."""
    return list(data("requests.json"))


def of_actions() -> list[Case]:
    """Return a case for each request."""
    return [Case(prompt_for(request["text"]), request["action"]) for request in requests()]


def _of_topics() -> list[Case]:
    topics = data("topics.json")
    topic_of = {action: topic for topic, actions in topics.items() for action in actions}
    shown = [(ACTIONS[action], topic) for topic, actions in topics.items() for action in actions[:2]]
    examples = "".join(f"Request: {text}\nTopic: {topic}\n\n" for text, topic in shown)
    return [
        Case(f"{examples}Request: {request['text']}\nTopic:", topic_of[request["action"]])
        for request in requests()[:_N_LABELLED]
    ]


def _of_ids() -> list[Case]:
    def described(name: str) -> str:
        kind, thing, number = name.split("-")
        return f"Item: the {kind} {thing}, number {number}\nId:"

    names = ids(1000)
    examples = "".join(f"{described(names[i])} {names[i]}\n\n" for i in (7, 311, 542, 986))
    asked = [names[(i * 61 + 23) % len(names)] for i in range(_N_LOOKED_UP)]
    return [Case(examples + described(name), name) for name in asked]


class Task:
    """A set and what is decided over it, in a model's tokens."""

    def __init__(self, name: str, model: Model, cases: Sequence[Case], trie: TokenTrie) -> None:
        self.name, self.model, self.trie = name, model, trie
        self.cases = [Case(c.prompt, c.expected, tuple(tokenize_prompt(model.llm, c.prompt))) for c in cases]
        self.prompts = [list(case.tokens) for case in self.cases]
        self.n_shared = shared_tokens(self.prompts)
        self.sequences = [leaf.tokens for leaf in trie]
        texts = [model.text(tokens) for tokens in self.sequences]
        self.max_tokens = max(len(text.encode()) for text in texts) + 1  # that any spelling fits in
        self.grammar = alternatives(sorted(set(texts)))


def tasks(prompt: str | None, descriptor: Path | None) -> dict[str, Callable[[Model], Task]]:
    """Return the bundled tasks, or the one of a user's own prompt or set; what is not given is the 30 actions'."""

    def over(name: str, choices: list[str], cases: list[Case]) -> Callable[[Model], Task]:
        def make(model: Model) -> Task:
            return Task(name, model, cases, TokenTrie.from_choices(model.llm, choices, prompt=cases[0].prompt))

        return make

    cases = [Case(prompt)] if prompt is not None else of_actions()
    if descriptor is not None:
        trie = TokenTrie.from_payload(descriptor.read_bytes())
        name = f"{descriptor.stem}, {len(trie):,} leaves"
        return {name: lambda model: Task(name, model, cases, trie)}
    out = {MAIN_SET: over(MAIN_SET, list(ACTIONS), cases)}
    if prompt is None:
        out["8 labels"] = over("8 labels", list(data("topics.json")), _of_topics())
        out["1,000 ids"] = over("1,000 ids", ids(1000), _of_ids())
    return out


def longest_prompt(prompt: str | None = None) -> int:
    """Return a number of tokens that no prompt exceeds."""
    prompts = [case.prompt for case in of_actions() + _of_ids()] if prompt is None else [prompt]
    return max(len(text.encode()) for text in prompts) + 1
