"""Prompts that are answered together, and their sets."""

from dataclasses import dataclass
from itertools import islice

from token_trie.cli.demo import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt

from bench.models import Model
from bench.sets import data

LABELS = ["work", "home", "travel"]
SETS = {"3 labels": LABELS, f"{len(ACTIONS)} actions": list(ACTIONS)}


@dataclass(frozen=True)
class Prompts:
    """Prompts of one kind, in a model's tokens."""

    tokens: list[list[int]]
    choices: list[str]
    is_shared: bool

    @property
    def n_shared(self) -> int:
        """Tokens that all prompts begin with; every prompt has at least one more."""
        if not self.is_shared:
            return 0
        if len(self.tokens) == 1:
            return len(self.tokens[0]) - 1
        first, last = min(self.tokens), max(self.tokens)
        return next(i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)


def make_prompts(model: Model, choices: list[str], n: int, *, is_shared: bool) -> Prompts:
    """Return n prompts: behind one beginning with an example of each action, or with nothing in common."""
    requests = data("requests.json")
    assert isinstance(requests, list)
    texts = (f"{request['text']} ({i})" for i in range(n) for request in requests[i % len(requests) :][:1])
    write = prompt_for if is_shared else "{0}\nIn a word, what the request is about:".format
    return Prompts([tokenize_prompt(model.llm, write(text)) for text in islice(texts, n)], choices, is_shared)
