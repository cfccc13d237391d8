"""`choose_list`: several of a set, one after the other in one text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, overload

from token_trie.decisions.answers import Answers, ask
from token_trie.decisions.decision import Stats
from token_trie.decisions.how import ANY_SEED
from token_trie.decisions.think import Think, ask_behind_thought, check_think
from token_trie.decisions.ways import Clock
from token_trie.errors import ArgumentError, CancelledError
from token_trie.llama.chooser import check_room, chooser, room_of
from token_trie.llama.generation import ENDINGS
from token_trie.llama.program import Program
from token_trie.llama.run_span import run_span
from token_trie.llama.span import MODES
from token_trie.llama.span import Mode as StepMode
from token_trie.native.arguments import check_counts, check_draws, check_flags, check_names, lookup
from token_trie.native.core import Llama, _core
from token_trie.native.ffi import lib, new_struct
from token_trie.native.lease import lease
from token_trie.sets.choices import Choices, ChoicesLike, read_choices
from token_trie.sets.inner_text import inner_tokens
from token_trie.sets.prompt import Prompt
from token_trie.sets.spelling import Tokenization, check_tokenization
from token_trie.sets.tokens import check_tokens, to_tokens
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
ListEnd: TypeAlias = Literal["end", "max_items", "none_left", "max_tokens"]


@dataclass(frozen=True)
class ListItem(Generic[T]):
    """One of a list."""

    value: T = field(compare=False)
    """The choice as it was given; of a `TokenTrie`, the leaf's name."""
    text: str
    """What the model chose to write."""
    name: str
    """Of its leaf."""
    index: int
    """Its place among the choices; of a `TokenTrie`, the leaf's."""
    begin: int
    """The place of its first token in the sequence,"""
    end: int
    """and of what is behind its last."""
    logprob: float
    """Natural logarithm of its probability among what was allowed where it stands, token by token."""

    @property
    def probability(self) -> float:
        """Its probability among what was allowed where it stands, token by token."""
        return math.exp(self.logprob)


