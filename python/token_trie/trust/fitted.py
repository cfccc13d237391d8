"""The fitted parts of a calibration, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.calibration import Base
from token_trie.errors import CalibrationError
from token_trie.trust.metrics import figures_of, log_softmax
from token_trie.trust.rows import Readings

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class JsonObject:
    """An object of a JSON file; CalibrationError, with the field's path, for a value of another type."""

    def __init__(self, given: object, path: str = "") -> None:
        if not isinstance(given, Mapping):
            raise CalibrationError(f"{path or 'file'}: {type(given).__name__} where an object belongs")
        self.names = list(given)
        self._given = given
        self._path = path

    def get(self, name: str) -> Any:
        """Return a field's value; CalibrationError if there is none."""
        if name not in self._given:
            raise self.error(name, "missing")
        return self._given[name]

    def error(self, name: str, why: str) -> CalibrationError:
        """Return an error about a field."""
        return CalibrationError(f"{self._path}.{name}: {why}" if self._path else f"{name}: {why}")

    def inner(self, name: str) -> JsonObject:
        """Return an object."""
        return JsonObject(self.get(name), f"{self._path}.{name}" if self._path else name)

    def text(self, name: str, known: Sequence[str] = ()) -> str:
        """Return a text, one of the known ones if there are some."""
        value = self._typed(name, str, "a text")
        if known and value not in known:
            raise self.error(name, f"{value[:40]!r} is none of {', '.join(known)}")
        return value

    def integer(self, name: str) -> int:
        """Return an integer in [0, 2**53)."""
        value = self._typed(name, int, "a count")
        if not 0 <= value < 2**53:
            raise self.error(name, "int where a count belongs")
        return value

    def floats(self, name: str, shape: tuple[int | None, ...] = ()) -> Any:
        """Return an array of finite numbers, or one number; None in the shape is any length."""
        value = self.get(name)
        if not _is_numeric(value, len(shape)):
            wanted = ("a number", "a list of numbers", "lists of numbers")[len(shape)]
            raise self.error(name, f"{type(value).__name__} where {wanted} belongs")
        try:
            array = np.array(value, np.float64)
        except (ValueError, OverflowError) as error:
            raise self.error(name, str(error)) from error
        if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
            found, wanted = (" x ".join("any" if n is None else str(n) for n in some) for some in (array.shape, shape))
            raise self.error(name, f"{found} numbers, where {wanted} belong")
        if not np.isfinite(array).all():
            raise self.error(name, "a number that is not finite")
        return array if shape else float(array)

    def _typed(self, name: str, kind: type[T], wanted: str) -> T:
        value = self.get(name)
        if type(value) is not kind:
            raise self.error(name, f"{type(value).__name__} where {wanted} belongs")
        return value


