"""Rows of a table: how they are put to the model, and the scores that it gives them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeGuard

import numpy as np

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.calibration import Base, Binding, fingerprint, spelled_as
from token_trie.decisions.choose import ChoiceRequest
from token_trie.decisions.options import ChooseOptions
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.query import LEAF_ENDS, LeafEnd, Plan
from token_trie.native.core import Llama, _core
from token_trie.native.files import write_whole
from token_trie.native.lifetime import attachment
from token_trie.native.options import Options, check_counts, check_name, encode
from token_trie.plan import Many, Model, OnError, Results
from token_trie.questions.decide import about, prepare
from token_trie.questions.form import Form, mass_of
from token_trie.questions.options import DecideOptions, FormName
from token_trie.questions.question import Choice, Examples, Predicate, Question, Score, state_text
from token_trie.questions.scores import LEAF_END
from token_trie.questions.searched import PreparedSet
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.prompt import tokenize_prompt
from token_trie.sets.trie import TokenTrie


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """How rows are written for the model.

    Parameters
    ----------
    template : str
        For your own prompts: the template from which they are made, such as the text with ``{text}`` in it. It is saved
        with a calibration, and compared if both sides have one.
    columns : str
        For a question: the columns of a table from which states are made, or their template. It is saved and compared
        like `template`.
    leaf_end : {"longest", "any", "follow"}
        For your own prompts, as for `choose`.
    leading_space : bool, optional
        For your own prompts, as for `choose`.
    form : {"unlisted", "listed", "letters"} or Form, optional
        For a question, as for `decide`.
    orders : int
        For a question, as for `decide`.
    examples : Examples, optional
        For a question, as for `decide`. No row may be an example.
    """

    template: str = ""
    columns: str = ""
    leaf_end: LeafEnd = "longest"
    leading_space: bool | None = None
    form: FormName | Form | None = None
    orders: int = 1
    examples: Examples | None = None

    def __post_init__(self) -> None:
        encode(self.template, "template")
        encode(self.columns, "columns")
        check_name(self.leaf_end, LEAF_ENDS, "leaf_end")
        check_counts(orders=self.orders)
        self.of_question()

    def of_question(self) -> DecideOptions:
        """Return the options of a question; ArgumentError if one is wrong."""
        return DecideOptions(form=self.form, orders=self.orders, examples=self.examples)

    def require_for(self, *, is_question: bool) -> None:
        """Raise ArgumentError if options of a question are given without one, or the other way round."""
        if is_question and (self.template or self.leaf_end != "longest" or self.leading_space is not None):
            raise ArgumentError("template, leaf_end and leading_space: are for choices after prompts of one's own")
        own = (self.columns, self.form, self.orders, self.examples)
        if not is_question and own != ("", None, 1, None):
            raise ArgumentError("columns, form, orders and examples: go with a Choice, a Predicate or a Score")


class Row(NamedTuple):
    """The model's scores of one row; arrays have a number for each class."""

    raw: Floats
    contextual: Floats | None
    mass: float
    state: States | None


@dataclass(frozen=True, eq=False)
class Readings:
    """The model's scores of rows, with one set of options."""

    raw: Floats
    """Log-weights, whose softmax are the raw probabilities, shape (n_rows, n_classes)."""
    contextual: Floats | None
    """The same less the contextual prior; None for choices."""
    mass: Floats
    """The model's own probability for all classes together, shape (n_rows,)."""
    states: States | None
    """float32, shape (n_rows, n_embd): the hidden state of the last token of the prompt."""
    binding: Binding
    """The model, classes and options of the readings."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The classes, in the order given: texts of choices, or names of options."""
        return self.binding.classes

    def __len__(self) -> int:
        return len(self.raw)

    def scores(self, base: Base) -> Floats:
        """Return the raw or the contextual scores."""
        scores = self.raw if base == "raw" else self.contextual
        assert scores is not None
        return scores

    def rows(self, positions: Ints) -> Readings:
        """Return the readings of some rows."""
        contextual = None if self.contextual is None else self.contextual[positions]
        states = None if self.states is None else self.states[positions]
        return Readings(self.raw[positions], contextual, self.mass[positions], states, self.binding)

    @classmethod
    def of(cls, rows: Iterable[Row], binding: Binding) -> Readings:
        """Collect rows."""
        rows, n = list(rows), len(binding.classes)
        contextual = [row.contextual for row in rows if row.contextual is not None]
        states = [row.state for row in rows if row.state is not None]
        return cls(
            raw=np.array([row.raw for row in rows], np.float64).reshape(len(rows), n),
            contextual=np.array(contextual, np.float64) if contextual else None,
            mass=np.array([row.mass for row in rows], np.float64),
            states=np.array(states, np.float32) if states else None,
            binding=binding,
        )


