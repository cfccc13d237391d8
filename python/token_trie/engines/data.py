"""Labels for batches of rows, in the workers of engines for data: Ray, Dask, Spark, datasets, Daft."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.calibrator import batch_prior
from token_trie.decisions.choice import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.many import choose_many
from token_trie.decisions.options import ChooseOptions
from token_trie.engines.cells import cells_of, plain
from token_trie.engines.loaded import loaded
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.arguments import check_counts
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
        The labels, as of `choose`; pickled with it, a `TokenTrie` too. A label is the text that the model writes.
    calibration : str, os.PathLike, Calibration, Contextual or Weights, optional
        As of `choose`, without "batch"; or the path of a `Calibration`'s file.
    columns : mapping of str to str, optional
        Other names for columns of `COLUMNS`, where a batch has these.
    n_ctx, n_gpu_layers, n_threads : int
        Of the Llama. Where several workers share a machine, give each its share of the cores.
    n_parallel : int, optional
        As of `choose_many`.
    **options
        Those of `choose`, such as ``leaf_end``, for the modes that give probabilities.

    Raises
    ------
    ArgumentError
        At once: a prompt without columns, choices that are none, options out of range or that do not fit. Of a batch:
        a column that is not there or there twice, or one that is there already, or columns of unequal lengths; a model
        that cannot be loaded.
    TypeError
        There is no such option.

    Notes
    -----
    A cell reads the same from numpy, pandas and Arrow: a number has its shortest text, lists and dicts are JSON, bytes
    are UTF-8. What stands for nothing (None, NaN, NaT, NA) is that row's error. A column whose name is no text is
    called by the text of it.

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
        n_parallel: int | None = None,
        **options: Any,
    ) -> None:
        check_counts(n_ctx=n_ctx)
        if n_parallel is not None:
            check_counts(2, n_parallel=n_parallel)
        for name in ("on_error", "as_ready", "progress", "sets", "probabilities"):
            if name in options:
                raise TypeError(f"Labeller() takes no {name!r}")
        unknown = [name for name in columns or {} if name not in COLUMNS]
        if unknown:
            raise ArgumentError(f"columns: {unknown[0]!r} is none of {', '.join(COLUMNS)}")
        self.model = os.fspath(model)
        self.template = Template(prompt, has_escapes=False, what="prompt")
        if batch_prior(calibration) is not None:
            raise ArgumentError(
                "calibration: 'batch' would depend on how the engine cuts the batches; fit a Calibration of "
                'kind="batch" on some rows, and give that'
            )
        known = None if _is_file(calibration) else calibration
        self.options = {"mode": "exact", "probabilities": True, **options}
        read = ChooseOptions.read("Labeller", {**self.options, "calibration": known})
        self.choices = ChoiceRequest.read(choices, read).choices
        self.calibration = calibration
        self.columns = {name: (columns or {}).get(name, name) for name in COLUMNS}
        self.n_ctx, self.n_gpu_layers, self.n_threads = n_ctx, n_gpu_layers, n_threads
        self.n_parallel = n_parallel

    def __call__(self, batch: Any) -> Any:
        """Return a batch with its labels.

        Parameters
        ----------
        batch : dict of arrays or lists, pandas.DataFrame, or pyarrow.Table or RecordBatch
            What comes back is of the same kind. For an empty one no model is loaded.
        """
        kind = type(batch).__module__.partition(".")[0]
        if isinstance(batch, Mapping):
            return {**batch, **self._labelled(batch.items())}
        if kind == "pandas":
            pandas: Any = sys.modules["pandas"]
            made = self._labelled(batch.items())
            return batch.assign(
                **{name: pandas.array(each, "string") if each.dtype == object else each for name, each in made.items()}
            )
        if kind == "pyarrow":
            import pyarrow

            for name, values in self._labelled(zip(batch.schema.names, batch.columns, strict=True)).items():
                type_ = pyarrow.string() if values.dtype == object else pyarrow.float64()
                batch = batch.append_column(pyarrow.field(name, type_), pyarrow.array(values, type_))
            return batch
        raise ArgumentError(f"batch: {type(batch).__name__} where a dict, a DataFrame or an Arrow table belongs")

    def _labelled(self, named: Iterable[tuple[Any, Any]]) -> dict[str, npt.NDArray[Any]]:
        columns = [(str(name), column) for name, column in named]
        n = self._check(columns)
        given = {name: cells_of(column) for name, column in columns if name in self.template.columns}
        found: dict[str, npt.NDArray[Any]] = {
            name: np.full(n, "", object) if kind is str else np.full(n, np.nan) for name, kind in COLUMNS.items()
        }
        asked: list[int] = []

        def prompts() -> Iterator[Any]:
            for i in range(n):
                try:
                    prompt = self.template.fill({name: _cell(name, cells[i]) for name, cells in given.items()})
                except ArgumentError as error:
                    found["error"][i] = str(error)
                else:
                    asked.append(i)
                    yield prompt

        if n == 0:
            return {self.columns[name]: values for name, values in found.items()}
        llm = loaded(self.model, self.n_ctx, self.n_gpu_layers, self.n_threads)
        calibration = Calibration.load(self.calibration) if _is_file(self.calibration) else self.calibration
        answers = choose_many(
            llm,
            prompts(),
            self.choices,
            on_error="return",
            n_parallel=self.n_parallel,
            calibration=calibration,
            **self.options,
        )
        for k, answer in enumerate(answers):
            self._put(found, asked[k], answer)
        return {self.columns[name]: values for name, values in found.items()}

    def _check(self, columns: list[tuple[str, Any]]) -> int:
        """Return how many rows there are; ArgumentError where the columns are not those of a batch."""
        names = [name for name, _ in columns]
        self.template.check(names, "batch: ")
        for name in self.template.columns:
            if names.count(name) > 1:
                raise ArgumentError(f"batch: {names.count(name)} columns {name!r}, which the prompt has")
        for name in self.columns.values():
            if name in names:
                raise ArgumentError(f"batch: it has a column {name!r} already; columns={{…}} names another")
        first, n = columns[0][0], _count(*columns[0])
        for name, column in columns:
            if _count(name, column) != n:
                raise ArgumentError(f"batch: column {name!r} has {len(column):,} rows, where {first!r} has {n:,}")
        return n

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


def _is_file(calibration: Any) -> bool:
    return isinstance(calibration, (str, os.PathLike))


def _count(name: str, column: Any) -> int:
    if not isinstance(column, Sized) or isinstance(column, (str, bytes)) or getattr(column, "ndim", 1) == 0:
        raise ArgumentError(f"batch: column {name!r} is {type(column).__name__}, where a list or an array belongs")
    return len(column)


def _cell(name: str, cell: Any) -> Any:
    try:
        return plain(cell)
    except UnicodeDecodeError as error:
        raise ArgumentError(f"column {name!r}: not UTF-8 ({error})") from error
    except (ArithmeticError, LookupError, NotImplementedError, ValueError) as error:
        raise ArgumentError(f"column {name!r}: {error}") from error