@dataclass(frozen=True)
class ListDecision(Generic[T]):
    """What `choose_list` has chosen.

    Attributes
    ----------
    items : tuple of ListItem
        In the order in which they were written.
    text : str
        The whole list, separators included, as it stands in the sequence.
    tokens : tuple of int
        Its tokens.
    stop : {"end", "max_items", "none_left", "max_tokens"}
        Why it ended: the model ended it, there are as many items as there may be, nothing is left to choose, or the
        tokens were out. The item under way then is no part of the list, nor of the sequence.
    logprob : float
        Of all that was chosen, separators and the end among it.
    stats : Stats
        What it took.
    trie : TokenTrie
        The set.
    thought : str or None
        What the model wrote before it, up to the marker; None where it was not asked to think.
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


class ListOptions(TypedDict, total=False):
    """Options of `choose_list`."""

    max_items: int | None
    min_items: int
    unique: bool
    exclude: Iterable[Any]
    separator: str | Sequence[int] | None
    end: str | Sequence[int] | None
    mode: StepMode
    temperature: float
    top_p: float
    seed: int | None
    max_tokens: int | None
    leading_space: bool | None
    tokenization: Tokenization
    think: Think | None


@dataclass(frozen=True)
class ListHow:
    """How to choose a list."""

    span: dict[str, Any]
    exclude: list[Any]
    separator: str | Sequence[int] | None
    end: str | Sequence[int] | None
    mode: StepMode
    temperature: float
    top_p: float
    seed: int | None
    max_tokens: int | None
    spelled: dict[str, Any]
    think: Think | None


def read_list_options(
    choices: ChoicesLike,
    *,
    max_items: int | None = None,
    min_items: int = 1,
    unique: bool = True,
    exclude: Iterable[Any] = (),
    separator: str | Sequence[int] | None = None,
    end: str | Sequence[int] | None = None,
    mode: StepMode = "greedy",
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    max_tokens: int | None = None,
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    think: Think | None = None,
) -> tuple[TokenTrie | Choices[Any], ListHow]:
    """Read choices, and the options of `choose_list`.

    Raises
    ------
    ArgumentError
        They fit neither each other nor the choices.
    """
    check_tokenization(tokenization)
    read: TokenTrie | Choices[Any] = choices if isinstance(choices, TokenTrie) else read_choices(choices)
    if isinstance(read, TokenTrie) and tokenization != "canonical":
        raise ArgumentError("tokenization goes with choices given as texts; a TokenTrie has its own tokens")
    lookup(mode, MODES, "mode")
    check_draws(temperature, top_p, seed)
    check_flags(unique=unique)
    check_counts(min_items=min_items, max_items=1 if max_items is None else max_items)
    if max_tokens is not None:
        check_counts(max_tokens=max_tokens)
    if isinstance(exclude, (str, bytes)) or not isinstance(exclude, Iterable):
        raise ArgumentError(f"exclude: {type(exclude).__name__} where a list of choices belongs")
    span = {"max_items": max_items or 0, "min_items": min_items, "unique": unique}
    spelled = {"leading_space": leading_space, "tokenization": tokenization}
    check_think(think)
    rest = mode, temperature, top_p, seed, max_tokens, spelled, think
    return read, ListHow(span, list(exclude), separator, end, *rest)


def write_list(handle: Program, answers: Answers[T], prompt: list[int], how: ListHow) -> ListDecision[T]:
    """Let the model list some answers behind a prompt; the handle's sequence is then both."""
    trie = answers.trie
    names = _names_of(answers, how.exclude)

    def read(vocab: _core.Vocab) -> tuple[list[int], list[int]]:
        between = _separator(vocab, trie, prompt, how.separator)
        return between, _ends(vocab, between, how.end)

    between, ends = handle._native.with_vocab(read)
    follow: dict[str, Any] = {"separator": between, "end_tokens": ends, "exclude": names, "max_span": None}
    if how.mode == "sampled" and how.seed is not None:
        handle.set_seed(int(how.seed))
    handle.set_token_trie(trie, how.mode, "restart", **how.span, **follow)
    clock = Clock(handle, prompt)
    before = handle._state()
    n_room = handle._native.room - len(prompt)
    max_tokens = n_room if how.max_tokens is None else min(how.max_tokens, n_room)
    run_span(handle, how.temperature, how.top_p, max_tokens, _is_over)
    after = handle._state()
    if handle.state.stop == "cancelled":
        raise CancelledError("the list was cancelled")
    stop = _STOPS.get(ENDINGS[after.ending], "max_tokens")
    items = _items(handle, answers, after.n_items)
    end = items[-1].end if items else len(prompt)
    tokens = handle.tokens[len(prompt) : end]
    handle._put(end, [])
    stats = clock.stats(
        n_branches=after.n_branches - before.n_branches,
        n_forced=after.n_forced - before.n_forced,
        n_passes=after.n_passes - before.n_passes,
    )
    text = handle._native.with_vocab(lambda vocab: vocab.detokenize(tokens)).decode(errors="replace")
    return ListDecision(items, text, tuple(tokens), stop, after.logprob, stats, trie)


_STOPS: dict[str, ListEnd] = {"token": "end", "max_items": "max_items", "none_left": "none_left"}


def _is_over(state: Any) -> bool:
    """Whether nothing but the end may come, so that the model need not be asked for it."""
    return bool(state.ending in _KNOWN_BEFORE)


_KNOWN_BEFORE = [ENDINGS.index("max_items"), ENDINGS.index("none_left")]


def _items(handle: Program, answers: Answers[T], n: int) -> tuple[ListItem[T], ...]:
    items = []
    for i in range(n):
        item = new_struct("token_trie_item")
        handle._native.call(lib.token_trie_stream_get_item, i, item)
        index = answers.index(item.leaf)
        name = answers.trie[item.leaf].name
        place = int(item.begin), int(item.end), float(item.logprob)
        items.append(ListItem(answers.value(index), answers.text(index), name, index, *place))
    return tuple(items)