class RowReader(ABC):
    """Reads rows with a model, for a set of choices or a question."""

    values: tuple[Any, ...]
    """The caller's value of each class, in their order."""
    binding: Binding
    """The model, classes and options of the readings."""
    each: str
    """The noun for a row in messages."""
    alone: str
    """The function that reads one row, for messages."""

    def __init__(self, llm: Llama) -> None:
        attachment(llm)  # refuses what is no Llama
        self._llm = llm

    def read(
        self,
        rows: Iterable[Any],
        *,
        states: bool = False,
        progress: bool = False,
        n_parallel: int | None = None,
        n_ctx: int | None = None,
        on_error: OnError = "raise",
    ) -> Results:
        """Yield each `Row`, with hidden states if requested; errors as for `choose_many`, with the row's position."""
        many = Many(self._llm, rows, self.each, self.alone, progress, n_parallel, n_ctx, on_error)
        return many.run(partial(self.plan, states=states))

    @abstractmethod
    def prompts(self, row: Any) -> list[list[int]]:
        """Return the tokens of a row's prompts; errors as for `read`, without the position."""

    @abstractmethod
    def plan(self, model: Model, row: Any, *, states: bool) -> Plan[Row]:
        """Plan the scores of a row, with hidden states if requested."""


def reader_of(llm: Llama, choices: ChoicesLike | Question, options: RowOptions) -> RowReader:
    """Make a reader of rows; for a question, also of their scores less its contextual prior.

    ArgumentError: choices or options are wrong or do not fit together, or two choices are the same answer.
    """
    options.require_for(is_question=is_question(choices))
    if is_question(choices):
        return _QuestionReader(llm, choices, options)
    return _ChoiceReader(llm, choices, options)


def is_question(choices: object) -> TypeGuard[Question]:
    """Whether rows are states that a question is about, instead of prompts that choices follow."""
    return isinstance(choices, (Choice, Predicate, Score))


class _ChoiceReader(RowReader):
    each, alone = "prompt", "choose"

    def __init__(self, llm: Llama, choices: ChoicesLike, options: RowOptions) -> None:
        super().__init__(llm)
        scored = ChooseOptions(leaf_end=options.leaf_end, leading_space=options.leading_space, probabilities=True)
        self._request = ChoiceRequest.read(choices, scored)
        given = self._request.choices
        if isinstance(given, Choices):  # values of their own, because choices that are spelled alike are no two classes
            self._request = replace(self._request, choices=Choices(given.texts, list(given.values)))
        texts = tuple(leaf.name for leaf in given) if isinstance(given, TokenTrie) else tuple(given.texts)
        self.values = texts if isinstance(given, TokenTrie) else tuple(given.values)
        _require_distinct(texts)
        spelled = spelled_as(given, options.leading_space)
        self.binding = Binding(
            fingerprint(llm), _core.llama_loaded(), options.template, texts, options.leaf_end, spelled
        )

    def prompts(self, row: Any) -> list[list[int]]:
        """Return the tokens of the prompt."""
        return [tokenize_prompt(self._llm, row)]

    def plan(self, model: Model, row: Any, *, states: bool) -> Plan[Row]:
        """Plan the scores of the choices after a prompt."""
        found = yield from self._request.undecided(states).scored(model, row)
        choices, answer = found.bound.choices, found.answer
        scores = choices.aligned(answer.logprobs)[choices.left()]
        state = answer.state if len(answer.state) else None
        return Row(scores, None, min(1.0, float(np.exp(scores).sum())), state)


