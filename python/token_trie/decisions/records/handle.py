"""Records and tool calls in the middle of a stream's sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.options import RecordOptions
from token_trie.decisions.records.filling import record_request
from token_trie.decisions.records.record import Record
from token_trie.decisions.records.tools import ToolCall, tool_request
from token_trie.decisions.records.toolset import read_tools
from token_trie.decisions.records.types import read_form
from token_trie.decisions.runner import run_behind
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.program import Program
from token_trie.native.options import takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import RecordKeywords

T = TypeVar("T")


class RecordHandle(Program):
    """A `Program` whose sequence may hold records."""

    @overload
    def fill(self, schema: type[T], **options: Unpack[RecordKeywords]) -> Record[T]: ...
    @overload
    def fill(self, schema: Mapping[str, Any], **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    @overload
    def fill(self, schema: object, **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    @takes(RecordOptions)
    def fill(self, schema: object, **options: Any) -> Record[Any]:
        """Let the model write a record behind what stands; the sequence goes on behind it.

        Parameters are those of `token_trie.fill`. A trie that was set is taken away; a grammar begins anew behind the
        record.

        Raises
        ------
        TokenTrieError
            As of `token_trie.fill`. The sequence, the trie and the grammar are what they were.
        """
        return run_behind(self, record_request(read_form(schema), RecordOptions.read("fill", options)))

    @overload
    async def afill(self, schema: type[T], **options: Unpack[RecordKeywords]) -> Record[T]: ...
    @overload
    async def afill(self, schema: Mapping[str, Any], **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    @overload
    async def afill(self, schema: object, **options: Unpack[RecordKeywords]) -> Record[Any]: ...
    async def afill(self, schema: object, **options: Any) -> Record[Any]:
        """Do as `fill` does, on a worker thread; a task that is cancelled ends it."""
        record: Record[Any] = await in_worker(lambda: self.fill(schema, **options), self._cancel_of)
        return record

    @overload
    def choose_tool(  # type: ignore[overload-overlap]  # a class is a function too
        self, tools: Sequence[type[T]], **options: Unpack[RecordKeywords]
    ) -> ToolCall[T]: ...
    @overload
    def choose_tool(
        self, tools: Sequence[Mapping[str, Any]] | Sequence[Callable[..., Any]], **options: Unpack[RecordKeywords]
    ) -> ToolCall[dict[str, Any]]: ...
    @overload
    def choose_tool(self, tools: Sequence[object], **options: Unpack[RecordKeywords]) -> ToolCall[Any]: ...
    @takes(RecordOptions)
    def choose_tool(self, tools: Sequence[object], **options: Unpack[RecordKeywords]) -> ToolCall[Any]:
        """Let the model call one of some tools behind what stands, which has to tell it of them.

        Parameters
        ----------
        tools : sequence of dict, class or function
            As for `token_trie.choose_tool`.
        **options
            Those of `token_trie.fill`.

        Returns
        -------
        ToolCall
            Written as ``{"name":"…","arguments":{…}}``; the sequence goes on behind it.

        Raises
        ------
        TokenTrieError
            As of `fill`.
        """
        return run_behind(self, tool_request(read_tools(tools), RecordOptions.read("choose_tool", options)))

    @overload
    async def achoose_tool(  # type: ignore[overload-overlap]
        self, tools: Sequence[type[T]], **options: Unpack[RecordKeywords]
    ) -> ToolCall[T]: ...
    @overload
    async def achoose_tool(
        self, tools: Sequence[Mapping[str, Any]] | Sequence[Callable[..., Any]], **options: Unpack[RecordKeywords]
    ) -> ToolCall[dict[str, Any]]: ...
    @overload
    async def achoose_tool(self, tools: Sequence[object], **options: Unpack[RecordKeywords]) -> ToolCall[Any]: ...
    async def achoose_tool(self, tools: Sequence[object], **options: Unpack[RecordKeywords]) -> ToolCall[Any]:
        """Do as `choose_tool` does, on a worker thread; a task that is cancelled ends it."""
        return await in_worker(lambda: self.choose_tool(tools, **options), self._cancel_of)
