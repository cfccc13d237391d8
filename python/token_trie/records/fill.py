"""`fill`: generate a record that is valid by a JSON Schema or by a type that pydantic reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from token_trie.decisions.options import RecordOptions
from token_trie.decisions.request import Prefix, Written
from token_trie.errors import ArgumentError
from token_trie.llama.query import Keep, Plan
from token_trie.native.core import Llama
from token_trie.native.lifetime import LruCache
from token_trie.native.options import takes
from token_trie.plan import Many, Model, OnError, run
from token_trie.records.nodes import LAYOUTS, Layout, Node
from token_trie.records.schema import read_schema
from token_trie.records.verbatim import check_used, source_of
from token_trie.records.write import RecordDecoder, Writer
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
        The JSON, with white space as `indent` asks for.
    probabilities : dict of str to float
        The probability of every value that was chosen, by its JSON pointer (``"/unit"``, ``"/tags/0"``). In exact mode
        it is the model's own probability of the value's text; it includes the end of the value only if another value
        continues from there, or the value is verbatim: then it is that of the value with both quotes. In the modes that
        go step by step, and for integers and for null or not in every mode, it is the product of the probabilities of
        its steps among the allowed ones. The pointer of an object or list (``""`` for the whole record) has the
        probability of the choice of its fields, or of its number of items.
    offsets : dict of str to (int, int)
        Where each verbatim value begins and ends in the text, by its JSON pointer: where it occurs first.
    truncated : tuple of str
        Pointers of values that were ended because they reached `max_tokens`, or nested too deep.
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
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RecordStats:
    """The cost of one record."""

    n_prompt: int
    """Tokens before the record."""
    n_tokens: int
    """Tokens of the record."""
    n_choices: int
    """Decisions: values, and which fields and items exist."""
    n_branches: int
    """Branch points (two or more allowed tokens) passed, in the modes that go step by step."""
    n_free: int
    """Tokens generated under a grammar, including those that only showed where a value ends."""
    n_passes: int
    """Forward passes of the model, without those for the prompt. In the modes that go step by step: one for each branch
    point and free token, unless it directly follows evaluated tokens."""
    n_evaluated: int
    """Trie nodes that the model evaluated, in exact mode."""
    n_unproved: int
    """Decisions in exact mode that reached `max_nodes` before the best answer was proved."""
    fill_ms: float
    """Time in milliseconds, including the prompt and the thought."""


class RecordTemplate(NamedTuple):
    """A schema that was read, and the reader of its values."""

    node: Node
    read: Callable[[str], Any]
    """Parses the text of a record."""
    schema: Any
    """The JSON Schema."""
    ignored: tuple[str, ...] = ()
    """Keywords that are not enforced, with the reason."""


_templates: LruCache[RecordTemplate] = LruCache(64, 1 << 20)


def json_key(given: Mapping[str, Any] | bool, what: str) -> str:
    """Return the JSON text of a value, as a cache key; ArgumentError if it is not JSON."""
    try:
        return json.dumps(given if isinstance(given, bool) else dict(given), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{what}: no JSON: {error}") from error


def read_template(schema: object, *, strict: bool = True) -> RecordTemplate:
    """Read a schema, with a cache; ArgumentError as of `read_schema`, or without pydantic.

    If not strict, keywords that cannot be enforced are ignored.
    """
    if isinstance(schema, (Mapping, bool)):
        key = json_key(schema, "schema")
        return _templates.get((key, strict), len(key), lambda: _read_json(json.loads(key), strict))
    if schema is None or isinstance(schema, (str, bytes, int, float, list, tuple, set)):
        raise ArgumentError(
            "schema must be a JSON Schema (a dict), a pydantic model, a dataclass, a TypedDict or another type, not "
            f"{type(schema).__name__}"
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
        except Exception as error:  # validators may raise anything
            why = str(error) if isinstance(error, pydantic.ValidationError) else repr(error)
            raise ArgumentError(f"schema: {schema!r} refuses what its own schema allows, {text}: {why}") from error

    return RecordTemplate(read_schema(written), read, written)


R = TypeVar("R")


@dataclass(frozen=True)
class RecordRequest(Written[R]):
    """A request for a record, or for any text of forced, chosen and generated parts."""

    options: RecordOptions
    fill: Callable[[RecordDecoder], Plan[Callable[[tuple[str, ...], RecordStats, str | None], R]]]
    """Writes it; returns what makes the result, of the truncated pointers, the stats and the thought."""
    lead: str = ""
    """Text before it, which may contain control tokens."""
    layout: Layout | None = None
    """White space in which it is written; None: the model's own."""

    def silent(self) -> RecordRequest[R]:
        """Return the same request without reports of what is written."""
        return replace(self, options=replace(self.options, on_text=None))

    def plan(self, model: Model, prompt: Prompt) -> Plan[R]:
        """Plan a thought, if one is requested, and the record of the text, or else of what the prompt is about."""
        source = self.options.text if self.options.text is not None else source_of(prompt)
        return super(RecordRequest, self.of_text(source)).plan(model, prompt)

    def of_text(self, text: str | None) -> RecordRequest[R]:
        """Return the same request about a text."""
        return replace(self, options=replace(self.options, text=text))

    def after(self, model: Model, prefix: Prefix) -> Plan[R]:
        """Plan the record, which the model writes."""
        options, tokens, started = self.options, prefix.tokens, time.perf_counter()
        if self.lead:
            tokens = model.append(tokens, self.lead)
        layouts = LAYOUTS if self.layout is None else (self.layout,)
        printed = None if options.indent == "auto" else Layout(options.indent)
        writer = Writer(model, options, tokens)
        decoder = RecordDecoder(writer, layouts, printed, options.max_tokens, options.on_text, options.text)
        make = yield from self.fill(decoder)
        writer.flush()
        ms = (time.perf_counter() - started) * 1e3 + prefix.thought_ms
        stats = RecordStats(len(tokens), len(writer.tokens) - len(tokens), **writer.cost, fill_ms=ms)
        record = make(tuple(decoder.truncated), stats, prefix.thought)
        yield [Keep(writer.tokens)]
        return record


