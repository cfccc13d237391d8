"""A GGUF as a classifier of scikit-learn's."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats
from token_trie.engines.data import loaded
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
from token_trie.questions.form import Form
from token_trie.questions.question import Choice
from token_trie.sets.template import Template
from token_trie.trust.calibration import Calibration
from token_trie.trust.fit import log_probabilities, scores_of
from token_trie.trust.metrics import log_softmax, numbered
from token_trie.trust.rows import FitOptions, Readings, Row, RowOptions, RowReader, reader_of

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        f"token_trie.engines.sklearn needs scikit-learn: pip install 'token-trie[calibration]' ({error})"
    ) from error

_KEPT = 200_000
"""Rows of all classifiers of a process together."""


class TrieClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifies texts by what a model answers about them, calibrated on the rows that it is fitted to.

    The model is a path, and loaded when it is used: clones, copies in other processes and pickles are small. Estimators
    of one process share a Llama for each path and size, and what it has said of a text; any threads may use them.

    Parameters
    ----------
    model_path : str or path
        A GGUF.
    prompt : str
        With ``{text}`` in it: what the classes follow as answers, or with a question what that is about. Names of
        control tokens in the texts of X stay text.
    question : str, optional
        What is asked about each text, as `decide` asks it.
    choices : mapping of classes to texts, optional
        What the model writes for each class, or with a question how it is described; by default the classes' own names.
    form : {"unlisted", "listed", "letters", "both"} or Form, optional
        How the question is put.
    orders : int
        As of `decide`.
    leaf_end : {"longest", "any", "follow"}
        Of a prompt without a question, as of `choose`.
    calibration : str or None
        What `fit` fits: a kind of `Calibration`, of those that take no labels too; "auto" what is best on rows held
        out; None nothing, so that the model's own probabilities are given, or with a question those with its contextual
        prior taken out.
    n_folds : int
        Of the rows held out meanwhile.
    n_ctx, n_gpu_layers, n_threads : int
        Of the Llama; n_threads is llama.cpp's own where it is None.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted, as everywhere in scikit-learn.
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
        calibration: str | None = "auto",
        n_folds: int = 5,
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
        self.n_folds = n_folds
        self.n_ctx = n_ctx
        self.n_gpu_layers = n_gpu_layers
        self.n_threads = n_threads

    def fit(self, X: Iterable[str], y: Iterable[Any]) -> TrieClassifier:  # noqa: N803 - as scikit-learn calls it
        """Fit what makes probabilities, to texts and their classes.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            A text, a class or a parameter is none, with its position or name.
        CalibrationError
            The rows do not allow it.
        """
        texts, labels = _texts(X), np.asarray(list(y))
        if len(texts) != len(labels):
            raise ArgumentError(f"y: {len(labels):,} classes for {len(texts):,} texts")
        self.classes_, gold = np.unique(labels, return_inverse=True)
        self.calibration_: Calibration | None = None
        if self.calibration is not None:
            options = FitOptions(kind=self.calibration, n_folds=self.n_folds)  # type: ignore[arg-type]
            is_labelled = self.calibration in ("auto", "temperature", "bias", "head")
            readings = self._read(texts, states=self.calibration in ("auto", "head"))
            found = gold.astype(np.int64) if is_labelled else None
            self.calibration_ = Calibration.of(
                readings, found, kind=options.kind, n_folds=self.n_folds, groups=numbered(texts)
            )
        return self

    def predict_proba(self, X: Iterable[str]) -> Floats:  # noqa: N803
        """Return the probability of each class, shape (n_texts, n_classes)."""
        check_is_fitted(self, "classes_")
        found = self.calibration_
        readings = self._read(_texts(X), states=found is not None and found.needs_state)
        if found is not None:
            found.binding.require(readings.binding)
            return np.exp(log_probabilities(found, readings))
        return np.exp(log_softmax(scores_of(readings, "raw" if readings.contextual is None else "contextual")))

    def predict(self, X: Iterable[str]) -> npt.NDArray[Any]:  # noqa: N803
        """Return the most probable class of each text."""
        classes: npt.NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return classes

    def _read(self, texts: list[str], *, states: bool) -> Readings:
        return _shared(str(Path(self.model_path).resolve()), self.n_ctx, self.n_gpu_layers, self.n_threads).read(
            texts, self._reader, self._template.fill, states=states
        )

    @property
    def _template(self) -> Template:
        template = Template(self.prompt, has_escapes=False, what="prompt")
        if template.columns != ["text"]:
            raise ArgumentError("prompt: is to have {text} in it, and nothing else in braces")
        return template

    def _reader(self, llm: Llama) -> RowReader:
        classes = self.classes_.tolist()
        if self.choices is not None:
            missing = [one for one in classes if one not in self.choices]
            if missing:
                raise ArgumentError(f"choices: nothing for the class {missing[0]!r}")
        told: Any = None if self.choices is None else {one: self.choices[one] for one in classes}
        form: Any = self.form
        leaf_end: Any = self.leaf_end
        if self.question is not None:
            options = RowOptions(form=form, orders=self.orders)
            return reader_of(llm, Choice(self.question, dict.fromkeys(classes) if told is None else told), options)
        options = RowOptions(template=self.prompt, leaf_end=leaf_end, form=form, orders=self.orders)
        return reader_of(llm, [str(one) for one in classes] if told is None else list(told.values()), options)


def _texts(given: Iterable[str]) -> list[str]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ArgumentError(f"X: {type(given).__name__} where texts belong")
    texts = list(given)
    if texts and isinstance(texts[0], np.ndarray) and len(texts[0]) == 1:  # a column of them, as of a frame's values
        texts = [row[0] for row in texts]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"X[{i}]: {type(text).__name__} where a text belongs")
    return texts


class _Shared:
    """A Llama of this process, and what it has said of texts."""

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self._rows: OrderedDict[tuple[Any, ...], Row] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, texts: list[str], reader_of: Any, put: Any, *, states: bool) -> Readings:
        """Read what is not known yet."""
        with self._lock:
            reader: RowReader = reader_of(self._llm)
            keys = [(reader.binding, put({"text": text})) for text in texts]
            new = {key: None for key in keys if key not in self._rows or (states and self._rows[key].state is None)}
            read = dict(zip(new, reader.read([prompt for _, prompt in new], states=states), strict=True))
            self._rows.update(read)
            rows = [self._rows[key] for key in keys]
            while len(self._rows) > _KEPT:
                self._rows.popitem(last=False)
        if not states:
            rows = [row._replace(state=None) for row in rows]
        return Readings.of(rows, reader.binding)


_shared_by: weakref.WeakKeyDictionary[Llama, _Shared] = weakref.WeakKeyDictionary()
_sharing = threading.Lock()


def _shared(path: str, n_ctx: int, n_gpu_layers: int, n_threads: int | None) -> _Shared:
    llm = loaded(path, n_ctx, n_gpu_layers, n_threads)
    with _sharing:
        if llm not in _shared_by:
            _shared_by[llm] = _Shared(llm)
        return _shared_by[llm]