class _QuestionReader(RowReader):
    each, alone = "state", "decide"

    def __init__(self, llm: Llama, question: Question, options: RowOptions) -> None:
        super().__init__(llm)
        prepared = prepare(question, options.of_question(), llm)
        if isinstance(prepared, PreparedSet):
            raise ArgumentError("choices: a set that is searched gives no scores of all answers, which this needs")
        self._question = prepared
        other = (None,) if len(prepared.classes) > len(question.values) else ()
        self.values = (*question.values, *other)
        _require_distinct(prepared.classes)
        self.binding = Binding(
            fingerprint(llm),
            _core.llama_loaded(),
            prepared.wording,
            prepared.classes,
            LEAF_END,
            columns=options.columns,
        )

    def prompts(self, row: Any) -> list[list[int]]:
        """Return the tokens of the question about a state, one list for each view."""
        tokens_of = about(Model.of(self._llm), self._state(row))
        return [tokens_of(view, is_prior=False) for view in self._question.views]

    def plan(self, model: Model, row: Any, *, states: bool) -> Plan[Row]:
        """Plan the scores of the question about a state, and those less its prior."""
        question = self._question
        tokens_of = about(model, self._state(row))
        scored, priors = yield from question.scored(model, tokens_of, with_state=states)
        contextual = question.of_options(scored, priors) if priors else None
        return Row(question.of_options(scored, ()), contextual, mass_of(scored), scored[0].state)

    def _state(self, row: object) -> str:
        text = state_text(row)
        if any(shot.state == text for shot in self._question.shots):
            raise ArgumentError("is among the examples, which have its answer; leave it out here or there")
        return text


def _require_distinct(texts: tuple[str, ...]) -> None:
    seen = set[str]()
    for i, text in enumerate(texts):
        if text in seen:
            raise ArgumentError(f"choices[{i}]: {text!r} is there twice; a class is one answer")
        seen.add(text)


_FORMAT = 3
_SECONDS_BETWEEN_WRITES = 5.0


def digest_of(*parts: object) -> str:
    """Return the SHA-256 of values that JSON has, or whose `repr` is exact."""
    return hashlib.sha256(json.dumps(parts, default=repr).encode(errors="surrogatepass")).hexdigest()


