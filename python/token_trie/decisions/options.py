"""The options of decisions, a family each: what they are called, what they are by default, what they may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from token_trie.decisions.calibrator import Calibrating, Calibrator, check_calibration
from token_trie.decisions.think import Think, check_think
from token_trie.errors import ArgumentError
from token_trie.llama.span import STEP_MODES, StepMode
from token_trie.native.arguments import check_counts, check_draws, check_flags, check_numbers, lookup
from token_trie.native.options import Options
from token_trie.sets.spelling import Tokenization, check_tokenization

Mode: TypeAlias = Literal["exact", "greedy", "sampled", "aligned", "beam"]
RecordMode: TypeAlias = Literal["exact", "greedy", "sampled"]
LeafEnd: TypeAlias = Literal["any", "longest", "follow"]
Normalize: TypeAlias = Literal["tokens", "prior"]

LEAF_ENDS = {"any": 0, "longest": 1, "follow": 2}
"""As the C ABI has them."""
_MODES = dict.fromkeys(get_args(Mode), 0)
_RECORD_MODES = dict.fromkeys(get_args(RecordMode), 0)
_NORMALIZATIONS = dict.fromkeys(get_args(Normalize), 0)

MAX_NODES = 128
"""Nodes that a search evaluates by default."""
LONGEST = 2_000_000
"""Seconds of a timeout at most."""


@dataclass(frozen=True, kw_only=True)
class ChooseOptions(Options):
    """Options of `choose`.

    Parameters
    ----------
    mode : {"exact", "greedy", "sampled", "aligned", "beam"}, optional
        "exact", the default: the most probable whole answer, proved as far as max_nodes goes. "greedy": the best token
        at each branch point, which is fastest, may miss the most probable answer, and is the default for any
        tokenization; "sampled": one drawn at random there. "aligned": one whole answer drawn from the model's
        probabilities for them, which drawing token by token does not do. "beam": the best answer that going on from the
        beam_width best beginnings of each length finds.
    probabilities : bool
        For exact: score the whole set, however large, in place of searching it, for `Decision.probabilities` and what
        is made of them. Aligned mode always does.
    calibration : Contextual or Calibration, optional
        What weighs whole answers beside the model's own probabilities, for exact, aligned and beam: a `Calibration`
        fitted on rows for these very choices, or `Contextual`, for which the prompt without its content is enough; of
        `choose_many` also "batch", or a `BatchPrior`, which takes the rows themselves, and hands out decisions by
        windows.
        `probabilities` are then calibrated; `logprob` and mass stay the model's own. None: raw.
    temperature, top_p : float
        For sampled mode, as everywhere in llama.cpp; temperature above 0, by default 1; top_p in (0, 1].
    seed : int, optional
        For sampled and aligned mode: the same seed draws the same answer.
    leaf_end : {"longest", "any", "follow"}
        For exact, aligned and beam: what the probability of an answer has beside its tokens; see `score`. By default
        that the text does not go on towards a longer answer.
    n_best : int
        For exact and beam: answers to return as candidates.
    beam_width : int
        For beam.
    max_nodes : int or None
        For exact: nodes of the trie to evaluate about, before the best answer until then is given; None: as many as the
        proof needs. Good answers come first; among hundreds of thousands of improbable ones a proof takes thousands.
        `Decision.proved` and `Decision.gap` tell, and a warning does once (logger ``token_trie.search``).
    timeout : float, optional
        For exact: likewise, seconds from the prompt's last token on, looked at between passes.
    leading_space, tokenization
        As for `TokenTrie.from_choices`; for choices given as texts. Exact, aligned and beam are for the canonical
        tokenization alone.
    heal : bool
        With ``tokenization="any"``, for a prompt that may end inside a token, such as in a space or in ``"Fra"``: its
        last token is taken back, and what it spells begins each choice, to be spelled in any way. The tokens of the
        decision then begin there. Choices go on just where the prompt ends: no space is added unless leading_space
        says so. The canonical tokenization always mends the seam by itself.
    think : Think, optional
        Lets the model write freely up to a marker first, for `Decision.thought`. The answer, in any mode, follows the
        marker, and choices are tokenized as they follow that.
    """

    mode: Mode | None = None
    probabilities: bool = False
    calibration: Calibrating | None = None
    temperature: float | None = None
    top_p: float = 1.0
    seed: int | None = None
    leaf_end: LeafEnd = "longest"
    n_best: int = 1
    beam_width: int = 16
    max_nodes: int | None = MAX_NODES
    timeout: float | None = None
    leading_space: bool | None = None
    tokenization: Tokenization = "canonical"
    heal: bool = False
    think: Think | None = None

    def __post_init__(self) -> None:
        check_tokenization(self.tokenization)
        check_flags(probabilities=self.probabilities, heal=self.heal)
        if self.heal and self.tokenization != "any":
            raise ArgumentError('heal goes with tokenization="any"; the canonical one mends the seam by itself')
        if self.mode is not None:
            lookup(self.mode, _MODES, "mode")
        lookup(self.leaf_end, LEAF_ENDS, "leaf_end")
        check_draws(1.0 if self.temperature is None else self.temperature, self.top_p, self.seed)
        check_counts(
            n_best=self.n_best,
            beam_width=self.beam_width,
            max_nodes=1 if self.max_nodes is None else self.max_nodes,
        )
        self.require_fitting(self.mode or self.default_mode(self.tokenization))
        if self.timeout is not None:
            check_numbers(timeout=self.timeout)
            if not 0 < self.timeout <= LONGEST:
                raise ArgumentError(f"timeout: {self.timeout} is not in (0, {LONGEST:,}] seconds")
        check_calibration(self.calibration)
        check_think(self.think)
        if self.think is not None and self.calibration is not None:
            raise ArgumentError(
                "calibration: weighs answers behind the prompt itself, and think puts a thought between them"
            )

    @property
    def scores_all(self) -> bool:
        """Whether the whole set is scored."""
        return self.mode == "aligned" or self.probabilities

    def default_mode(self, tokenization: Tokenization) -> Mode:
        """Return the mode of a set whose members are spelled so."""
        return "greedy" if tokenization == "any" else "exact"

    def require_fitting(self, mode: Mode) -> None:
        """Raise ArgumentError where the mode cannot have the options that go with others."""
        is_bounded = self.max_nodes not in (None, MAX_NODES) or self.timeout is not None
        if self.scores_all and (mode not in ("exact", "aligned") or is_bounded):
            raise ArgumentError(
                "probabilities score the whole set: they go with mode='exact' without max_nodes and timeout, or "
                "'aligned'"
            )
        if self.calibration is not None and mode not in ("exact", "aligned", "beam"):
            raise ArgumentError("calibration weighs whole answers: it goes with mode='exact', 'aligned' or 'beam'")


@dataclass(frozen=True, kw_only=True)
class ListOptions(Options):
    """Options of `choose_list`.

    Parameters
    ----------
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
    end_tokens : str or sequence of int, optional
        Text of one token, or tokens each of which ends the list, beside those that end generation; by default a line
        break, unless there is one in the separator. It is no part of the list.
    mode : {"greedy", "sampled"}, optional
        The best token at each branch point, which is the default, or a drawn one.
    temperature, top_p : float
        For sampled mode; temperature above 0, by default 1; top_p in (0, 1].
    seed : int, optional
        For sampled mode: the same seed draws the same list.
    max_tokens : int, optional
        Tokens at most; by default as many as there is room for. Fewer than min_items come only if these are out.
    think : Think, optional
        Lets the model write freely up to a marker first, for `ListDecision.thought`. The list follows the marker.
    leading_space, tokenization
        As for `choose`.
    """

    max_items: int | None = None
    min_items: int = 1
    unique: bool = True
    exclude: Iterable[Any] = ()
    separator: str | Sequence[int] | None = None
    end_tokens: str | Sequence[int] | None = None
    mode: StepMode | None = None
    temperature: float | None = None
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    think: Think | None = None
    leading_space: bool | None = None
    tokenization: Tokenization = "canonical"

    def __post_init__(self) -> None:
        check_tokenization(self.tokenization)
        if self.mode is not None:
            lookup(self.mode, STEP_MODES, "mode")
        check_draws(1.0 if self.temperature is None else self.temperature, self.top_p, self.seed)
        check_flags(unique=self.unique)
        check_counts(min_items=self.min_items, max_items=1 if self.max_items is None else self.max_items)
        if self.max_tokens is not None:
            check_counts(max_tokens=self.max_tokens)
        if isinstance(self.exclude, (str, bytes)) or not isinstance(self.exclude, Iterable):
            raise ArgumentError(f"exclude: {type(self.exclude).__name__} where a list of choices belongs")
        object.__setattr__(self, "exclude", tuple(self.exclude))
        check_think(self.think)


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """Options of `score`.

    Parameters
    ----------
    leaf_end : {"any", "longest", "follow"}
        What a score has beside the probability of the tokens: nothing; that no token comes next by which a longer
        answer of the set goes on, so that answers exclude each other; that an end-of-generation token follows.
    branches : bool
        Whether to take, instead of the model's own probabilities, those renormalized over what the set allows, at
        branch points alone. This is the probability that sampled mode takes an answer with, ends included, and cheaper.
        It favours answers with an improbable beginning that leaves no choice afterwards; the README has how far the two
        distributions are apart.
    normalize : {"tokens", "prior"}, optional
        "tokens": divided by the number of tokens. "prior": less the score behind the token that begins a text, so that
        what counts is how much the prompt speaks for an answer.
    calibration : Contextual or Calibration, optional
        As of `choose`: scores are then log-weights, of which a softmax makes calibrated probabilities.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.
    """

    leaf_end: LeafEnd = "any"
    branches: bool = False
    normalize: Normalize | None = None
    calibration: Calibrating | None = None
    leading_space: bool | None = None

    def __post_init__(self) -> None:
        if self.normalize is not None:
            lookup(self.normalize, _NORMALIZATIONS, "normalize")
        lookup(self.leaf_end, LEAF_ENDS, "leaf_end")
        check_flags(branches=self.branches)
        check_calibration(self.calibration)
        if isinstance(self.calibration, Calibrator) and (self.branches or self.normalize is not None):
            raise ArgumentError("calibration: was fitted on scores as they are, without branches and normalize")


@dataclass(frozen=True, kw_only=True)
class RecordOptions(Options):
    """Options of `fill` and `choose_tool`.

    Parameters
    ----------
    mode : {"exact", "greedy", "sampled"}, optional
        How choices are made: "exact", the default, searches for the most probable whole value, as far as `max_nodes`
        goes; "greedy" takes the best token at each branch point, which is fastest; "sampled" draws there. Integers
        between near bounds are written digit by digit in every mode.
    temperature : float, optional
        Of free text, and of draws; by default 0, the best token each, and in sampled mode 1.
    top_p : float
        In (0, 1].
    seed : int, optional
        The same seed draws the same record.
    max_nodes : int, optional
        Nodes of a choice's trie that exact mode asks the model about at most; None for no limit, so that the most
        probable value is proved. `RecordStats.n_unproved` counts the choices that it ended.
    max_tokens : int
        Tokens of a slot of free text at most. A string that is not closed by then is, and stands in
        `Record.truncated`; where the schema does not let it end there, and for other values, that is a LimitError.
    indent : int, optional
        Spaces a level, each field on a line of its own; by default there is no white space.
    on_text : callable, optional
        Is given the record's text, part by part, as it is decided, on the thread that works. What it raises ends the
        record.
    think : Think, optional
        Lets the model write freely up to a marker first, for `Record.thought`. The record follows the marker.
    """

    mode: RecordMode | None = None
    temperature: float | None = None
    top_p: float = 1.0
    seed: int | None = None
    max_nodes: int | None = 24
    max_tokens: int = 256
    indent: int | None = None
    on_text: Callable[[str], object] | None = None
    think: Think | None = None

    def __post_init__(self) -> None:
        if self.mode is not None:
            lookup(self.mode, _RECORD_MODES, "mode")
        check_draws(self.warmth, self.top_p, self.seed, may_be_zero=self.mode != "sampled")
        check_counts(max_tokens=self.max_tokens, max_nodes=1 if self.max_nodes is None else self.max_nodes)
        if self.indent is not None:
            check_counts(0, indent=self.indent)
            if self.indent > 16:
                raise ArgumentError(f"indent: {self.indent} is above 16")
        if self.on_text is not None and not callable(self.on_text):
            raise ArgumentError(f"on_text: {type(self.on_text).__name__} cannot be called")
        check_think(self.think)

    @property
    def warmth(self) -> float:
        """The temperature, where none was given too."""
        if self.temperature is None:
            return 1.0 if self.mode == "sampled" else 0.0
        return self.temperature


if TYPE_CHECKING:  # by scripts/keywords

    class ChooseKeywords(TypedDict, total=False):
        """Those of `ChooseOptions`."""

        mode: Mode | None
        probabilities: bool
        calibration: Calibrating | None
        temperature: float | None
        top_p: float
        seed: int | None
        leaf_end: LeafEnd
        n_best: int
        beam_width: int
        max_nodes: int | None
        timeout: float | None
        leading_space: bool | None
        tokenization: Tokenization
        heal: bool
        think: Think | None

    class ListKeywords(TypedDict, total=False):
        """Those of `ListOptions`."""

        max_items: int | None
        min_items: int
        unique: bool
        exclude: Iterable[Any]
        separator: str | Sequence[int] | None
        end_tokens: str | Sequence[int] | None
        mode: StepMode | None
        temperature: float | None
        top_p: float
        seed: int | None
        max_tokens: int | None
        think: Think | None
        leading_space: bool | None
        tokenization: Tokenization

    class ScoreKeywords(TypedDict, total=False):
        """Those of `ScoreOptions`."""

        leaf_end: LeafEnd
        branches: bool
        normalize: Normalize | None
        calibration: Calibrating | None
        leading_space: bool | None

    class RecordKeywords(TypedDict, total=False):
        """Those of `RecordOptions`."""

        mode: RecordMode | None
        temperature: float | None
        top_p: float
        seed: int | None
        max_nodes: int | None
        max_tokens: int
        indent: int | None
        on_text: Callable[[str], object] | None
        think: Think | None