def _names_of(answers: Answers[Any], exclude: list[Any]) -> list[str]:
    """Names of the leaves of choices, given as values or texts."""
    if answers.choices is None:
        return exclude
    places = dict(zip(reversed(answers.choices.texts), range(len(answers) - 1, -1, -1), strict=True)) if exclude else {}
    names = []
    for i, choice in enumerate(exclude):
        index = places.get(choice) if type(choice) is str and answers.choices.are_texts else None
        if index is None:
            try:
                index = answers.find(choice)
            except ArgumentError:
                raise ArgumentError(f"exclude[{i}]: {choice!r} is none of the {len(answers):,} choices") from None
        leaf = index if answers.leaf_of is None else int(answers.leaf_of[index])
        names.append(answers.trie[leaf].name)
    return names


def _separator(vocab: _core.Vocab, trie: TokenTrie, prompt: list[int], given: str | Sequence[int] | None) -> list[int]:
    """Tokens between two items: without the space that items bring along, and a line break where they begin a line."""
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
    """Tokens that end the list: those that end generation, and what was given, or a line break."""
    if given is None:
        ends = inner_tokens("\n", "end", vocab)
        if len(ends) != 1 or b"\n" in vocab.detokenize(separator):
            ends = ends[:0]
    else:
        ends = inner_tokens(given, "end", vocab)
        if isinstance(given, str) and len(ends) != 1:
            raise ArgumentError(f"end: {given!r} is {len(ends)} tokens here; a list ends in one")
    return sorted({*vocab.end_of_generation(), *ends.tolist()})


@overload
def choose_list(
    llm: Llama, prompt: Prompt, choices: TokenTrie, **options: Unpack[ListOptions]
) -> ListDecision[str]: ...
@overload
def choose_list(
    llm: Llama, prompt: Prompt, choices: Mapping[str, T], **options: Unpack[ListOptions]
) -> ListDecision[T]: ...
@overload
def choose_list(
    llm: Llama, prompt: Prompt, choices: Iterable[T], **options: Unpack[ListOptions]
) -> ListDecision[T]: ...
@overload
def choose_list(llm: Llama, prompt: Prompt, choices: object, **options: Unpack[ListOptions]) -> ListDecision[Any]: ...
def choose_list(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Any) -> ListDecision[Any]:
    """Let the model answer a prompt with several of a set, one after the other, until it ends the list.

    Parameters
    ----------
    llm, prompt, choices
        As for `choose`.
    max_items : int, optional
        Items at most.
    min_items : int
        Items at least; a list has one or more.
    unique : bool
        Whether no choice comes twice, as by default; the list then ends when none is left.
    exclude : iterable
        Choices, as values or texts, that are out from the beginning; of a `TokenTrie`, names.
    separator : str or sequence of int, optional
        What stands between two items; by default ``", "``, or a line break where the list begins a line. Of items that
        bring a space along, as behind a word, a space at its end is theirs.
    end : str or sequence of int, optional
        Text of one token, or tokens each of which ends the list, beside those that end generation; by default a line
        break, unless there is one in the separator. It is no part of the list.
    mode : {"greedy", "sampled"}
        The best or a drawn token at each branch point.
    temperature, top_p : float
        For sampled mode; temperature above 0, top_p in (0, 1].
    seed : int, optional
        For sampled mode: the same seed draws the same list.
    max_tokens : int, optional
        Tokens at most; by default as many as there is room for. Fewer than min_items come only if these are out.
    leading_space, tokenization
        As for `choose`.
    think : Think, optional
        Lets the model write freely up to a marker first, for `ListDecision.thought`. The list follows the marker.

    Returns
    -------
    ListDecision

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        For choices, prompts or options that fit neither each other nor the model: among them fewer choices than
        min_items without repeats, and none that is not excluded.
    BusyError
        This very thread is choosing with this model already, and asks from a callback or a signal's handler.
    """
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    check_names("choose_list", options, ListOptions.__annotations__)
    read, how = read_list_options(choices, **options)
    with lease(llm):
        tokens, answers = ask(llm, prompt, read, **how.spelled)
        check_room(room_of(llm), len(tokens), answers.trie)
    with chooser(llm) as handle:
        if how.seed is None:
            handle.set_seed(ANY_SEED)
        thought = None
        if how.think is not None:
            asked = llm, handle, tokens, how.think, how.seed, read
            thought, tokens, answers = ask_behind_thought(*asked, **how.spelled)
        return replace(write_list(handle, answers, tokens, how), thought=thought)
