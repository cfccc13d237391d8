"""Options of decisions, one class for each function: names, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from token_trie.decisions.calibration import CalibrationLike, check_calibration
from token_trie.errors import ArgumentError
from token_trie.llama.query import DRAWN_BY, LEAF_ENDS, STEP_MODES, LeafEnd, Sampling, StepMode
from token_trie.native.options import Options, check_counts, check_flags, check_limits, check_name, check_numbers
from token_trie.sets.tokenization import to_tokens

Mode: TypeAlias = Literal["exact", "greedy", "sampled", "aligned", "beam"]
RecordMode: TypeAlias = Literal["exact", "greedy", "sampled"]
Normalize: TypeAlias = Literal["tokens", "prior"]

if TYPE_CHECKING:
    from token_trie.llama.query import SamplingKeywords

MAX_NODES = 128
"""Default number of nodes that a search evaluates."""
MAX_SCORED = 50_000
"""Default number of nodes of a set that is scored whole."""
LONGEST = 2_000_000
"""Longest timeout, in seconds."""


@dataclass(frozen=True)
class Think(Sampling):
    """Let the model write freely before it answers.

    The thought ends at the marker. If the marker is a text, any tokens may spell it. After `max_tokens` or `seconds`,
    the missing part of the marker is forced. The model cannot end its text before the marker.
    """

    marker: str | Sequence[int] = "\nAnswer:"
    """Tokens, or a text, in which names of control tokens become control tokens."""
    max_tokens: int = 256
    """Largest number of tokens, without the marker; 0: the marker alone."""
    seconds: float | None = None
    """Time limit, checked every few tokens; None, the default: no limit. In a batch, the time includes the passes that
    also served other prompts."""

    def __post_init__(self) -> None:
        if not len(self.marker if isinstance(self.marker, str) else to_tokens(self.marker, "think: marker")):
            raise ArgumentError("think: the marker is empty")
        check_counts(0, max_tokens=self.max_tokens)
        self.check_sampling(draws=False)
        self.check_drawn(draws=False)
        check_numbers(seconds=0.0 if self.seconds is None else self.seconds)
        if self.seconds is not None and not self.seconds >= 0:
            raise ArgumentError(f"seconds: {self.seconds} is below 0")

    @property
    def draws(self) -> bool:
        """Whether it is drawn at random."""
        return self.effective_temperature(draws=False) > 0


_SAMPLING = ("temperature", *DRAWN_BY)
_WHOLE = ("exact", "aligned", "beam")
_MODES_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_SAMPLING, ("sampled", "aligned")),
    **dict.fromkeys(("calibration", "leaf_end"), _WHOLE),
    **dict.fromkeys(("probabilities", "max_scored"), ("exact", "aligned")),
    **dict.fromkeys(("max_nodes", "timeout"), ("exact",)),
    "n_best": ("exact", "beam"),
    "beam_width": ("beam",),
}
"""The modes of `choose` in which an option has an effect; one that is not here has one in all."""


def _used_in(modes_of: Mapping[str, tuple[str, ...]], think: Think | None) -> Mapping[str, tuple[str, ...]]:
    """Return the modes in which options have an effect, of which a thought that is drawn takes the seed."""
    is_seeded = think is not None and think.draws
    return {name: modes for name, modes in modes_of.items() if not (is_seeded and name == "seed")}


def check_think(think: object) -> None:
    """Raise ArgumentError unless it is a `Think` or None."""
    if not (think is None or isinstance(think, Think)):
        raise ArgumentError(f"think must be a Think, not {type(think).__name__}")


@dataclass(frozen=True, kw_only=True)
class ChooseOptions(Sampling):
    """Options of `choose`.

    Parameters
    ----------
    mode : {"exact", "greedy", "sampled", "aligned", "beam"}, optional
        "exact", the default: the most probable whole answer, with a proof if max_nodes allows it. "greedy": the best
        token at each branch point; this is the fastest mode, but it may miss the most probable answer. "sampled": a
        token drawn at random at each branch point. "aligned": a whole answer drawn at random, by the model's
        probabilities of whole answers. "beam": the best answer that is found by keeping the beam_width best beginnings
        of each length.
    probabilities : bool
        For exact: score the whole set, however large, instead of searching it, for `Decision.probabilities` and what is
        computed from them. Aligned mode always does this.
    calibration : Contextual, Calibration or Weights, optional
        For exact, aligned and beam: changes the weights of whole answers. A `Calibration` is fitted on rows for
        the same choices. `Contextual` needs only the prompt without its content; in a set with more than max_scored
        nodes it weighs the 32 best answers that the search finds (or n_best, if more), and `Candidate.share` is
        relative to these. `Weights` adds a number to each choice. For `choose_many` also "batch": the probabilities are
        divided by their mean over the rows, which has to be of 8 different rows or more, and decisions are yielded in
        windows of 512. It assumes that the answers are about equally frequent. `probabilities` are then calibrated;
        `logprob` and `mass` stay the model's own. None: raw.
    leaf_end : {"longest", "any", "follow"}
        For exact, aligned and beam: what the probability of an answer contains besides its tokens; see `score`. By
        default, that the text does not continue towards a longer answer.
    n_best : int
        For exact and beam: the number of answers to return as candidates.
    beam_width : int
        For beam: the number of beginnings that are kept.
    max_nodes : int or None
        For exact: about how many nodes of the trie are evaluated before the best answer so far is returned. None: as
        many as the proof needs. Good answers come first; a proof among hundreds of thousands of improbable answers can
        need thousands of nodes. `Decision.proved` and `Decision.gap` tell whether there is a proof; if not, a warning
        says so once (logger ``token_trie.search``).
    timeout : float, optional
        For exact: the same with a time limit in seconds, from the prompt's last token on, checked between passes.
    max_scored : int or None
        For probabilities and aligned mode: a set with more nodes than this is refused, because each is evaluated, and
        thousands can take minutes. None: any number.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`; for choices given as texts.
    think : Think, optional
        Lets the model write freely up to a marker first, for `Decision.thought`. The answer follows the marker, in any
        mode, and choices are tokenized as they follow it.
    """

    mode: Mode | None = None
    probabilities: bool = False
    calibration: CalibrationLike | None = None
    leaf_end: LeafEnd = "longest"
    n_best: int = 1
    beam_width: int = 16
    max_nodes: int | None = MAX_NODES
    timeout: float | None = None
    max_scored: int | None = MAX_SCORED
    leading_space: bool | None = None
    think: Think | None = None

    def __post_init__(self) -> None:
        check_flags(probabilities=self.probabilities)
        if self.mode is not None:
            check_name(self.mode, get_args(Mode), "mode")
        check_name(self.leaf_end, LEAF_ENDS, "leaf_end")
        self.check_sampling(draws=True)
        check_counts(n_best=self.n_best, beam_width=self.beam_width)
        check_limits(max_nodes=self.max_nodes, max_scored=self.max_scored)
        if self.timeout is not None:
            check_numbers(timeout=self.timeout)
            if not 0 < self.timeout <= LONGEST:
                raise ArgumentError(f"timeout: {self.timeout} is not in (0, {LONGEST:,}] seconds")
        check_calibration(self.calibration)
        check_think(self.think)
        self._check_used()
        if self.think is not None and self.calibration is not None:
            raise ArgumentError(
                "calibration: weighs answers directly after the prompt, and think puts a thought between them"
            )

    @property
    def scores_all(self) -> bool:
        """Whether the whole set is scored."""
        return self.mode == "aligned" or self.probabilities

    def _check_used(self) -> None:
        """Raise ArgumentError for options without effect in the mode."""
        self.check_used("mode", self.mode or "exact", _used_in(_MODES_OF, self.think))
        if self.probabilities and any(map(self.is_given, ("max_nodes", "timeout"))):
            raise ArgumentError("probabilities: score the whole set, which no max_nodes and timeout end")
        if self.is_given("max_scored") and not self.scores_all and self.calibration is None:
            raise ArgumentError("max_scored: has no effect on a search; it goes with probabilities, or a calibration")


@dataclass(frozen=True, kw_only=True)
class ListOptions(Sampling):
    """Options of `choose_list`.

    Parameters
    ----------
    max_items : int, optional
        Largest number of items.
    min_items : int
        Smallest number of items, at least 1.
    unique : bool
        Whether no choice occurs twice (the default). The list then ends when no choice is left.
    exclude : iterable
        Choices that are not allowed, as values or texts; for a `TokenTrie`, names.
    separator : str or sequence of int, optional
        The text between two items; by default ``", "``, or a line break if the list begins a line. If the tokens
        of the items begin with a space, a space at the end of the separator is part of the item instead.
    end_tokens : str or sequence of int, optional
        Text of one token, or tokens, each of which ends the list, besides the tokens that end generation; by default a
        line break, unless the separator contains one. It is not part of the list.
    mode : {"greedy", "sampled"}, optional
        "greedy", the default: the best token at each branch point. "sampled": a token drawn at random.
    max_tokens : int, optional
        Largest number of tokens; by default as many as fit into the context. Only this limit can end the list before
        min_items.
    think : Think, optional
        Lets the model write freely up to a marker first, for `ListDecision.thought`. The list follows the marker.
    leading_space : bool, optional
        As for `choose`.
    """

    max_items: int | None = None
    min_items: int = 1
    unique: bool = True
    exclude: Iterable[Any] = ()
    separator: str | Sequence[int] | None = None
    end_tokens: str | Sequence[int] | None = None
    mode: StepMode | None = None
    max_tokens: int | None = None
    think: Think | None = None
    leading_space: bool | None = None

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_name(self.mode, STEP_MODES, "mode")
        self.check_sampling(draws=True)
        check_flags(unique=self.unique)
        check_counts(min_items=self.min_items)
        check_limits(max_items=self.max_items, max_tokens=self.max_tokens)
        if isinstance(self.exclude, (str, bytes)) or not isinstance(self.exclude, Iterable):
            raise ArgumentError(f"exclude must be a list of choices, not {type(self.exclude).__name__}")
        object.__setattr__(self, "exclude", tuple(self.exclude))
        check_think(self.think)
        self.check_used("mode", self.mode or "greedy", _used_in(dict.fromkeys(_SAMPLING, ("sampled",)), self.think))


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """Options of `score`.

    Parameters
    ----------
    leaf_end : {"any", "longest", "follow"}
        What a score contains besides the probability of the tokens. "any": nothing. "longest": also the probability
        that the text does not continue as a longer answer of the set, so that answers exclude each other. "follow":
        also the probability that an end-of-generation token follows.
    branches : bool
        Whether to use probabilities that are renormalized over the allowed tokens, at branch points only, instead of
        the model's own. This is the probability with which sampled mode draws an answer, ends included. It is cheaper,
        but favours answers with an improbable beginning after which only one token is allowed; docs/promises.md reports
        how much the two distributions differ.
    normalize : {"tokens", "prior"}, optional
        "tokens": the score is divided by the number of tokens. "prior": the score of the answer without a prompt is
        subtracted, so that only the effect of the prompt counts.
    calibration : Contextual or Calibration, optional
        As for `choose`. Scores are then log-weights, from which a softmax makes calibrated probabilities.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.
    max_scored : int or None
        A set with more nodes than this is refused, because each is evaluated, and thousands can take minutes. None: any
        number.
    """

    leaf_end: LeafEnd = "any"
    branches: bool = False
    normalize: Normalize | None = None
    calibration: CalibrationLike | None = None
    leading_space: bool | None = None
    max_scored: int | None = MAX_SCORED

    def __post_init__(self) -> None:
        if self.normalize is not None:
            check_name(self.normalize, get_args(Normalize), "normalize")
        check_name(self.leaf_end, LEAF_ENDS, "leaf_end")
        check_flags(branches=self.branches)
        check_limits(max_scored=self.max_scored)
        check_calibration(self.calibration)
        if self.calibration is not None and (self.branches or self.normalize is not None):
            raise ArgumentError("calibration: weighs scores as they are, without branches and normalize")
        if self.branches and self.is_given("leaf_end"):
            raise ArgumentError("leaf_end: has no effect with branches, which are scored with their ends")


@dataclass(frozen=True, kw_only=True)
class RecordOptions(Sampling):
    """Options of `fill` and `choose_tool`.

    Parameters
    ----------
    mode : {"exact", "greedy", "sampled"}, optional
        How values are chosen. "exact", the default, searches for the most probable whole value, within `max_nodes`.
        "greedy" takes the best token at each branch point and is the fastest. "sampled" draws a token there. Integers
        between close bounds are written digit by digit in every mode, and whether an optional field, another item, null
        or an alternative follows is decided by the next token: exact mode does not charge for keys that the schema
        dictates. Where several tokens spell one way to go on, as ``"]`` and ``"],``, they are worth their sum.
    max_nodes : int, optional
        Largest number of nodes that exact mode evaluates for one choice. None: no limit, so that the most probable
        value is proved. `RecordStats.n_unproved` counts the choices that this limit ended.
    max_tokens : int
        Largest number of tokens for one free value. A longer one ends there if the schema lets it, and is listed in
        `Record.truncated`; the brackets of any object or list are closed. If it cannot end, a LimitError is raised.
    indent : int, "auto" or None
        White space of the resulting text. "auto", the default: as it was written. A number: so many spaces for each
        level. None: no white space. The model always writes in its own way, by what it begins where these differ: none;
        a space after each comma and colon; or each field on a line of its own, with two spaces for each level, and
        short lists likewise or on a single line. So the values do not depend on it.
    on_text : callable, optional
        It is called with each part of the record's text as soon as it is decided, on the working thread; of a call,
        from the tool's name on. If it raises an error, the record ends. It must not change the handle.
    think : Think, optional
        Lets the model write freely up to a marker first, for `Record.thought`. The record follows the marker.
    text : str, optional
        The text that verbatim values are taken from; by default the user's last message of a chat.
    """

    mode: RecordMode | None = None
    max_nodes: int | None = 24
    max_tokens: int = 256
    indent: int | Literal["auto"] | None = "auto"
    on_text: Callable[[str], object] | None = None
    think: Think | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_name(self.mode, get_args(RecordMode), "mode")
        self.check_sampling(draws=self.mode == "sampled")
        check_counts(max_tokens=self.max_tokens)
        check_limits(max_nodes=self.max_nodes)
        if self.indent is not None and self.indent != "auto":
            check_counts(0, indent=self.indent)
            if self.indent > 16:
                raise ArgumentError(f"indent: {self.indent} is above 16")
        if self.on_text is not None and not callable(self.on_text):
            raise ArgumentError(f"on_text: {type(self.on_text).__name__} cannot be called")
        if not isinstance(self.text, (str, type(None))):
            raise ArgumentError(f"text must be str, not {type(self.text).__name__}")
        check_think(self.think)
        self.check_used("mode", self.mode or "exact", {"max_nodes": ("exact",)})
        self.check_drawn(draws=self.mode == "sampled", is_seeded=self.think is not None and self.think.draws)


if TYPE_CHECKING:  # by scripts/keywords

    class ChooseKeywords(SamplingKeywords, total=False):
        """Keywords of `ChooseOptions`."""

        mode: Mode | None
        probabilities: bool
        calibration: CalibrationLike | None
        leaf_end: LeafEnd
        n_best: int
        beam_width: int
        max_nodes: int | None
        timeout: float | None
        max_scored: int | None
        leading_space: bool | None
        think: Think | None

    class ListKeywords(SamplingKeywords, total=False):
        """Keywords of `ListOptions`."""

        max_items: int | None
        min_items: int
        unique: bool
        exclude: Iterable[Any]
        separator: str | Sequence[int] | None
        end_tokens: str | Sequence[int] | None
        mode: StepMode | None
        max_tokens: int | None
        think: Think | None
        leading_space: bool | None

    class ScoreKeywords(TypedDict, total=False):
        """Keywords of `ScoreOptions`."""

        leaf_end: LeafEnd
        branches: bool
        normalize: Normalize | None
        calibration: CalibrationLike | None
        leading_space: bool | None
        max_scored: int | None

    class RecordKeywords(SamplingKeywords, total=False):
        """Keywords of `RecordOptions`."""

        mode: RecordMode | None
        max_nodes: int | None
        max_tokens: int
        indent: int | Literal["auto"] | None
        on_text: Callable[[str], object] | None
        think: Think | None
        text: str | None
