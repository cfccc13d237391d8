"""`fill`: a whole record out of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.how import ANY_SEED
from token_trie.decisions.records.filling import FillOptions, fill_in, read_how
from token_trie.decisions.records.record import Record
from token_trie.decisions.records.types import read_form
from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.chooser import cancel, chooser, room_of
from token_trie.native.arguments import check_names
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.sets.prompt import Prompt, tokenize_prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


@overload
def fill(llm: Llama, prompt: Prompt, schema: type[T], **options: Unpack[FillOptions]) -> Record[T]: ...
@overload
def fill(llm: Llama, prompt: Prompt, schema: Mapping[str, Any], **options: Unpack[FillOptions]) -> Record[Any]: ...
@overload
def fill(llm: Llama, prompt: Prompt, schema: object, **options: Unpack[FillOptions]) -> Record[Any]: ...
def fill(llm: Llama, prompt: Prompt, schema: object, **options: Any) -> Record[Any]:
    """Let the model answer a prompt with a record by a schema.

    Keys, punctuation and constants are forced; enums, booleans, integers between near bounds, optional fields and
    unions are decided; strings, other numbers and values of no schema run under llama.cpp's grammar for these alone.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        As for `choose`.
    schema : dict, pydantic model, dataclass, TypedDict, or another type that pydantic reads
        A dict is a JSON Schema. Fields are written in its order. Lists and maps that do not say how many items they
        have at most end after 64, and references inside each other are followed 16 deep. Types need the extra
        ``records``.
    mode : {"exact", "greedy", "sampled"}
        How choices are made: "exact", the default, searches for the most probable whole value, as far as `max_nodes`
        goes; "greedy" takes the best token at each branch point, which is fastest; "sampled" draws there. Integers
        between near bounds are written digit by digit in every mode.
    temperature : float, optional
        Of free text, and of draws; by default 0, the best token each, and in sampled mode 1.
    top_p : float
        In (0, 1].
    seed : int, optional
        The same seed draws the same record.
    max_nodes : int, optional
        Nodes of a choice's trie that exact mode asks the model about at most; None for no limit, so that the most
        probable value is proved. `RecordStats.n_unproved` counts the choices that it ended.
    max_tokens : int
        Tokens of a slot of free text at most. A string that is not closed by then is, and stands in
        `Record.truncated`; where the schema does not let it end there, and for other values, that is a LimitError.
    indent : int, optional
        Spaces a level, each field on a line of its own; by default there is no white space.
    on_text : callable, optional
        Is given the record's text, part by part, as it is decided, on the thread that works. What it raises ends the
        record.
    think : Think, optional
        Lets the model write freely up to a marker first, for `Record.thought`. The record follows the marker.

    Returns
    -------
    Record

    Raises
    ------
    ArgumentError
        The schema has something that is not supported, or nothing can be valid by it: with a JSON pointer to the place,
        before the model runs. Or a validator of the type's own refuses what its schema allows.
    VocabularyError, ContextError, LimitError, GrammarError
        The record does not fit the vocabulary or the context, or a slot did not end.
    BusyError
        This very thread is choosing with this model already, and asks from a callback or a signal's handler.

    Notes
    -----
    Of JSON Schema there are type, enum, const; properties, required, additionalProperties, minProperties,
    maxProperties; items, prefixItems, minItems, maxItems, and uniqueItems where items are chosen; minLength, maxLength,
    pattern (without looking around, back references and flags) and format (date, time, date-time, uuid); minimum,
    maximum, their exclusive forms, and multipleOf of whole numbers; anyOf, oneOf of schemas that exclude each other,
    allOf around one; $ref into the schema itself. Notes such as title are passed over, all else is refused. Properties
    that are not listed are not written. Integers between bounds are a choice where there are up to 1,000 of them;
    numbers between bounds have up to six digits behind the point.
    Alternatives that begin alike, so that no first token tells them apart, run under one grammar of them all.
    """
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    check_names("fill", options, FillOptions.__annotations__)
    form, how = read_form(schema), read_how(**options)
    with lease(llm):
        tokens = tokenize_prompt(llm, prompt, room_of(llm))
    with chooser(llm) as handle:
        if how.seed is None:
            handle.set_seed(ANY_SEED)
        return fill_in(handle, form, how, tokens)


@overload
async def afill(llm: Llama, prompt: Prompt, schema: type[T], **options: Unpack[FillOptions]) -> Record[T]: ...
@overload
async def afill(
    llm: Llama, prompt: Prompt, schema: Mapping[str, Any], **options: Unpack[FillOptions]
) -> Record[Any]: ...
@overload
async def afill(llm: Llama, prompt: Prompt, schema: object, **options: Unpack[FillOptions]) -> Record[Any]: ...
async def afill(llm: Llama, prompt: Prompt, schema: object, **options: Any) -> Record[Any]:
    """Do as `fill` does, on a worker thread; a task that is cancelled ends it."""
    record: Record[Any] = await in_worker(
        lambda: fill(llm, prompt, schema, **options), lambda thread: cancel(llm, thread)
    )
    return record
