"""`fill`: a whole record out of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.options import RecordOptions
from token_trie.decisions.records.filling import record_request
from token_trie.decisions.records.record import Record
from token_trie.decisions.records.types import read_template
from token_trie.decisions.runner import run
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.sets.prompt import Prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import RecordKeywords

T = TypeVar("T")


@overload
def fill(llm: Llama, prompt: Prompt, schema: type[T], **options: Unpack[RecordKeywords]) -> Record[T]: ...
@overload
def fill(llm: Llama, prompt: Prompt, schema: Mapping[str, Any], **options: Unpack[RecordKeywords]) -> Record[Any]: ...
@overload
def fill(llm: Llama, prompt: Prompt, schema: object, **options: Unpack[RecordKeywords]) -> Record[Any]: ...
@takes(RecordOptions)
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
    **options
        Those of `RecordOptions`.

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
    return run(llm, prompt, record_request(read_template(schema), RecordOptions.read("fill", options)))
