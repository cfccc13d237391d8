"""`fill`: a record out of a prompt, by a JSON Schema or a type that pydantic reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from token_trie.decisions.bound_choices import Reader
from token_trie.decisions.options import RecordOptions
from token_trie.decisions.run import Bound, Prefix, Written, run
from token_trie.errors import ArgumentError
from token_trie.llama.stream import Stream
from token_trie.llama.text import append
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.records.plan import Layout, Node
from token_trie.records.schema import read_schema
from token_trie.records.write import RecordDecoder, Writer
from token_trie.sets.lru import Memory
from token_trie.sets.prompt import Prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import RecordKeywords

T = TypeVar("T")


@dataclass(frozen=True)
class Record(Generic[T]):
    """A record that is valid by its schema.

    Attributes
    ----------
    value : object
        An instance of the given model or type; for a JSON Schema, the result of `json.loads`.
    text : str
        The JSON that was written.
    probabilities : dict of str to float
        The probability of every value that was chosen, by its JSON pointer (``"/unit"``, ``"/tags/0"``). In exact mode
        it is the model's own probability of the value's text; it includes the end of the value only if another value
        continues from there. In the modes that go step by step, and for integers in every mode, it is the product of
        the probabilities of its tokens among the allowed ones. The pointer of an object or list (``""`` for the whole
        record) has the probability of the choice of its fields, or of its number of items.
    truncated : tuple of str
        Pointers of values that were ended because they reached `max_tokens`.
    stats : RecordStats
        What the record cost.
    thought : str or None
        What the model wrote before the record, up to the marker; None without `think`.
    """

    value: T
    text: str
    probabilities: dict[str, float] = field(default_factory=dict, compare=False)
    truncated: tuple[str, ...] = ()
    stats: RecordStats | None = field(default=None, compare=False)
    thought: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RecordStats:
    """What one record cost."""

    n_prompt: int
    """Tokens before it."""
    n_tokens: int
    """Tokens of it."""
    n_choices: int
    """Decisions: values, and which fields and items there are."""
    n_branches: int
    """Branch points passed, in the modes that go step by step: where two or more tokens were allowed."""
    n_free: int
    """Tokens that were generated under a grammar, those that only told where a value ends among them."""
    n_passes: int
    """Forward passes of the model behind what was evaluated before and, by `fill`, together with the prompt: step by
    step as many as branch points and free tokens, those apart that stand right behind what is evaluated."""
    n_evaluated: int
    """Nodes of tries that the model was asked about, in exact mode."""
    n_unproved: int
    """Decisions of exact mode that ended with `max_nodes` before it was proved that nothing else is more probable."""
    fill_ms: float
    """Time it took, that of a prompt and a thought included."""


class RecordTemplate(NamedTuple):
    """What is to be filled in."""

    node: Node
    read: Callable[[str], Any]
    """Makes the value of the record's text."""
    schema: Any
    """The JSON Schema."""
    ignored: tuple[str, ...] = ()
    """What a record is not kept to, with the reason."""


_templates: Memory[RecordTemplate] = Memory(64, 1 << 20)


