"""`Labeller`: labels for batches of rows, in the workers of Ray, Dask, Spark, datasets or Daft."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.choose import ChoiceRequest
from token_trie.decisions.gold import is_nothing
from token_trie.decisions.many import choose_many
from token_trie.decisions.options import ChooseOptions
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama, llama_cpp
from token_trie.sets.prompt import Template

COLUMNS = ("label", "probability", "margin", "mass", "error")
"""The columns that a `Labeller` adds to a batch, in this order: the first and the last are texts, others float64."""

_llamas: dict[tuple[Any, ...], Llama] = {}
_opening = threading.Lock()


def loaded(path: str, n_ctx: int, n_gpu_layers: int, n_threads: int | None) -> Llama:
    """Return the process's Llama for a file and parameters, loaded once; ArgumentError if it cannot be loaded."""
    try:
        stat = os.stat(path)
        file = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
        key = *file, n_ctx, n_gpu_layers, n_threads, os.getpid()
        with _opening:
            if key not in _llamas:
                threads = {} if n_threads is None else {"n_threads": n_threads, "n_threads_batch": n_threads}
                options: dict[str, Any] = {"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "verbose": False, **threads}
                _llamas[key] = llama_cpp.Llama(path, **options)
            return _llamas[key]
    except (OSError, ValueError) as error:
        raise ArgumentError(f"model: {error}") from error


class Labeller:
    r"""Labels each row of a batch with one of a set of choices, by a model's answer to a prompt about the row.

    It is small and can be pickled. A process loads the model when it first labels, once for each file and parameters.
    `COLUMNS` are added to the batch. A row that fails has an ``error``, an empty label and NaN.

    Parameters
    ----------
    model : str or os.PathLike
        A GGUF file, at the same path on all machines.
    prompt : str
        A template with columns in braces, and ``{{`` for a brace. Cells are data: names of control tokens stay text.
    choices
        The labels, as for `choose`, including a `TokenTrie`. A label is the text that the model writes.
    n_ctx, n_gpu_layers, n_threads : int
        Parameters of the Llama. Where several workers share a machine, give each its share of the cores.
    n_parallel : int, optional
        As for `choose_many`.
    **options
        Options of `choose` for whole answers, such as ``leaf_end`` and ``calibration`` (except "batch").

    Raises
    ------
    ArgumentError
        At once: a prompt without columns, wrong choices or options. When called: a column of the prompt is missing, an
        added column exists already, or the model cannot be loaded.
    TypeError
        There is no such option.

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
        n_ctx: int = 4096,
        n_gpu_layers: int = 0,
        n_threads: int | None = None,
        n_parallel: int | None = None,
        **options: Any,
    ) -> None:
        self.model = os.fspath(model)
        self.template = Template(prompt, has_escapes=False, what="prompt")
        self.n_ctx, self.n_gpu_layers, self.n_threads = n_ctx, n_gpu_layers, n_threads
        self.n_parallel = n_parallel
        if options.get("calibration") == "batch":
            raise ArgumentError("calibration: 'batch' would depend on how the engine cuts the batches")
        self.options = {"mode": "exact", "probabilities": True, **options}
        self.choices = ChoiceRequest.read(choices, ChooseOptions.read("Labeller", self.options)).choices

    def __call__(self, batch: Any) -> Any:
        """Return a batch, a dict of arrays or lists or a pandas.DataFrame, with the answers to its rows.

        For an empty batch, no model is loaded.
        """
        columns = list(map(str, batch))
        self.template.check(columns, "batch: ")
        clash = [name for name in COLUMNS if name in columns]
        if clash:
            raise ArgumentError(f"batch: it has a column {clash[0]!r} already")
        added = self._answered([list(batch[name]) for name in self.template.columns])
        if isinstance(batch, Mapping):
            return {**batch, **added}
        return batch.assign(**added).astype({"label": "string", "error": "string"})

    def _answered(self, cells: list[list[Any]]) -> dict[str, npt.NDArray[Any]]:
        n, rows = len(cells[0]), list[int]()
        added: dict[str, npt.NDArray[Any]] = {
            name: np.full(n, "", object) if name in ("label", "error") else np.full(n, np.nan) for name in COLUMNS
        }

        def prompts() -> Iterator[Any]:
            for i, row in enumerate(zip(*cells, strict=True)):
                try:
                    prompt = self.template.fill(dict(zip(self.template.columns, map(_plain, row), strict=True)))
                except (ArgumentError, UnicodeDecodeError) as error:
                    added["error"][i] = str(error)
                else:
                    rows.append(i)
                    yield prompt

        if n == 0:
            return added
        llm = loaded(self.model, self.n_ctx, self.n_gpu_layers, self.n_threads)
        given: dict[str, Any] = {**self.options, "n_parallel": self.n_parallel, "on_error": "return"}
        for k, answer in enumerate(choose_many(llm, prompts(), self.choices, **given)):
            if isinstance(answer, TokenTrieError):
                added["error"][rows[k]] = str(answer.__cause__ or answer)
                continue
            probability = None if answer.probabilities is None else answer.probabilities[answer.index]
            for name, value in zip(COLUMNS, (answer.text, probability, answer.margin, answer.mass), strict=False):
                if value is not None:
                    added[name][rows[k]] = value
        return added


def _plain(cell: Any) -> Any:
    """Return a cell as a value of Python; None for a missing one. UnicodeDecodeError for bytes that are not UTF-8."""
    if isinstance(cell, np.floating):
        cell = float(str(cell))  # the shortest text of this float
    elif isinstance(cell, np.datetime64):
        cell = None if np.isnat(cell) else str(cell).replace("T", " ")
    elif isinstance(cell, (np.generic, np.ndarray)):
        cell = cell.tolist()
    if isinstance(cell, bytes):
        return cell.decode()
    return None if not isinstance(cell, str) and is_nothing(cell) else cell
