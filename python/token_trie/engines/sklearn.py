"""`TrieClassifier`: a GGUF model as a classifier of scikit-learn."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats
from token_trie.decisions.gold import is_nothing
from token_trie.engines.data import loaded
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
from token_trie.questions.form import Form
from token_trie.questions.question import Choice
from token_trie.sets.prompt import Template
from token_trie.trust.calibration import Calibration
from token_trie.trust.fit import FitKind, check_kind
from token_trie.trust.metrics import log_softmax
from token_trie.trust.rows import CachedRows, Readings, RowOptions, key_of, reader_of

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        f"token_trie.engines.sklearn needs scikit-learn: pip install 'token-trie[calibration]' ({error})"
    ) from error

_MAX_ROWS = 200_000
"""Maximum number of cached rows for each Llama."""


class TrieClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifies texts by a model's scores, calibrated on the rows that it is fitted to.

    The model is a path, loaded when it is first used: clones and pickles are small. The estimators of a process share a
    Llama for each path and size, and its scores of texts. It is thread-safe.

    Parameters
    ----------
    model_path : str or path
        A GGUF file.
    prompt : str
        A template with ``{text}`` in it: the prompt that the classes follow, or with a question the state that it is
        about. Names of control tokens in the texts of X stay text.
    question : str, optional
        The question about each text, as for `decide`.
    choices : mapping of classes to texts, optional
        The text that the model writes for each class, or with a question its description; by default the class names.
    form : {"unlisted", "listed", "letters"} or Form, optional
        The form of the question.
    orders : int
        As for `decide`.
    leaf_end : {"longest", "any", "follow"}
        For a prompt without a question, as for `choose`.
    calibration : {"batch", "temperature", "bias", "head"}, optional
        The kind of `Calibration` that `fit` fits. None: the model's own probabilities, for a question less its
        contextual prior, for scikit-learn's `CalibratedClassifierCV`.
    n_ctx, n_gpu_layers, n_threads : int
        Parameters of the Llama; n_threads None is llama.cpp's default.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted, as scikit-learn requires.
    calibration_ : Calibration or None
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        prompt: str = "{text}",
        *,
        question: str | None = None,
        choices: Mapping[Any, str] | None = None,
        form: str | Form | None = None,
        orders: int = 1,
        leaf_end: str = "longest",
        calibration: FitKind | None = None,
        n_ctx: int = 4096,
        n_gpu_layers: int = 0,
        n_threads: int | None = None,
    ) -> None:
        self.model_path = model_path
        self.prompt = prompt
        self.question = question
        self.choices = choices
        self.form = form
        self.orders = orders
        self.leaf_end = leaf_end
        self.calibration = calibration
        self.n_ctx = n_ctx
        self.n_gpu_layers = n_gpu_layers
        self.n_threads = n_threads

    def fit(self, X: Iterable[str], y: Iterable[Any]) -> TrieClassifier:  # noqa: N803 - the name in scikit-learn
        """Fit the calibration to texts and their classes.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            A text, a class or a parameter is wrong; the message has its position or name.
        CalibrationError
            The rows do not allow a fit.
        """
        if self.calibration is not None:
            check_kind(self.calibration)
        texts, given = _texts(X), list(y)
        missing = next((i for i, one in enumerate(given) if is_nothing(one)), None)
        if missing is not None:
            raise ArgumentError(f"y[{missing}]: missing; leave rows without a class out")
        if len(texts) != len(given):
            raise ArgumentError(f"y: {len(given):,} classes for {len(texts):,} texts")
        self.classes_, gold = np.unique(np.asarray(given), return_inverse=True)
        self.calibration_: Calibration | None = None
        # Without a calibration, none of the texts is read, and the parameters are checked.
        readings = self._read([] if self.calibration is None else texts, states=self.calibration == "head")
        if self.calibration is not None:
            labels = None if self.calibration == "batch" else gold.astype(np.int64)
            self.calibration_ = Calibration.of(readings, labels, self.calibration, n_folds=None)
        return self

    def predict_proba(self, X: Iterable[str]) -> Floats:  # noqa: N803
        """Return the probability of each class, shape (n_texts, n_classes)."""
        check_is_fitted(self, "classes_")
        found = self.calibration_
        readings = self._read(_texts(X), states=found is not None and found.needs_state)
        if found is not None:
            found.binding.require(readings.binding)
            return np.exp(found.log_probabilities(readings))
        return np.exp(log_softmax(readings.raw if readings.contextual is None else readings.contextual))

    def predict(self, X: Iterable[str]) -> npt.NDArray[Any]:  # noqa: N803
        """Return the most probable class of each text."""
        classes: npt.NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        return tags

    def _read(self, texts: list[str], *, states: bool) -> Readings:
        """Return the readings of texts; the model reads only new ones."""
        template = Template(self.prompt, has_escapes=False, what="prompt")
        if template.columns != ["text"]:
            raise ArgumentError("prompt: is to have {text} in it, and nothing else in braces")
        llm = loaded(str(Path(self.model_path).resolve()), self.n_ctx, self.n_gpu_layers, self.n_threads)
        with _sharing:
            lock, caches = _shared.setdefault(llm, (threading.Lock(), {}))
        choices, options = self._options()
        with lock:
            reader = reader_of(llm, choices, options)
            key = key_of(options, reader.binding)
            if sum(map(len, caches.values())) > _MAX_ROWS:
                caches.clear()
            cached = caches.setdefault((key, self.prompt), CachedRows(None, key))
            prompts = [template.fill({"text": text}) for text in texts]
            keys = [text.encode(errors="surrogatepass") for text in texts]
            read, _ = cached.read(reader, prompts, states=states, keys=keys)
        return read if states else replace(read, states=None)

    def _options(self) -> tuple[Any, RowOptions]:
        """Return the choices or the question, and the options of rows."""
        classes, given = self.classes_.tolist(), self.choices
        missing = [one for one in classes if given is not None and one not in given]
        if missing:
            raise ArgumentError(f"choices: nothing for the class {missing[0]!r}")
        described = None if given is None else {one: given[one] for one in classes}
        how: dict[str, Any] = {"form": self.form, "orders": self.orders}
        if self.question is not None:
            return Choice(self.question, dict.fromkeys(classes) if described is None else described), RowOptions(**how)
        options = RowOptions(template=self.prompt, leaf_end=self.leaf_end, **how)  # type: ignore[arg-type]
        return [str(one) for one in classes] if described is None else list(described.values()), options


_shared: weakref.WeakKeyDictionary[Llama, tuple[threading.Lock, dict[tuple[str, str], CachedRows]]] = (
    weakref.WeakKeyDictionary()
)
_sharing = threading.Lock()


def _texts(given: Iterable[str]) -> list[str]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ArgumentError(f"X must be a list of texts, not {type(given).__name__}")
    texts = list(given)
    if texts and isinstance(texts[0], np.ndarray) and len(texts[0]) == 1:
        texts = [row[0] for row in texts]  # one column, such as the values of a data frame
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"X[{i}] must be a text, not {type(text).__name__}")
    return texts