def record_request(template: RecordTemplate, options: RecordOptions) -> RecordRequest[Record[Any]]:
    """Make the request for a record of a template; ArgumentError if a text is given and no value is verbatim."""
    check_used(options.text, [template.node])

    def fill(decoder: RecordDecoder) -> Plan[Callable[..., Record[Any]]]:
        text = yield from decoder.run(template.node)
        return partial(Record, template.read(text), text, decoder.probabilities, offsets=decoder.offsets)

    return RecordRequest(options, fill)


@overload
def fill(llm: Llama, prompt: Prompt, schema: type[T], **options: Unpack[RecordKeywords]) -> Record[T]: ...
@overload
def fill(llm: Llama, prompt: Prompt, schema: object, **options: Unpack[RecordKeywords]) -> Record[Any]: ...
@takes(RecordOptions)
def fill(llm: Llama, prompt: Prompt, schema: object, **options: Any) -> Record[Any]:
    """Let the model answer a prompt with a record that is valid by a schema.

    Keys, punctuation and constants are forced. Which optional fields there are, how many items, and which alternative
    of a union is decided by what the model would write next; an optional field is also left out if that is null and the
    schema has no null. Enums and booleans are decided by the probability of the whole value. Strings, other numbers and
    values without a schema are generated with a grammar of llama.cpp. It is written with the model's own white space:
    compact, with spaces, or indented.

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
        The schema contains something that is not supported, or no value can be valid, or the text has no part that can
        be a verbatim value. This is raised before the model runs, with a JSON pointer to the position. Or a custom
        validator of the type refuses a value that its schema allows.
    VocabularyError, ContextError, LimitError, GrammarError
        The record does not fit the vocabulary or the context, or a generated value did not end.
    BusyError
        The call comes from a callback or signal handler of a thread that is already choosing with this model.

    Notes
    -----
    These parts of JSON Schema are supported: type, enum, const; properties, required, additionalProperties,
    minProperties, maxProperties, patternProperties, propertyNames; items, prefixItems, minItems, maxItems, contains
    beside items, and uniqueItems where items are chosen; minLength, maxLength, pattern (without looking around, back
    references and flags) and format (date, time, date-time, duration, email, hostname, ipv4, ipv6, json-pointer, uri,
    uuid); x_verbatim of strings, see `Verbatim`; minimum, maximum, their exclusive forms, and multipleOf of whole
    numbers; allOf, anyOf, oneOf of schemas that exclude each other, if, then and else, dependentRequired,
    dependentSchemas, unevaluatedProperties and unevaluatedItems; not, where what it forbids can be told apart: types,
    chosen values, bounds, lengths, and properties of these; $ref into the schema itself, by pointer, $id or $anchor.
    Other formats, a format beside enum or const, and unknown keywords are annotations, as in JSON Schema. The other
    keywords that decide what is valid are refused; an alternative of anyOf that has one is not written, if others than
    null remain. A keyword without type restrains values of its own type alone, as JSON Schema has it; a schema with
    properties and without type is an object, as people mean it. Properties that are not listed are not written.
    Integers between bounds are a choice if there are up to 1,000 of them; numbers between bounds have up to six digits
    after the point. Alternatives that the first token cannot tell apart are generated under one grammar for all of
    them.
    """
    return run(llm, prompt, record_request(read_template(schema), RecordOptions.read("fill", options)).plan)


