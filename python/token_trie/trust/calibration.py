"""`Calibration`: turns a model's scores into calibrated probabilities; saved as a small JSON file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.calibration import Base, BatchPrior, Binding, Calibrator
from token_trie.decisions.gold import import_sklearn, listed, read_gold
from token_trie.errors import CalibrationError
from token_trie.native.core import Llama
from token_trie.native.files import write_whole
from token_trie.native.options import takes
from token_trie.questions.question import Question
from token_trie.sets.choices import ChoicesLike
from token_trie.trust.fit import KINDS, FitOptions, fit_readings, kind_of
from token_trie.trust.fitted import Head, HeldOut, JsonObject
from token_trie.trust.gate import Gate, find_gate
from token_trie.trust.metrics import log_softmax, numbered
from token_trie.trust.rows import Readings, digest_of_row, reader_of

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from token_trie.trust.fit import FitKeywords

_FORMAT, _VERSION = "token-trie calibration", 2
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration(Calibrator):
    """Turns a model's scores of choices, or its hidden state after a prompt, into probabilities.

    All kinds but the head are ``softmax((scores + bias) / temperature)``.

    Attributes
    ----------
    kind : {"contextual", "batch", "domain", "mean", "temperature", "bias", "head"}
        contextual: a question's contextual prior is subtracted, as `decide` does by default. batch, mean: the mean of
        each class over the rows is subtracted, of probabilities (Zhou et al. 2023) or of their logarithms. domain: the
        scores after random words of the rows are subtracted (Fei et al. 2023). temperature, bias: fitted on labels.
        head: a linear model on the hidden state of the prompt's last token, fitted on labels.
    binding : Binding
        The model, choices and prompts that it was fitted on. It can be used only with the same.
    base : {"raw", "contextual"}
        The scores that it takes.
    bias : ndarray of float64, shape (n_classes,)
    temperature : float
    head : Head or None
    held_out : HeldOut or None
        Figures of cross-validation, if the rows had labels.
    n_rows : int
        Number of rows on which it was fitted.
    """

    kind: str
    binding: Binding
    bias: Floats
    n_rows: int
    temperature: float = 1.0
    head: Head | None = None
    base: Base = "raw"
    held_out: HeldOut | None = None
    weights: Floats | None = field(init=False, repr=False)
    needs_scores: bool = field(init=False, repr=False)
    needs_state: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        head = self.head
        object.__setattr__(self, "weights", self.bias if head is None else None)  # for a head, no order is fixed
        object.__setattr__(self, "needs_scores", head is None or head.takes_scores)
        object.__setattr__(self, "needs_state", head is not None)

    @property
    def prompts(self) -> tuple[None, ...]:
        """The state without content of the question that it was fitted on, if its prior is subtracted."""
        return (None,) if self.base == "contextual" else ()

    def log_weights(self, scores: Floats | None, states: States | None) -> Floats:
        """Return log-weights, whose softmax are the probabilities; see `Calibrator.log_weights`."""
        if self.head is not None:
            return self.head.log_weights(scores, states) / self.temperature
        assert scores is not None
        return (scores + self.bias) / self.temperature

    def log_probabilities(self, readings: Readings) -> Floats:
        """Return the calibrated log-probabilities of rows, shape (n_rows, n_classes)."""
        return log_softmax(self.log_weights(readings.scores(self.base), readings.states))

    @classmethod
    @takes(FitOptions)
    def fit(
        cls,
        llm: Llama,
        prompts: Iterable[Any],
        gold: Iterable[Any] | None,
        choices: ChoicesLike | Question,
        *,
        progress: bool = False,
        n_parallel: int | None = None,
        n_ctx: int | None = None,
        **options: Unpack[FitKeywords],
    ) -> Calibration:
        """Fit a calibration on rows.

        Parameters
        ----------
        llm : llama_cpp.Llama
            The model.
        prompts : iterable of prompts, or of states
            The rows: what the choices follow, or what the question is about.
        gold : iterable, or None
            The right answer for each row, as a value or a text of the choices. None: there are no labels, and the mean
            over the rows is subtracted.
        choices : choices as of `choose`; or Choice, Predicate or Score
            The answers, or a question.
        progress, n_parallel, n_ctx
            As of `choose_many`.
        **options
            Those of `FitOptions`.

        Returns
        -------
        Calibration

        Raises
        ------
        CalibrationError
            There are too few rows, or all are of one class.
        ArgumentError, VocabularyError, ContextError
            As for `choose_many`; or a label is not one of the choices (with its position).
        """
        read = FitOptions.read("Calibration.fit", options)
        if gold is not None:
            import_sklearn("linear_model")  # fails before rows are read in vain
        reader = reader_of(llm, choices, read)
        rows = listed(prompts, "prompts")
        labels = None if gold is None else read_gold(gold, len(rows), reader.binding.classes, reader.values)
        states = labels is not None and kind_of(read.kind).takes_states
        more = kind_of(read.kind).more_rows(rows)
        prior = None if read.frequencies is None else BatchPrior(read.frequencies).for_values(reader.values).weights
        groups = numbered([digest_of_row(reader, row) for row in rows])
        found = iter(reader.read(rows + more, states=states, progress=progress, n_parallel=n_parallel, n_ctx=n_ctx))
        readings = Readings.of(itertools.islice(found, len(rows)), reader.binding)
        return cls.of(
            readings,
            labels,
            kind=read.kind,
            prior=prior,
            n_folds=read.n_folds,
            groups=groups,
            more=Readings.of(found, reader.binding),
        )

    @classmethod
    def of(cls, readings: Readings, gold: Ints | None, **options: Any) -> Calibration:
        """Fit a calibration to readings; options and errors are those of `fit_readings`."""
        found, held_out = fit_readings(readings, gold, **options)
        return cls(binding=readings.binding, n_rows=len(readings), held_out=held_out, **found)

    @property
    def classes(self) -> tuple[str, ...]:
        """The texts of the choices, or the names of the options."""
        return self.binding.classes

    def gate(self, target_accuracy: float = 0.95, assurance: float = 0.95) -> Gate:
        """Find the smallest probability above which answers reach a target accuracy.

        Parameters
        ----------
        target_accuracy, assurance : float
            In (0, 1).

        Returns
        -------
        Gate
            Its threshold is None if there is no such probability. `find_gate` describes the method.

        Raises
        ------
        CalibrationError
            It was fitted without labels.
        """
        if self.held_out is None:
            raise CalibrationError("gate: this was fitted without labels, and how often it is right is not known")
        own = self.held_out
        return find_gate(own.confidence, own.is_right, target_accuracy, assurance, groups=own.groups)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file: if the process is killed, the file is the old or the new one. Raises OSError."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)
        write_whole(Path(path), f"{text}\n".encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read it from a file.

        Raises
        ------
        CalibrationError
            The file is not a calibration; the message names the field.
        OSError
            The file cannot be read.
        """
        path = Path(path)
        if path.stat().st_size > _MAX_BYTES:
            raise CalibrationError(f"{path}: larger than {_MAX_BYTES:,} bytes, which no calibration is")
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise CalibrationError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, for JSON."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "kind": self.kind,
            "base": self.base,
            "n_rows": self.n_rows,
            "temperature": self.temperature,
            "bias": self.bias.tolist(),
            "head": None if self.head is None else self.head.to_dict(),
            "held_out": None if self.held_out is None else self.held_out.to_dict(),
            "binding": self.binding.to_dict(),
        }

    @classmethod
    def from_dict(cls, given: object) -> Self:
        """Read what `to_dict` returned; otherwise CalibrationError, with the name of the field."""
        read = JsonObject(given)
        if read.text("format") != _FORMAT:
            raise CalibrationError(f"format: this is no {_FORMAT}")
        if (version := read.integer("version")) != _VERSION:
            raise CalibrationError(f"version: {version}, and this release reads {_VERSION}; fit it anew")
        binding = Binding.from_dict(read.get("binding"))
        n = len(binding.classes)
        if n < 2 or len(set(binding.classes)) < n:
            raise CalibrationError("binding.classes: two or more, each once, belong here")
        kind, base = read.text("kind", list(KINDS)), read.text("base", ("raw", "contextual"))
        head, held_out = (None if read.get(name) is None else read.inner(name) for name in ("head", "held_out"))
        if (kind == "head") != (head is not None):
            raise CalibrationError(f"head: a fit of the kind {kind!r} has {'one' if kind == 'head' else 'none'}")
        temperature = read.floats("temperature")
        if temperature <= 0:
            raise CalibrationError(f"temperature: {temperature} is not above 0")
        return cls(
            kind=kind,
            binding=binding,
            base="contextual" if base == "contextual" else "raw",
            bias=read.floats("bias", (n,)),
            temperature=temperature,
            head=None if head is None else Head.from_stored(head, n),
            held_out=None if held_out is None else HeldOut.from_stored(held_out),
            n_rows=read.integer("n_rows"),
        )

    def __str__(self) -> str:
        said = f"{self.kind}, {len(self.classes):,} classes, {self.n_rows:,} rows"
        if self.held_out is not None:
            own, raw = self.held_out.calibrated, self.held_out.raw
            said += f"; held out: {own.accuracy:.1%} right, log loss {own.log_loss:.3f}"
            said += f" (raw {raw.accuracy:.1%}, {raw.log_loss:.3f})"
        return said
