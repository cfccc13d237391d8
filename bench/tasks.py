"""Decisions to make: prompts, and the sets that their answers come from."""

from collections.abc import Iterator, Sequence

from token_trie import TokenTrie
from token_trie.cli.ask import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.contenders import alternatives
from bench.models import Model
from bench.sets import data, ids

MAIN_SET = f"{len(ACTIONS)} actions"
N_CTX = 2048  # more than any prompt has
_N_LABELLED, _N_LOOKED_UP = 16, 10  # cases of labels and ids; the actions have a case for each request


Case = tuple[str, str]
"""A prompt, and what a person would answer."""


def requests() -> list[dict[str, str]]:
    """Return the bundled requests of an agent's user, each with the action that it asks for."""
    return list(data("requests.json"))


def _of_topics() -> list[Case]:
    topics = data("topics.json")
    topic_of = {action: topic for topic, actions in topics.items() for action in actions}
    shown = [(ACTIONS[action], topic) for topic, actions in topics.items() for action in actions[:2]]
    examples = "".join(f"Request: {text}\nTopic: {topic}\n\n" for text, topic in shown)
    return [
        (f"{examples}Request: {request['text']}\nTopic:", topic_of[request["action"]])
        for request in requests()[:_N_LABELLED]
    ]


def _of_ids() -> list[Case]:
    def described(name: str) -> str:
        kind, thing, number = name.split("-")
        return f"Item: the {kind} {thing}, number {number}\nId:"

    names = ids(1000)
    examples = "".join(f"{described(names[i])} {names[i]}\n\n" for i in (7, 311, 542, 986))
    asked = [names[(i * 61 + 23) % len(names)] for i in range(_N_LOOKED_UP)]
    return [(examples + described(name), name) for name in asked]


class Task:
    """A set and what is decided over it, in a model's tokens."""

    def __init__(self, name: str, model: Model, cases: Sequence[Case], trie: TokenTrie) -> None:
        self.name, self.model, self.trie = name, model, trie
        self.prompts = [tokenize_prompt(model.llm, prompt) for prompt, _ in cases]
        self.expected = [expected for _, expected in cases]
        self.sequences = [leaf.tokens for leaf in trie]
        texts = [model.text(tokens) for tokens in self.sequences]
        self.max_tokens = max(len(text.encode()) for text in texts) + 1  # that any spelling fits in
        self.grammar = alternatives(sorted(set(texts)))


def tasks(model: Model) -> Iterator[Task]:
    """Yield the bundled tasks."""
    sets = (
        (MAIN_SET, list(ACTIONS), [(prompt_for(request["text"]), request["action"]) for request in requests()]),
        ("8 labels", list(data("topics.json")), _of_topics()),
        ("1,000 ids", ids(1000), _of_ids()),
    )
    for name, choices, cases in sets:
        yield Task(name, model, cases, TokenTrie.from_choices(model.llm, choices, prompt=cases[0][0]))
