"""`Calibration`: turns a model's scores into calibrated probabilities; saved as a small JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.calibration import Base, Binding, Calibrator
from token_trie.decisions.gold import import_sklearn, listed, read_gold
from token_trie.errors import CalibrationError
from token_trie.native.core import Llama
from token_trie.native.files import write_whole
from token_trie.native.options import takes
from token_trie.questions.question import Question
from token_trie.sets.choices import ChoicesLike
from token_trie.trust.fit import FitKind, Fitted, Head, HeldOut, Measured, check_kind, fit_readings
from token_trie.trust.gate import Gate, find_gate
from token_trie.trust.metrics import numbered
from token_trie.trust.rows import Readings, RowOptions, digest_of_row, reader_of

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from token_trie.trust.rows import RowKeywords

_FORMAT, _VERSION = "token-trie calibration", 1
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration(Calibrator):
    """Turns a model's scores of choices, and its hidden state after a prompt, into probabilities.

    Attributes
    ----------
    kind : {"batch", "temperature", "bias", "head"}
        batch: the mean of each class over the rows is subtracted; of the probabilities of choices (Zhou et al. 2023),
        of the contextual scores of a question. It takes no labels. temperature, bias: the scores are divided by a
        number, after one for each class is added. head: scikit-learn's logistic regression on the hidden state of the
        prompt's last token and the scores.
    binding : Binding
        The model, choices and prompts that it was fitted on. It can be used only with the same.
    fitted : Fitted
        The numbers that were fitted.
    held_out : HeldOut or None
        Figures of cross-validation, if the rows had labels.
    n_rows : int
        Number of rows on which it was fitted.
    """

    kind: str
    binding: Binding
    fitted: Fitted
    n_rows: int
    held_out: HeldOut | None = None
    weights: Floats | None = field(init=False, repr=False)
    needs_state: bool = field(init=False, repr=False)
    needs_prior: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        has_head = self.fitted.head is not None
        object.__setattr__(self, "weights", None if has_head else self.fitted.bias)  # a head fixes no order
        object.__setattr__(self, "needs_state", has_head)
        object.__setattr__(self, "needs_prior", self.fitted.base == "contextual")

    def log_weights(self, scores: Floats, states: States | None) -> Floats:
        """Return log-weights, whose softmax are the probabilities; see `Calibrator.log_weights`."""
        return self.fitted.log_weights(scores, states)

    def log_probabilities(self, readings: Readings) -> Floats:
        """Return the calibrated log-probabilities of rows, shape (n_rows, n_classes)."""
        return self.fitted.log_probabilities(readings)

    @classmethod
    @takes(RowOptions)
    def fit(
        cls,
        llm: Llama,
        prompts: Iterable[Any],
        gold: Iterable[Any] | None,
        choices: ChoicesLike | Question,
        *,
        kind: FitKind,
        n_folds: int = 10,
        progress: bool = False,
        n_parallel: int | None = None,
        n_ctx: int | None = None,
        **options: Unpack[RowKeywords],
    ) -> Calibration:
        """Fit a calibration on rows.

        Parameters
        ----------
        llm : llama_cpp.Llama
            The model.
        prompts : iterable of prompts, or of states
            The rows: what the choices follow, or what the question is about.
        gold : iterable, or None
            The right answer for each row, as a value or a text of the choices; None for the kind batch.
        choices : choices as of `choose`; or Choice, Predicate or Score
            The answers, or a question.
        kind : {"batch", "temperature", "bias", "head"}
            The kind of calibration; see `Calibration`.
        n_folds : int
            Number of parts of the rows. Each is answered by a calibration that was fitted on the others, for
            `held_out` and `gate`.
        progress, n_parallel, n_ctx
            As of `choose_many`.
        **options
            Those of `RowOptions`.

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
        read = RowOptions.read("Calibration.fit", options)
        check_kind(kind)
        if kind != "batch":
            import_sklearn("linear_model")  # fails before rows are read in vain
        reader = reader_of(llm, choices, read)
        rows = listed(prompts, "prompts")
        labels = None if gold is None else read_gold(gold, len(rows), reader.binding.classes, reader.values)
        groups = numbered([digest_of_row(reader, row) for row in rows])
        found = reader.read(rows, states=kind == "head", progress=progress, n_parallel=n_parallel, n_ctx=n_ctx)
        return cls.of(Readings.of(found, reader.binding), labels, kind, n_folds, groups)

    @classmethod
    def of(
        cls,
        readings: Readings,
        gold: Ints | None,
        kind: FitKind,
        n_folds: int | None = 10,
        groups: npt.ArrayLike | None = None,
    ) -> Calibration:
        """Fit a calibration to readings, as `fit_readings` describes it."""
        fitted, held_out = fit_readings(readings, gold, kind, n_folds, groups)
        return cls(kind=kind, binding=readings.binding, fitted=fitted, n_rows=len(readings), held_out=held_out)

    def chosen_from(self, n_ways: int) -> Self:
        """Return it as one of several ways that were compared on its rows."""
        return self if self.held_out is None else replace(self, held_out=replace(self.held_out, n_ways=n_ways))

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
        return find_gate(own.confidence, own.is_right, target_accuracy, assurance, groups=own.groups, n_ways=own.n_ways)

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
        """Return all attributes, for JSON; the numbers of a head have seven digits."""
        fitted, head, held_out = self.fitted, self.fitted.head, self.held_out
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "kind": self.kind,
            "base": fitted.base,
            "n_rows": self.n_rows,
            "temperature": fitted.temperature,
            "bias": fitted.bias.tolist(),
            "head": None if head is None else {name: _rounded(getattr(head, name)) for name in _HEAD},
            "held_out": None
            if held_out is None
            else {
                "n_folds": held_out.n_folds,
                "n_ways": held_out.n_ways,
                "calibrated": held_out.calibrated._asdict(),
                "raw": held_out.raw._asdict(),
                "confidence": held_out.confidence.tolist(),
                "is_right": held_out.is_right.astype(int).tolist(),
                "groups": held_out.groups.tolist(),
            },
            "binding": {**asdict(self.binding), "classes": list(self.classes)},
        }

    @classmethod
    def from_dict(cls, given: object) -> Self:
        """Read what `to_dict` returned; otherwise CalibrationError, with the name of the field."""
        begin = _read(given, _BEGIN, {})
        kind, base, classes = begin["kind"], begin["base"], begin["binding"]["classes"]
        if begin["format"] != _FORMAT:
            raise CalibrationError(f"format: this is no {_FORMAT}")
        if begin["version"] != _VERSION:
            raise CalibrationError(f"version: {begin['version']}, and this release reads {_VERSION}; fit it anew")
        if len(classes) < 2 or not all(isinstance(one, str) for one in classes) or len(set(classes)) < len(classes):
            raise CalibrationError("binding.classes must be two or more texts, each once")
        for name, value, known in (("kind", kind, get_args(FitKind)), ("base", base, get_args(Base))):
            if value not in known:
                raise CalibrationError(f"{name} must be one of {', '.join(known)}, not {value[:40]!r}")
        read = _read(given, _REST, {"classes": len(classes), "rows": begin["n_rows"]})
        head, held_out = read["head"], read["held_out"]
        if (kind == "head") != (head is not None):
            raise CalibrationError(f"head: a fit of the kind {kind!r} has {'one' if kind == 'head' else 'none'}")
        if read["temperature"] <= 0 or (head is not None and (head["scale"] <= 0).any()):
            raise CalibrationError("temperature and head.scale: a number that is not above 0")
        if held_out is not None:
            if not ((held_out["confidence"] >= 0) & (held_out["confidence"] <= 1)).all():
                raise CalibrationError("held_out.confidence: a number outside 0 to 1")
            held_out |= {name: Measured(**held_out[name]) for name in ("calibrated", "raw")}
            held_out |= {"is_right": held_out["is_right"] > 0, "groups": held_out["groups"].astype(np.int64)}
        return cls(
            kind=kind,
            binding=Binding(**{**begin["binding"], "classes": tuple(classes)}),
            fitted=Fitted(base, read["bias"], read["temperature"], None if head is None else Head(**head)),
            n_rows=begin["n_rows"],
            held_out=None if held_out is None else HeldOut(**held_out),
        )

    def __str__(self) -> str:
        said = f"{self.kind}, {len(self.classes):,} classes, {self.n_rows:,} rows"
        if self.held_out is not None:
            own, raw = self.held_out.calibrated, self.held_out.raw
            said += f"; held out: {own.accuracy:.1%} right, log loss {own.log_loss:.3f}"
            said += f" (raw {raw.accuracy:.1%}, {raw.log_loss:.3f})"
        return said


