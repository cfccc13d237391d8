"""`choose_list`: several of a set, one after the other in one text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

from token_trie.decisions.bound_choices import BoundChoices, bind, read_set
from token_trie.decisions.choose import cost_of
from token_trie.decisions.decision import Candidate, Stats
from token_trie.decisions.options import ListOptions
from token_trie.decisions.request import Prefix, Written
from token_trie.errors import ArgumentError
from token_trie.llama.query import Answer, Ask, Plan, Query, SpanOptions, read_end_tokens, read_span
from token_trie.llama.stream import ENDINGS
from token_trie.native.core import Llama, _core
from token_trie.native.options import takes
from token_trie.plan import Model, run
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.tokenization import check_tokens, inner_tokens, to_tokens
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ListKeywords

T = TypeVar("T")
ListEnd: TypeAlias = Literal["end", "max_items", "none_left", "max_tokens"]


@dataclass(frozen=True)
class ListItem(Candidate[T]):
    """One item of a list; `logprob` is computed token by token, among the tokens that were allowed there."""

    name: str
    """Name of the leaf."""
    begin: int
    """Position of its first token in the sequence."""
    end: int
    """Position after its last token."""

    @property
    def probability(self) -> float:
        """Product of the probabilities of its tokens, each among the tokens that were allowed there."""
        return math.exp(self.logprob)


@dataclass(frozen=True)
class ListDecision(Generic[T]):
    """Result of `choose_list`.

    Attributes
    ----------
    items : tuple of ListItem
        The items, in the order in which they were written.
    text : str
        The whole list, including separators, as it is in the sequence.
    tokens : tuple of int
        The tokens of the list.
    stop : {"end", "max_items", "none_left", "max_tokens"}
        Why the list ended: the model ended it, it has `max_items` items, no choice is left, or `max_tokens` was
        reached. An unfinished item is then removed from the list and from the sequence.
    logprob : float
        Sum of the logarithms for all chosen tokens, also those of separators and of the end.
    stats : Stats
        Cost of the list.
    trie : TokenTrie
        The set.
    thought : str or None
        The text before the list, up to the marker; None without `think`.
    """

    items: tuple[ListItem[T], ...]
    text: str
    tokens: tuple[int, ...]
    stop: ListEnd
    logprob: float
    stats: Stats
    trie: TokenTrie = field(compare=False, repr=False)
    thought: str | None = None

    @property
    def values(self) -> list[T]:
        """The items' values."""
        return [item.value for item in self.items]

    @property
    def texts(self) -> list[str]:
        """The items' texts."""
        return [item.text for item in self.items]

    @property
    def names(self) -> list[str]:
        """The names of the items' leaves."""
        return [item.name for item in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ListRequest(Written[ListDecision[Any]]):
    """A request for several of some choices."""

    choices: TokenTrie | Choices[Any]
    options: ListOptions

    @classmethod
    def read(cls, choices: ChoicesLike, options: ListOptions) -> ListRequest:
        """Read choices."""
        return cls(read_set(choices, options.leading_space), options)

    def after(self, model: Model, prefix: Prefix) -> Plan[ListDecision[Any]]:
        """Plan the list, which the model writes."""
        options = self.options
        tokens, choices = bind(model, prefix.tokens, self.choices, options.leading_space)
        between = _separator(model.vocab, choices.trie, tokens, options.separator)
        rules = SpanOptions(
            on_complete="restart",
            end_tokens=_ends(model.vocab, between, options.end_tokens),
            separator=between,
            max_items=options.max_items,
            min_items=options.min_items,
            unique=options.unique,
            exclude=_names_of(choices, options.exclude),
            max_span=None,
        )
        n_left = model.n_ctx - len(tokens)
        query = Query(
            options.mode or "greedy",
            choices.trie,
            sampling=options,
            span=read_span(model.vocab, options.mode, rules),
            max_tokens=max(n_left if options.max_tokens is None else min(options.max_tokens, n_left), 1),
        )
        (answer,) = yield [Ask(tokens, query)]
        text = model.vocab.detokenize(answer.tokens).decode(errors="replace")
        stop = _STOPS.get(ENDINGS[answer.figures.ending], "max_tokens")
        stats = replace(cost_of(len(tokens), answer), n_evaluated=0)
        found = _items(answer, choices, len(tokens))
        logprob = answer.logprob
        return ListDecision(found, text, answer.tokens, stop, logprob, stats, choices.trie, prefix.thought)


_STOPS: dict[str, ListEnd] = {"token": "end", "max_items": "max_items", "none_left": "none_left"}


def _items(answer: Answer, choices: BoundChoices[T], n_before: int) -> tuple[ListItem[T], ...]:
    items = []
    ranges = (answer.ranges.reshape(-1, 2) + n_before).tolist()
    for leaf, logprob, place in zip(answer.leaves.tolist(), answer.logprobs.tolist(), ranges, strict=True):
        index = choices.index(leaf)
        own = *choices.member(index), index, logprob
        items.append(ListItem(*own, choices.trie[leaf].name, *place))
    return tuple(items)


def _names_of(choices: BoundChoices[Any], exclude: Iterable[Any]) -> list[str]:
    """Return the names of the leaves of choices, given as values or texts."""
    given = choices.choices
    if given is None:
        return list(exclude)
    positions = dict(zip(reversed(given.texts), range(len(choices) - 1, -1, -1), strict=True)) if exclude else {}
    names = []
    for i, choice in enumerate(exclude):
        index = positions.get(choice) if type(choice) is str and given.are_texts else None
        if index is None:
            try:
                index = choices.find(choice)
            except ArgumentError:
                raise ArgumentError(f"exclude[{i}]: {choice!r} is none of the {len(choices):,} choices") from None
        leaf = index if choices.leaf_of is None else int(choices.leaf_of[index])
        names.append(choices.trie[leaf].name)
    return names


def _separator(vocab: _core.Vocab, trie: TokenTrie, prompt: list[int], given: str | Sequence[int] | None) -> list[int]:
    """Return the tokens between two items, without the items' own leading space; a line break if items begin a line."""
    if not (given is None or isinstance(given, str)):
        return check_tokens(to_tokens(given, "separator").tolist(), len(vocab), "separator")
    bring_space = all(vocab.detokenize([token]).startswith(b" ") for token in trie.children().tolist())
    if given is None:
        written = vocab.detokenize(prompt[-1:])
        given = ", " if bring_space or (written and not written.endswith(b"\n")) else "\n"
    if bring_space and given.endswith(" "):
        given = given[:-1]
    return list(map(int, inner_tokens(given, "separator", vocab)))


def _ends(vocab: _core.Vocab, separator: list[int], given: str | Sequence[int] | None) -> list[int]:
    """Return the tokens that end the list: the end-of-generation tokens, and the given ones or a line break."""
    if given is not None:
        ends = read_end_tokens(vocab, given)
    else:
        ends = inner_tokens("\n", "end_tokens", vocab)
        if len(ends) != 1 or b"\n" in vocab.detokenize(separator):
            ends = ends[:0]
    return sorted({*vocab.end_of_generation(), *ends.tolist()})


@overload
def choose_list(
    llm: Llama, prompt: Prompt, choices: TokenTrie, **options: Unpack[ListKeywords]
) -> ListDecision[str]: ...
@overload
def choose_list(
    llm: Llama, prompt: Prompt, choices: Mapping[str, T], **options: Unpack[ListKeywords]
) -> ListDecision[T]: ...
@overload
def choose_list(
    llm: Llama, prompt: Prompt, choices: Iterable[T], **options: Unpack[ListKeywords]
) -> ListDecision[T]: ...
@overload
def choose_list(llm: Llama, prompt: Prompt, choices: object, **options: Unpack[ListKeywords]) -> ListDecision[Any]: ...
@takes(ListOptions)
def choose_list(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Any) -> ListDecision[Any]:
    """Let the model answer a prompt with a list of choices, one after the other, until it ends the list.

    Parameters
    ----------
    llm, prompt, choices
        As for `choose`.
    **options
        Those of `ListOptions`.

    Returns
    -------
    ListDecision

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        Choices, prompt, options and model do not fit together. Examples: there are fewer choices than min_items and
        repeats are not allowed, or all choices are excluded.
    BusyError
        The call comes from a callback or signal handler of a thread that is already choosing with this model.
    """
    return run(llm, prompt, ListRequest.read(choices, ListOptions.read("choose_list", options)).plan)
