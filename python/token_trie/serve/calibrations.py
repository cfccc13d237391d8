"""Calibrations of a server: fitted ones by question, and running priors, which are means over its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from token_trie.decisions.calibration import Mean, fingerprint
from token_trie.errors import CalibrationError
from token_trie.native.core import Llama, _core
from token_trie.native.files import write_whole
from token_trie.questions.form import Asked, FormAsked
from token_trie.questions.options import DecideOptions
from token_trie.questions.question import Answered
from token_trie.questions.scores import LEAF_END, Scored, priors_of_means, with_scored
from token_trie.sets.lru import Memory, Seen
from token_trie.trust.calibration import Calibration
from token_trie.trust.fitted import JsonObject

_FORMAT, _VERSION = "token-trie running priors", 2
_MAX_QUESTIONS, _MAX_TEXTS = 4096, 250_000
_MAX_BYTES = 64 << 20


class RunningPriors:
    """The running priors of a server. For the event loop's thread, except `save`.

    A file keeps them; without one, they are lost when the server ends.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._means: Memory[Mean] = Memory(_MAX_QUESTIONS, _MAX_TEXTS)
        self._seen = Seen()  # states, each with a question
        self._bound: dict[str, str] = {}
        self._has_news = False
        self._saving = threading.Lock()

    def load(self, llm: Llama) -> None:
        """Read the file, if it exists, before the first request; OSError if it cannot be read.

        CalibrationError if it belongs to another model or llama.cpp, or is no such file; it is not changed.
        """
        self._bound = {"model": fingerprint(llm), "llama": _core.llama_loaded()}
        if self._path is None or not self._path.exists():
            return
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise CalibrationError(f"larger than {_MAX_BYTES:,} bytes")
            self._read(JsonObject(json.loads(self._path.read_text(encoding="utf-8")), ""))
        except (ValueError, RecursionError) as error:
            raise CalibrationError(f"{self._path}: {error}; name another file") from error

    def _read(self, read: JsonObject) -> None:
        if read.text("format") != _FORMAT or read.integer("version") != _VERSION:
            raise CalibrationError(f"format: this is no {_FORMAT} of version {_VERSION}")
        for name, own in self._bound.items():
            if read.text(name) != own:
                raise CalibrationError(f"{name}: {read.text(name)[:40]}, and this is {own[:40]}")
        questions = read.inner("questions")
        for key in questions.names:
            one = questions.inner(key)
            total = one.floats("total", (None,))
            self._means.put(key, len(total), Mean(n=one.integer("n"), total=total))

    def answer(
        self,
        asked: Asked,
        state: str,
        scored: Sequence[Scored],
        digests: Sequence[str | None],
        options: DecideOptions,
        *,
        counts: bool,
    ) -> Answered[Any] | None:
        """Return the answer corrected by the mean scores of all states so far, this one included if it `counts`.

        A state counts once, as long as it is among the last 100,000. None if too few states were seen, or the question
        uses no prior. `digests` has that of each view's prompt without a state; None for a view without a prior.
        """
        if (
            not isinstance(asked, FormAsked)
            or asked.calibrator is not options.calibrator
            or not any(map(asked.absent, asked.views))
        ):
            return None  # it has a calibration of its own, or uses no prior
        if options.reproducible:
            return None
        has_prior = [digest is not None for digest in digests]
        means = [self._mean(digest, state, own, counts) for digest, own in zip(digests, scored, strict=False) if digest]
        found = iter(priors_of_means(means))
        priors = [next(found) if has else None for has in has_prior[: len(scored)]]
        return None if not any(priors) else replace(asked.answer(scored, priors), calibration="running")

    def _mean(self, digest: str, state: str, scored: Scored, counts: bool) -> Mean:
        mean = self._means.find(digest) or Mean()
        if mean.total is not None and mean.total.shape != scored.logprobs.shape:
            mean = Mean()  # a damaged file
        if counts and self._seen.is_new((digest, state)):
            mean = with_scored(mean, scored)
            self._means.put(digest, len(scored.logprobs), mean)
            self._has_news = True
        return mean

    def save(self) -> None:
        """Write changes to the file. For any thread; OSError if it cannot be written."""
        with self._saving:
            if self._path is None or not self._has_news:
                return
            self._has_news = False
            questions = {
                key: {"n": mean.n, "total": np.round(mean.total, 4).tolist()}
                for key, mean in self._means.entries()
                if mean.total is not None
            }
            data = json.dumps({"format": _FORMAT, "version": _VERSION, **self._bound, "questions": questions}, indent=0)
            try:
                write_whole(self._path, data.encode())
            except OSError:
                self._has_news = True
                raise


class Calibrations:
    """Calibrations from files, and the running priors of all other questions; None: these have the contextual prior.

    CalibrationError if a file is no calibration; OSError if it cannot be read.
    """

    def __init__(self, files: Iterable[Path] = (), running: RunningPriors | None = None) -> None:
        self.running = running
        self._loaded = [(file, Calibration.load(file)) for file in files]
        self._of = {(one.binding.asked, one.classes): one for _, one in self._loaded}

    def load(self, llm: Llama) -> None:
        """Bind them to a model; CalibrationError for one of another model or llama.cpp, or of no question."""
        if self.running is not None:
            self.running.load(llm)
        for file, one in self._loaded:
            try:
                asked = _question(one.binding.asked)
                if len(asked) < 2:
                    raise CalibrationError("was fitted on prompts; a server answers questions")
                if len(asked) > 2:
                    raise CalibrationError("was fitted with examples before the row, which a server does not have")
                own = (fingerprint(llm), _core.llama_loaded(), one.binding.asked, one.classes, LEAF_END)
                one.binding.require(type(one.binding)(*own))
            except CalibrationError as error:
                raise CalibrationError(f"{file}: {error}") from error

    def apply(self, asked: Asked, options: DecideOptions) -> Asked:
        """Return a question with the calibration that was fitted on it, unless the options exclude it."""
        if not isinstance(asked, FormAsked) or options.calibration != DecideOptions.calibration:
            return asked
        found = self._of.get((asked.asked, asked.classes)) if self._of else None
        if found is None or (found.needs_state and options.reproducible):
            return asked
        return replace(asked, calibrator=found)


def _question(asked: str) -> list[object]:
    """Return the orders and options of the question in a binding, and its examples if any; empty for prompts."""
    try:
        read = json.loads(asked)
    except ValueError:
        return []
    return [part for part in read if not isinstance(part, dict)] if isinstance(read, list) else []  # without forms