class CachedRows:
    """Rows that the model has read, by the digest of each, in memory and in a file, if there is a folder for it.

    `key` is the digest of all options that the readings depend on. ArgumentError if the folder is a file.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, key: str) -> None:
        if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
            raise ArgumentError(f"cache must be a folder, and {str(folder)!r} is a file")
        self.path = None if folder is None else Path(folder) / f"readings-{key[:24]}.npz"
        self.problem: str | None = None
        """Why an existing file was not loaded."""
        self._has_states = False  # whether they were asked for, as not every model has them
        self._rows: dict[bytes, Row] = {}
        if self.path is not None and self.path.exists():
            try:
                self._load(self.path)
            except Exception as error:  # a foreign file may raise anything in the readers of zip and npy
                self.problem = f"{self.path}: broken, and read anew ({type(error).__name__}: {error})"

    def read(
        self,
        reader: RowReader,
        rows: Sequence[Any],
        *,
        states: bool = False,
        keys: Sequence[bytes] | None = None,
        failed: dict[int, TokenTrieError] | None = None,
        **options: Any,
    ) -> tuple[Readings, int]:
        """Read rows with the model, except cached rows and duplicates; return the number of those read too.

        Rows are told apart by `keys`, by default the digests of their tokens. Options and errors are those of
        `RowReader.read`. With `failed`, the first error is raised after the last row; all are put there, by position.
        """
        self._require(states)
        digests = [digest_of_row(reader, row) for row in rows] if keys is None else keys
        new: dict[bytes, int] = {}
        for i, digest in enumerate(digests):
            if digest not in self._rows:
                new.setdefault(digest, i)
        errors: dict[bytes, TokenTrieError] = {}
        if new:
            some = [rows[i] for i in new.values()]
            with closing(self.each(reader, some, keys=new, **options)) as found:
                for digest, row in zip(new, found, strict=True):
                    if isinstance(row, TokenTrieError):
                        errors[digest] = row
                        if failed is None:
                            break
        for digest, error in errors.items():
            errors[digest] = type(error)(f"{reader.each}s[{new[digest]}]: {error.__cause__}")
            errors[digest].__cause__ = error.__cause__
        if errors:
            if failed is not None:
                failed |= {i: errors[digest] for i, digest in enumerate(digests) if digest in errors}
            raise next(iter(errors.values()))
        return Readings.of((self._rows[digest] for digest in digests), reader.binding), len(new)

    def __len__(self) -> int:
        return len(self._rows)

    def each(
        self,
        reader: RowReader,
        rows: Iterable[Any],
        *,
        states: bool = False,
        keys: Iterable[bytes] | None = None,
        **options: Any,
    ) -> Generator[Row | TokenTrieError]:
        """Yield each row or its error, in order; rows are taken as the model reads them, and known ones not read."""
        self._require(states)
        digests = None if keys is None else iter(keys)
        waiting: deque[tuple[bytes, bool]] = deque()  # digests, and whether the model reads the row

        def new() -> Iterator[Any]:
            for row in rows:
                digest = digest_of_row(reader, row) if digests is None else next(digests)
                waiting.append((digest, digest not in self._rows))
                if waiting[-1][1]:
                    yield row

        def known() -> Iterator[Row]:
            while waiting and not waiting[0][1]:
                yield self._rows[waiting.popleft()[0]]

        written_at = time.monotonic()
        try:
            with closing(reader.read(new(), states=self._has_states, on_error="return", **options)) as found:
                for row in found:
                    yield from known()
                    digest, _ = waiting.popleft()
                    if not isinstance(row, TokenTrieError):
                        self._rows[digest] = row
                    yield row
                    if time.monotonic() - written_at > _SECONDS_BETWEEN_WRITES:
                        self._write()
                        written_at = time.monotonic()
            yield from known()
        finally:  # after an interrupt, the next call reads only the rest
            self._write()

    def _require(self, states: bool) -> None:
        """Forget rows that were read without hidden states, if these are wanted."""
        if states and not self._has_states:
            self._rows, self._has_states = {}, True

    def _load(self, path: Path) -> None:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            digests = [digest.tobytes() for digest in file["digests"]]
            columns = [file[name] if name in file else [None] * len(digests) for name in Row._fields]
            self._rows = {digest: Row(*row) for digest, *row in zip(digests, *columns, strict=True)}
            self._has_states = bool(file["has_states"])

    def _write(self) -> None:
        """Replace the file, if there is one; on failure it stays as it was."""
        if self.path is None or not self._rows:
            return
        columns = dict(zip(Row._fields, zip(*self._rows.values(), strict=True), strict=True))
        arrays = {name: np.array(column) for name, column in columns.items() if column[0] is not None}
        arrays["digests"] = np.array([np.frombuffer(digest, np.uint8) for digest in self._rows])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, has_states=np.array(self._has_states), **arrays)
        write_whole(self.path, file.getbuffer())


def key_of(options: RowOptions, binding: Binding) -> str:
    """Return the digest of all that readings depend on besides the prompts."""
    # The tokens of prompts differ where the templates or columns do that they were made of.
    own = replace(binding, columns="", wording="" if options.template else binding.wording)
    return digest_of(_FORMAT, own)


def digest_of_row(reader: RowReader, row: Any) -> bytes:
    """Return the digest of the tokens of a row's prompts, 16 bytes; equal rows have the same one."""
    try:
        prompts: Any = reader.prompts(row)
    except TokenTrieError:  # the reader raises it with the position of the row
        prompts = repr(row)
    return bytes.fromhex(digest_of(prompts))[:16]


if TYPE_CHECKING:  # by scripts/keywords

    class RowKeywords(TypedDict, total=False):
        """Keywords of `RowOptions`."""

        template: str
        columns: str
        leaf_end: LeafEnd
        leading_space: bool | None
        form: FormName | Form | None
        orders: int
        examples: Examples | None