def _is_numeric(value: object, depth: int) -> bool:
    if depth:
        return isinstance(value, list) and all(_is_numeric(one, depth - 1) for one in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Measured(NamedTuple):
    """Metrics of probabilities."""

    accuracy: float
    log_loss: float
    brier: float
    ece: float
    """Expected calibration error over ten bins of equal width."""

    @classmethod
    def of(cls, probabilities: Floats, gold: Ints) -> Measured:
        """Measure the most probable answers."""
        figures: Any = figures_of(probabilities.shape[1], gold, probabilities.argmax(axis=1), probabilities, None)
        return cls(*(getattr(figures, name) for name in cls._fields))


_SCALE = 10_000


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Results of cross-validation: each row of the fit, answered by a fit on other rows."""

    n_rows: int
    n_folds: int
    calibrated: Measured
    raw: Measured
    """Metrics with the calibration, and of the raw scores."""
    confidence: Floats
    """Shape (n_rows,): the probability of each answer, rounded down to steps of 0.0001."""
    is_right: npt.NDArray[np.bool_]
    groups: npt.NDArray[np.int64]
    """Equal rows have the same number."""
    probabilities: Floats | None = None
    """Shape (n_rows, n_classes); None after loading from a file, which does not keep them."""

    @classmethod
    def of(cls, n_folds: int, log_p: Floats, raw: Floats, gold: Ints, groups: Ints) -> HeldOut:
        """Make it from log-probabilities of rows, with the calibration and without."""
        p = np.exp(log_p)
        confidence = np.floor(p.max(axis=1) * _SCALE) / _SCALE
        calibrated, own = Measured.of(p, gold), Measured.of(np.exp(raw), gold)
        return cls(len(gold), n_folds, calibrated, own, confidence, p.argmax(axis=1) == gold, groups, p)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes but the probabilities, for JSON."""
        return {
            "n_rows": self.n_rows,
            "n_folds": self.n_folds,
            "calibrated": self.calibrated._asdict(),
            "raw": self.raw._asdict(),
            "confidence": np.rint(self.confidence * _SCALE).astype(int).tolist(),
            "is_right": "".join("1" if right else "0" for right in self.is_right),
            "groups": self.groups.tolist(),
        }

    @classmethod
    def from_stored(cls, read: JsonObject) -> Self:
        """Read what `to_dict` returned; otherwise CalibrationError."""
        n_rows, n_folds, is_right = read.integer("n_rows"), read.integer("n_folds"), read.text("is_right")
        calibrated, raw = (
            Measured(*(read.inner(name).floats(field) for field in Measured._fields)) for name in ("calibrated", "raw")
        )
        if set(is_right) - {"0", "1"}:
            raise read.error("is_right", "a text of 0 and 1 belongs here")
        if len(is_right) != n_rows:
            raise read.error("is_right", f"{len(is_right)} rows, where n_rows is {n_rows}")
        confidence, groups = (read.floats(name, (n_rows,)) for name in ("confidence", "groups"))
        if not ((confidence >= 0) & (confidence <= _SCALE)).all():
            raise read.error("confidence", f"a number outside 0 to {_SCALE}")
        if not ((groups >= 0) & (groups < max(1, n_rows)) & (groups == np.floor(groups))).all():
            raise read.error("groups", f"a number that is no integer from 0 to {n_rows - 1}")
        right = np.array([one == "1" for one in is_right], np.bool_)
        return cls(n_rows, n_folds, calibrated, raw, confidence / _SCALE, right, groups.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier on scaled features: the direction of the hidden state, and the log-shares of the classes."""

    mean: Floats
    scale: Floats
    """Shape (n_features,)."""
    weights: Floats
    """Shape (n_classes, n_features)."""
    intercept: Floats
    """Shape (n_classes,)."""

    @staticmethod
    def features(scores: Floats, states: States) -> Floats:
        """Return the features of rows, shape (n_rows, n_features)."""
        own = states.astype(np.float64)
        lengths = np.linalg.norm(own, axis=1, keepdims=True)
        return np.concatenate([own / np.where(lengths > 0, lengths, 1.0), log_softmax(scores)], axis=1)

    def log_weights(self, scores: Floats, states: States) -> Floats:
        """Return log-weights, shape (n_rows, n_classes)."""
        features = self.features(scores, states)
        if features.shape[1] != len(self.mean):
            raise CalibrationError(f"head: was fitted on {len(self.mean)} features, and these are {features.shape[1]}")
        found: Floats = ((features - self.mean) / self.scale) @ self.weights.T + self.intercept
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, for JSON; numbers have seven digits."""
        return {name: _rounded(getattr(self, name)) for name in ("mean", "scale", "weights", "intercept")}

    @classmethod
    def from_stored(cls, read: JsonObject, n_classes: int) -> Self:
        """Read what `to_dict` returned; otherwise CalibrationError."""
        mean = read.floats("mean", (None,))
        n = len(mean)
        scale, weights = read.floats("scale", (n,)), read.floats("weights", (n_classes, n))
        if not (scale > 0).all():
            raise read.error("scale", "a number that is not above 0")
        return cls(mean, scale, weights, read.floats("intercept", (n_classes,)))


def _rounded(values: Floats) -> Any:
    return [float(f"{one:.7g}") for one in values] if values.ndim == 1 else [_rounded(row) for row in values]


@dataclass(frozen=True, eq=False)
class Fitted:
    """The numbers of a fit: ``softmax((scores + bias) / temperature)``, or a head."""

    base: Base
    """The scores that it takes."""
    bias: Floats
    temperature: float = 1.0
    head: Head | None = None

    def log_weights(self, scores: Floats, states: States | None) -> Floats:
        """Return log-weights of rows, shape (n_rows, n_classes)."""
        if self.head is None:
            return (scores + self.bias) / self.temperature
        assert states is not None  # because it needs them
        return self.head.log_weights(scores, states)

    def log_weights_of(self, readings: Readings) -> Floats:
        """Return log-weights of readings."""
        return self.log_weights(readings.scores(self.base), readings.states)