_BEGIN = {
    "format": str,
    "version": int,
    "kind": str,
    "base": str,
    "n_rows": int,
    "binding": {one.name: list if one.name == "classes" else str for one in fields(Binding)},
}
_HEAD = {
    "mean": ("features",),
    "scale": ("features",),
    "weights": ("classes", "features"),
    "intercept": ("classes",),
}
_MEASURED = dict.fromkeys(Measured._fields, ())
_HELD_OUT = {
    "n_folds": int,
    "n_ways": int,
    "calibrated": _MEASURED,
    "raw": _MEASURED,
    "confidence": ("rows",),
    "is_right": ("rows",),
    "groups": ("rows",),
}
_REST = {"temperature": (), "bias": ("classes",), "head": [_HEAD], "held_out": [_HELD_OUT]}
"""With `_BEGIN`, the kinds of the values of a file; see `_read`."""


def _read(given: Any, kind: Any, sizes: dict[str, int], path: str = "") -> Any:
    """Return a value of a JSON file; CalibrationError, with its path, for one of another kind.

    A kind is a type, the kinds of an object's fields, a list with a kind that may be null instead, or the names of an
    array's dimensions, whose `sizes` are to be the same wherever they are; () is a number.
    """
    if isinstance(kind, list):
        return None if given is None else _read(given, kind[0], sizes, path)
    if isinstance(kind, dict) and isinstance(given, dict):
        inner = f"{path}." if path else ""
        for name in kind:
            if name not in given:
                raise CalibrationError(f"{inner}{name}: missing")
        return {name: _read(given[name], own, sizes, inner + name) for name, own in kind.items()}
    if isinstance(kind, tuple) and type(given) in (int, float, list):
        try:
            array = np.array(given)
        except ValueError as error:  # lists of different lengths
            raise CalibrationError(f"{path}: {error}") from error
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise CalibrationError(f"{path} must be finite numbers")
        if array.ndim != len(kind):
            raise CalibrationError(f"{path} must have {len(kind)} dimensions, not {array.ndim}")
        wanted = tuple(sizes.setdefault(name, n) for name, n in zip(kind, array.shape, strict=True))
        if array.shape != wanted:
            raise CalibrationError(f"{path} must have shape {wanted}, not {array.shape}")
        return array.astype(np.float64) if kind else float(array)
    is_count = not isinstance(given, int) or 0 <= given < 2**53
    if isinstance(kind, type) and is_count and type(given) is kind:
        return given
    if isinstance(kind, tuple):
        noun = "numbers" if kind else "a number"
    else:
        noun = "an object" if isinstance(kind, dict) else _NOUNS[kind]
    raise CalibrationError(f"{path or 'file'} must be {noun}, not {type(given).__name__}")


_NOUNS: dict[type, str] = {str: "a text", int: "a count", list: "a list"}


def _rounded(values: Floats) -> Any:
    return [float(f"{one:.7g}") for one in values] if values.ndim == 1 else [_rounded(row) for row in values]
