"""The tasks: prompts, and the sets that their answers come from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path

from token_trie import TokenTrie
from token_trie.cli.demo import ACTIONS, prompt_for
from token_trie.sets.prompt import tokenize_prompt
from token_trie.sets.spelling import Tokenization

from bench.contenders.gbnf import alternatives
from bench.decisions.tree import Tree
from bench.models import Model
from bench.sets import data, ids

_N_IDS = 1000
# Cases of labels and ids; the actions have a case for each request.
_N_LABELLED, _N_LOOKED_UP = 16, 10


@dataclass(frozen=True)
class Question:
    """A prompt, and what a good model would answer, where that is known."""

    prompt: str
    expected: str | None = None


@dataclass(frozen=True)
class Case:
    """A prompt in a model's tokens."""

    tokens: list[int]
    expected: str | None


class Task:
    """A set and what is decided over it, in a model's tokens."""

    def __init__(self, name: str, model: Model, questions: Sequence[Question], trie: TokenTrie) -> None:
        self.name = name
        self.model = model
        self.trie = trie
        self.cases = [Case(tokenize_prompt(model.llm, q.prompt), q.expected) for q in questions]
        self.sequences = [leaf.tokens for leaf in trie]
        self.texts = [model.text(tokens) for tokens in self.sequences]
        self.tree = Tree(self.sequences, model.end_tokens())

    @property
    def max_tokens(self) -> int:
        """Tokens that any spelling of any member fits in."""
        return max(len(text.encode()) for text in self.texts) + 1

    @cached_property
    def n_shared(self) -> int:
        """Tokens that all prompts begin with, but for their last two at least."""
        prompts = [case.tokens for case in self.cases]
        most = max(min(map(len, prompts)) - 2, 0)
        same = (len(set(column)) == 1 for column in zip(*prompts, strict=False))
        return min(sum(takewhile(bool, same)), most)

    @property
    def grammar(self) -> str:
        """The same set in GBNF."""
        return alternatives(sorted(set(self.texts)))

    def portions(self, case: Case) -> list[int]:
        """Where a prompt is cut; every contender evaluates it in these portions.

        A model's logits move with the size of a batch where its weights are quantized, so equal answers can be
        expected of equal batches alone. The last token comes by itself: that is what llama-cpp-python does of old.
        """
        n = len(case.tokens)
        return sorted({self.n_shared, n - 1, n} - {0})


def _over_choices(
    name: str,
    choices: Callable[[], list[str]],
    questions: Callable[[], list[Question]],
    tokenization: Tokenization = "canonical",
) -> Callable[[Model], Task]:
    def make(model: Model) -> Task:
        asked = questions()
        trie = TokenTrie.from_choices(model.llm, choices(), prompt=asked[0].prompt, tokenization=tokenization)
        return Task(name, model, asked, trie)

    return make


def _requests() -> list[dict[str, str]]:
    requests = data("requests.json")
    assert isinstance(requests, list)
    return requests


def _topics() -> dict[str, list[str]]:
    topics = data("topics.json")
    assert isinstance(topics, dict)
    return topics


def _about_actions() -> list[Question]:
    return [Question(prompt_for(request["text"]), request["action"]) for request in _requests()]


def _about_topics(n: int = _N_LABELLED) -> list[Question]:
    topic_of = {action: topic for topic, actions in _topics().items() for action in actions}
    shown = [(ACTIONS[action], topic) for topic, actions in _topics().items() for action in actions[:2]]
    examples = "".join(f"Request: {text}\nTopic: {topic}\n\n" for text, topic in shown)
    return [
        Question(f"{examples}Request: {request['text']}\nTopic:", topic_of[request["action"]])
        for request in _requests()[:n]
    ]


def _about_ids(n: int = _N_LOOKED_UP) -> list[Question]:
    def described(name: str) -> str:
        kind, thing, number = name.split("-")
        return f"Item: the {kind} {thing}, number {number}\nId:"

    names = ids(_N_IDS)
    examples = "".join(f"{described(names[i])} {names[i]}\n\n" for i in (7, 311, 542, 986))
    asked = [names[(i * 61 + 23) % len(names)] for i in range(n)]
    return [Question(examples + described(name), name) for name in asked]


ACTIONS_TASK = f"{len(ACTIONS)} actions"
_TASKS = [
    _over_choices(ACTIONS_TASK, lambda: list(ACTIONS), _about_actions),
    _over_choices("8 labels", lambda: list(_topics()), _about_topics),
    _over_choices(f"{_N_IDS:,} ids", lambda: ids(_N_IDS), _about_ids),
]

# The same sets in any spelling, and 200 questions in all.
ANY_SPELLING_TASKS = [
    _over_choices(ACTIONS_TASK, lambda: list(ACTIONS), _about_actions, "any"),
    _over_choices("8 labels", lambda: list(_topics()), partial(_about_topics, 63), "any"),
    _over_choices(f"{_N_IDS:,} ids", lambda: ids(_N_IDS), partial(_about_ids, 74), "any"),
]


def tasks_for(prompt: str | None, descriptor: Path | None) -> list[Callable[[Model], Task]]:
    """Return the bundled tasks, or the one of a user's own prompt or set; what is not given is the 30 actions'."""
    if prompt is None and descriptor is None:
        return _TASKS
    questions = [Question(prompt)] if prompt is not None else _about_actions()
    if descriptor is None:
        return [_over_choices(ACTIONS_TASK, lambda: list(ACTIONS), lambda: questions)]
    payload = descriptor.read_bytes()

    def make(model: Model) -> Task:
        trie = TokenTrie.from_payload(payload)
        return Task(f"{descriptor.stem}, {len(trie):,} leaves", model, questions, trie)

    return [make]


def longest_prompt(prompt: str | None) -> int:
    """Return no fewer tokens than any prompt has."""
    prompts = [q.prompt for q in _about_actions() + _about_ids()] if prompt is None else [prompt]
    return max(len(text.encode()) for text in prompts) + 1