def json_key(given: Mapping[str, Any] | bool, what: str) -> str:
    """Return the JSON of what was given, by which what is read of it is remembered; ArgumentError where it has none."""
    try:
        return json.dumps(given if isinstance(given, bool) else dict(given), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{what}: no JSON: {error}") from error


def read_template(schema: object, *, strict: bool = True) -> RecordTemplate:
    """Read a schema, the last of which are remembered; ArgumentError as of `read_schema`, or without pydantic.

    Where it is not strict, what cannot be kept to is ignored.
    """
    if isinstance(schema, (Mapping, bool)):
        key = json_key(schema, "schema")
        return _templates.get((key, strict), len(key), lambda: _read_json(json.loads(key), strict))
    if schema is None or isinstance(schema, (str, bytes, int, float, list, tuple, set)):
        raise ArgumentError(
            f"schema: {type(schema).__name__} where a JSON Schema (a dict), a pydantic model, a dataclass, a "
            "TypedDict or another type belongs"
        )
    try:
        # Unions and Literals are equal in any order.
        return _templates.get((schema, repr(schema)), 1000, lambda: _read_type(schema))
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _read_type(schema)


def _read_json(schema: Any, strict: bool) -> RecordTemplate:
    ignored: list[str] = []
    node = read_schema(schema, None if strict else ignored)
    return RecordTemplate(node, json.loads, schema, tuple(ignored))


def _read_type(schema: Any) -> RecordTemplate:
    try:
        import pydantic
    except ImportError as error:
        raise ArgumentError(
            'schema: types are read by pydantic, which is not installed: pip install "token-trie[records]"'
        ) from error
    try:
        adapter: Any = schema if isinstance(schema, pydantic.TypeAdapter) else pydantic.TypeAdapter(schema)
        written = adapter.json_schema()
    except Exception as error:
        raise ArgumentError(f"schema: pydantic makes none of {schema!r}: {error}") from error

    def read(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise ArgumentError(f"schema: {schema!r} refuses what its own schema allows, {text}: {error}") from error

    return RecordTemplate(read_schema(written), read, written)


R = TypeVar("R")


@dataclass(frozen=True)
class RecordRequest(Written[R]):
    """Something to fill in."""

    options: RecordOptions
    fill: Callable[[Filling], R]
    lead: str = ""
    """What it begins with, in which control tokens may be written out behind a thought."""

    @property
    def draws(self) -> bool:
        """Whether something is drawn."""
        return self.options.effective_temperature(self.options.mode == "sampled") > 0 or self.options.think is not None

    def bind(self, reader: Reader, prefix: Prefix) -> BoundRecord[R]:
        """Bind it to what it stands behind."""
        return BoundRecord(self, prefix.tokens, prefix)


@dataclass(frozen=True)
class BoundRecord(Bound[R]):
    """Something to fill in behind a prompt."""

    request: RecordRequest[R]
    tokens: list[int]
    prefix: Prefix

    def run(self, stream: Stream) -> R:
        """Fill it in; the stream's sequence is then the prompt and that, its grammar what it was."""
        with stream.other_grammars():
            return self.request.fill(Filling(stream, self.request.options, self.prefix, self.request.lead))


class Filling:
    """One record under way."""

    def __init__(self, stream: Stream, options: RecordOptions, prefix: Prefix, lead: str) -> None:
        self._started = time.perf_counter()
        self._thought = prefix.thought
        n_prompt = len(prefix.tokens)
        if prefix.thought is not None and lead:
            append(stream, lead)
            n_prompt = stream.state.n_tokens
            lead = ""
        if options.seed is not None:
            stream.set_seed(options.seed)
        self._stream = stream
        self._before = stream.state
        self._n_prompt = n_prompt
        standing = None if prefix.is_standing else prefix.tokens
        mode = options.mode or "exact"
        self.writer = Writer(stream, mode, options.settled(mode == "sampled"), options.max_nodes, standing)
        self.writer.write(lead)
        self.decoder = RecordDecoder(self.writer, Layout(options.indent), options.max_tokens, options.on_text)

    def told(self) -> tuple[tuple[str, ...], RecordStats, str | None]:
        """Return what was closed before its end, what it took, and what was thought; all is then in the sequence."""
        self.writer.flush()
        return tuple(self.decoder.truncated), self.stats(), None if self._thought is None else self._thought.text

    def stats(self) -> RecordStats:
        """Return what it took."""
        before, after = self._before, self._stream.state
        return RecordStats(
            n_prompt=self._n_prompt,
            n_tokens=after.n_tokens - self._n_prompt,
            n_choices=self.writer.n_choices,
            n_branches=after.n_branches - before.n_branches,
            n_free=after.n_free - before.n_free + self.writer.n_ends,
            n_passes=after.n_passes - before.n_passes + self.writer.n_searched,
            n_evaluated=self.writer.n_evaluated,
            n_unproved=self.writer.n_unproved,
            fill_ms=(time.perf_counter() - self._started) * 1e3 + (0 if self._thought is None else self._thought.ms),
        )


def record_request(template: RecordTemplate, options: RecordOptions) -> RecordRequest[Record[Any]]:
    """Request a record of a template."""

    def fill(under_way: Filling) -> Record[Any]:
        text = under_way.decoder.run(template.node)
        return Record(template.read(text), text, under_way.decoder.probabilities, *under_way.told())

    return RecordRequest(options, fill)


@overload
def fill(llm: Llama, prompt: Prompt, schema: type[T], **options: Unpack[RecordKeywords]) -> Record[T]: ...
@overload
def fill(llm: Llama, prompt: Prompt, schema: Mapping[str, Any], **options: Unpack[RecordKeywords]) -> Record[Any]: ...
@overload
def fill(llm: Llama, prompt: Prompt, schema: object, **options: Unpack[RecordKeywords]) -> Record[Any]: ...
@takes(RecordOptions)
def fill(llm: Llama, prompt: Prompt, schema: object, **options: Any) -> Record[Any]:
    """Let the model answer a prompt with a record that is valid by a schema.

    Keys, punctuation and constants are forced. Enums, booleans, integers between close bounds, optional fields and
    unions are decisions. Strings, other numbers and values without a schema are generated with a grammar of llama.cpp.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        As for `choose`.
    schema : dict, pydantic model, dataclass, TypedDict, or another type that pydantic reads
        A dict is a JSON Schema. Fields are written in its order. Lists and maps without a maximum size end after 64
        items. Nested references are followed to a depth of 16. Types other than dict need the extra ``records``.
    **options
        Those of `RecordOptions`.

    Returns
    -------
    Record

    Raises
    ------
    ArgumentError
        The schema contains something that is not supported, or no value can be valid. This is raised before the model
        runs, with a JSON pointer to the place. Or a custom validator of the type refuses a value that its schema
        allows.
    VocabularyError, ContextError, LimitError, GrammarError
        The record does not fit the vocabulary or the context, or a generated value did not end.
    BusyError
        The call comes from a callback or signal handler of a thread that is already choosing with this model.

    Notes
    -----
    These parts of JSON Schema are supported: type, enum, const; properties, required, additionalProperties,
    minProperties, maxProperties; propertyNames and patternProperties of free keys; items, prefixItems, minItems,
    maxItems, and uniqueItems where items are chosen; minLength, maxLength, pattern (without looking around, back
    references and flags) and format (date, time, date-time, duration, email, hostname, ipv4, ipv6, json-pointer, uri,
    uuid); minimum, maximum, their exclusive forms, and multipleOf of whole numbers; anyOf, oneOf of schemas that
    exclude each other, allOf around one; $ref into the schema itself. Other formats and unknown keywords are
    annotations, as in JSON Schema. The other keywords that decide what is valid, such as not, if and contains, are
    refused. Properties that are not listed are not written. Integers between bounds are a choice if there are
    up to 1,000 of them; numbers between bounds have up to six digits after the point. Alternatives that the first token
    cannot tell apart are generated under one grammar for all of them.
    """
    return run(llm, prompt, record_request(read_template(schema), RecordOptions.read("fill", options)))