@takes(RecordOptions)
def fill_plan(model: Model, prompt: Prompt, schema: object, **options: Any) -> Plan[Record[Any]]:
    """Plan what `fill` does, as a part of another plan; after `model`, parameters and result are those of `fill`."""
    return record_request(read_template(schema), RecordOptions.read("fill_plan", options)).plan(model, prompt)


N_RECORDS = 16
"""Default number of sequences for records."""


@takes(RecordOptions)
def fill_many(
    llm: Llama,
    prompts: Iterable[Prompt],
    schema: object,
    *,
    as_ready: bool = False,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    texts: Iterable[str] | None = None,
    **options: Unpack[RecordKeywords],
) -> Iterator[Any]:
    """Let the model answer many prompts with a record each, as `fill` does for one prompt.

    All prompts share one context, as in `choose_many`: a beginning that several share is evaluated once, and each pass
    serves all records under way. A record keeps its place in the context until it is finished.

    Parameters
    ----------
    llm, prompts, as_ready, on_error, progress, n_ctx
        As of `choose_many`. A value that the model writes needs `max_tokens` tokens of the context while it is written,
        so a smaller `max_tokens`, or a larger `n_ctx`, lets more records be written at the same time.
    n_parallel : int, optional
        Largest number of sequences in the context, at least 2; by default 16. More records at the same time fill the
        context, in which each token then takes longer, and pay on a device.
    schema
        As of `fill`, for all prompts.
    texts : iterable of str, optional
        The text of each prompt that verbatim values are taken from, in place of `text`.
    **options
        Those of `RecordOptions`, except on_text.

    Yields
    ------
    Record
        The record of `fill`, up to llama.cpp's rounding, which depends on the size of a batch.

    Raises
    ------
    ArgumentError
        At once: the schema or an option is not supported.
    TokenTrieError
        Of a prompt, with its position: as of `fill`.
    CancelledError
        The Llama was closed meanwhile.
    """
    template = read_template(schema)
    request = record_request(template, read_for_many("fill_many", "fill", options))
    n_parallel = N_RECORDS if n_parallel is None else n_parallel
    many = Many(llm, prompts, "prompt", "fill", progress, n_parallel, n_ctx, on_error, as_ready)
    if texts is None:
        return many.run(request.plan)
    check_used(texts, [template.node])
    if request.options.text is not None:
        raise ArgumentError("text and texts: use one of them")
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ArgumentError(f"texts must be a list, not {type(texts).__name__}; for all prompts there is text")

    def plan(model: Model, about: tuple[Prompt, str]) -> Plan[Record[Any]]:
        return request.of_text(about[1]).plan(model, about[0])

    return many.run(plan, _pairs(prompts, texts))


def _pairs(prompts: Iterable[Prompt], texts: Iterable[str]) -> Iterator[tuple[Prompt, str]]:
    missing: Any = object()
    for pair in zip_longest(prompts, texts, fillvalue=missing):
        if any(one is missing for one in pair):
            raise ArgumentError("texts: not as many as prompts")
        yield pair


def read_for_many(function: str, alone: str, options: Mapping[str, Any]) -> RecordOptions:
    """Read the options of many records; ArgumentError for one that goes with a single record."""
    read = RecordOptions.read(function, options)
    if read.on_text is not None:
        raise ArgumentError(f"on_text: goes with {alone}; here the parts of several records would come mixed")
    return read
