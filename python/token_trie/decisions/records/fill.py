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
