"""Labels for batches of rows, in the workers of engines for data: Ray, Dask, Spark, datasets, Daft."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.decision import Decision
from token_trie.decisions.many import choose_many
from token_trie.engines.loaded import loaded
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.arguments import check_counts
from token_trie.sets.choices import read_choices
from token_trie.sets.template import Template
from token_trie.trust.calibration import Calibration

COLUMNS = {"label": str, "probability": float, "margin": float, "mass": float, "error": str}
"""What is added to a batch, in this order: texts, and float64."""


class Labeller:
    r"""Labels each row of a batch with one of a set, by what a model answers behind a prompt about the row.

    It is small and pickled as it is; the model is loaded when a process first labels, once for all that name the same
    file and parameters.

    The batch comes back with its own columns and those of `COLUMNS`: the label's text, its probability among the
    choices, by how much that is above the next, and the model's own probability that it would write any of them. A row
    that fails has its ``error``, an empty label and NaN; in others ``error`` is empty.

    Parameters
    ----------
    model : str or os.PathLike
        A GGUF file, at the same place on all machines.
    prompt : str
        With columns in braces, and ``{{`` for a brace. What is filled in is data: names of control tokens stay text.
    choices
        The labels, as of `choose`; pickled with it. A label is the text that the model writes.
    calibration : str, os.PathLike, Calibration, Contextual or Weights, optional
        As of `choose`; or the path of a `Calibration`'s file.
    columns : mapping of str to str, optional
        Other names for columns of `COLUMNS`, where a batch has these.
    n_ctx, n_gpu_layers, n_threads : int
        Of the Llama. Where several workers share a machine, give each its share of the cores.
    **options
        More of `choose_many`, such as ``leaf_end`` or ``n_parallel``.

    Raises
    ------
    ArgumentError
        At once: a prompt without columns, choices that are none. Of a batch: a column that is not there, or one that
        is there already; a model that cannot be loaded.

    Examples
    --------
    >>> labeller = Labeller("model.gguf", "Review: {text}\nSentiment:", ["positive", "negative"])  # doctest: +SKIP
    >>> labeller({"text": ["Loved it.", "It broke."]})["label"]                                    # doctest: +SKIP
    array(['positive', 'negative'], dtype=object)
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        prompt: str,
        choices: Any,
        *,
        calibration: Any = None,
        columns: Mapping[str, str] | None = None,
        n_ctx: int = 4096,
        n_gpu_layers: int = 0,
        n_threads: int | None = None,
        **options: Any,
    ) -> None:
        check_counts(n_ctx=n_ctx)
        for name in ("on_error", "as_ready", "progress", "sets", "probabilities"):
            if name in options:
                raise TypeError(f"Labeller() takes no {name!r}")
        unknown = [name for name in columns or {} if name not in COLUMNS]
        if unknown:
            raise ArgumentError(f"columns: {unknown[0]!r} is none of {', '.join(COLUMNS)}")
        self.model = os.fspath(model)
        self.template = Template(prompt, has_escapes=False, what="prompt")
        self.choices = read_choices(choices)
        self.calibration = calibration
        self.columns = {name: (columns or {}).get(name, name) for name in COLUMNS}
        self.n_ctx, self.n_gpu_layers, self.n_threads = n_ctx, n_gpu_layers, n_threads
        self.options = options

    def __call__(self, batch: Any) -> Any:
        """Return a batch with its labels.

        Parameters
        ----------
        batch : dict of arrays or lists, pandas.DataFrame, or pyarrow.Table or RecordBatch
            What comes back is of the same kind. For an empty one no model is loaded.
        """
        kind = type(batch).__module__.partition(".")[0]
        if isinstance(batch, Mapping):
            return {**batch, **self._labelled({name: list(batch[name]) for name in batch}, list(batch))}
        if kind == "pandas":
            names = list(map(str, batch.columns))
            given = {name: batch[name].tolist() for name in self.template.columns if name in names}
            pandas: Any = sys.modules["pandas"]
            made = self._labelled(given, names)
            return batch.assign(
                **{name: pandas.array(each, "string") if each.dtype == object else each for name, each in made.items()}
            )
        if kind == "pyarrow":
            import pyarrow

            given = {
                name: batch.column(name).to_pylist() for name in self.template.columns if name in batch.schema.names
            }
            for name, values in self._labelled(given, batch.schema.names).items():
                type_ = pyarrow.string() if values.dtype == object else pyarrow.float64()
                batch = batch.append_column(pyarrow.field(name, type_), pyarrow.array(values, type_))
            return batch
        raise ArgumentError(f"batch: {type(batch).__name__} where a dict, a DataFrame or an Arrow table belongs")

    def _labelled(self, given: dict[str, list[Any]], names: list[str]) -> dict[str, npt.NDArray[Any]]:
        self.template.check(names, "batch: ")
        for name in self.columns.values():
            if name in names:
                raise ArgumentError(f"batch: it has a column {name!r} already; columns={{…}} names another")
        n = len(given[self.template.columns[0]])
        found: dict[str, npt.NDArray[Any]] = {
            name: np.full(n, "", object) if kind is str else np.full(n, np.nan) for name, kind in COLUMNS.items()
        }
        asked: list[int] = []

        def prompts() -> Iterator[Any]:
            for i in range(n):
                try:
                    prompt = self.template.fill({name: _plain(given[name][i]) for name in self.template.columns})
                except ArgumentError as error:
                    found["error"][i] = str(error)
                else:
                    asked.append(i)
                    yield prompt

        if n == 0:
            return {self.columns[name]: values for name, values in found.items()}
        llm = loaded(self.model, self.n_ctx, self.n_gpu_layers, self.n_threads)
        calibration = self.calibration
        if isinstance(calibration, (str, os.PathLike)) and calibration != "batch":
            calibration = Calibration.load(calibration)
        options = {"mode": "exact", **self.options, "calibration": calibration}
        answers = choose_many(llm, prompts(), self.choices, on_error="return", probabilities=True, **options)
        for k, answer in enumerate(answers):
            self._put(found, asked[k], answer)
        return {self.columns[name]: values for name, values in found.items()}

    def _put(self, found: dict[str, npt.NDArray[Any]], i: int, answer: Decision[Any] | TokenTrieError) -> None:
        if isinstance(answer, TokenTrieError):
            found["error"][i] = str(answer.__cause__ or answer)
            return
        figures = {
            "probability": None if answer.probabilities is None else answer.probabilities[answer.index],
            "margin": answer.margin,
            "mass": answer.mass,
        }
        found["label"][i] = answer.text
        for name, figure in figures.items():
            if figure is not None:
                found[name][i] = figure


def _plain(value: Any) -> Any:
    """Return a cell as Python's own; None for what stands for none."""
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        return None if plain is None or bool(plain != plain) else plain
    except (TypeError, ValueError):  # of arrays, and of pandas' NA
        return plain.tolist() if isinstance(plain, np.ndarray) else None
